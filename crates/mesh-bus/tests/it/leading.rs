//! Leadership, and the fencing of a former leader's writes.

use std::time::{Duration, Instant};

use mesh_bus::{Bus, ClusterState, LeadershipState, PutError};
use mesh_events::catalogue::BUCKET_INGEST;
use mesh_testkit::{NatsServer, wait_until};
use tokio_util::sync::CancellationToken;

use crate::{PATIENCE, connect};

async fn take_over(bus: &Bus, cluster: &str) -> (ClusterState, Vec<(String, String)>) {
    let (state, entries) = bus.take_over(BUCKET_INGEST, cluster).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let entries = entries
        .iter()
        .map(|entry| (entry.key.clone(), text(&entry.value)))
        .collect();
    (state, entries)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_former_writer_writes_no_key_at_all() {
    let nats = NatsServer::start().await;
    let bus = connect(&nats, "ingest").await;
    let (mut former, stored) = take_over(&bus, "c1").await;
    assert_eq!(stored, []);
    former.put("c1.7", "a".into()).await.unwrap();
    former.put("c1.meta", "b".into()).await.unwrap();
    former.put("c1.7", "c".into()).await.unwrap();

    let (mut present, stored) = take_over(&bus, "c1").await;
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(stored, [pair("c1.7", "c"), pair("c1.meta", "b")]);
    // Neither an existing key nor a new one, also before the new writer has written anything.
    for key in ["c1.7", "c1.8"] {
        let refused = former.put(key, "late".into()).await;
        assert!(
            matches!(&refused, Err(PutError::Conflict { key: of }) if of == key),
            "{refused:?}"
        );
    }
    let refused = former.delete("c1.7").await;
    assert!(matches!(refused, Err(PutError::Conflict { .. })));
    present.put("c1.8", "d".into()).await.unwrap();
    present.put("c1.9", "e".into()).await.unwrap();
    present.delete("c1.9").await.unwrap();
    // A reader sees the same entries, without the writer's mark.
    let read = bus.bucket(BUCKET_INGEST).await.unwrap();
    let read = read.load("c1").await.unwrap().into_iter();
    let read: Vec<String> = read.map(|entry| entry.key).collect();
    assert_eq!(read, ["c1.7", "c1.8", "c1.meta"]);
    let (_, stored) = take_over(&bus, "c1").await;
    let expected = [pair("c1.7", "c"), pair("c1.8", "d"), pair("c1.meta", "b")];
    assert_eq!(stored, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn written_keys_are_restored_to_a_deleted_or_purged_bucket() {
    let nats = NatsServer::start().await;
    let bus = connect(&nats, "ingest").await;
    let context = async_nats::jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    let (mut former, _) = take_over(&bus, "c1").await;
    former.put("c1.0", "a".into()).await.unwrap();
    // Entries that were read are restored like those that were written.
    let (mut state, _) = take_over(&bus, "c1").await;
    state.put("c1.1", "b".into()).await.unwrap();
    state.put("c1.2", "c".into()).await.unwrap();
    state.delete("c1.2").await.unwrap();
    let name = format!("KV_{BUCKET_INGEST}");
    context.delete_stream(&name).await.unwrap();
    assert!(
        state.put("c1.3", "d".into()).await.is_err(),
        "there is none"
    );
    bus.redeclare_missing().await.unwrap();
    state.put("c1.3", "d".into()).await.unwrap();
    let stream = context.get_stream(&name).await.unwrap();
    stream.purge().await.unwrap();
    state.put("c1.3", "e".into()).await.unwrap();
    let repairs = bus.repairs().join("\n");
    for problem in [
        "bucket mesh_ingest was deleted",
        "state of c1 in bucket mesh_ingest",
    ] {
        assert!(repairs.contains(problem), "{repairs}");
    }
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let (mut next, stored) = take_over(&bus, "c1").await;
    assert_eq!(
        stored,
        [pair("c1.0", "a"), pair("c1.1", "b"), pair("c1.3", "e")]
    );
    // A replaced writer restores nothing.
    stream.purge().await.unwrap();
    next.put("c1.4", "f".into()).await.unwrap();
    let refused = state.put("c1.3", "late".into()).await;
    assert!(matches!(refused, Err(PutError::Conflict { .. })));
}

/// Waits until the writer's periodic check has restored the bucket.
async fn checked(state: &mut ClusterState, expected: &[(String, String)], bus: &Bus) {
    wait_until("it is put back", PATIENCE, async || {
        state.check().await.unwrap();
        let read = bus.bucket(BUCKET_INGEST).await.unwrap();
        let read = read.load("c1").await.unwrap().into_iter();
        let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
        let read: Vec<_> = read.map(|entry| (entry.key, text(&entry.value))).collect();
        read == expected
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_writer_restores_deleted_and_purged_keys() {
    let nats = NatsServer::start().await;
    let bus = connect(&nats, "ingest").await;
    let context = async_nats::jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    let name = format!("KV_{BUCKET_INGEST}");
    let (mut state, _) = take_over(&bus, "c1").await;
    state.put("c1.0", "a".into()).await.unwrap();
    state.put("c1.1", "b".into()).await.unwrap();
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let all = [pair("c1.0", "a"), pair("c1.1", "b")];
    context.delete_stream(&name).await.unwrap();
    bus.redeclare_missing().await.unwrap();
    checked(&mut state, &all, &bus).await;
    let stream = context.get_stream(&name).await.unwrap();
    stream.purge().await.unwrap();
    checked(&mut state, &all, &bus).await;
    let one = format!("$KV.{BUCKET_INGEST}.c1.0");
    stream.purge().filter(one).await.unwrap();
    checked(&mut state, &all, &bus).await;

    // The lease is gone with the bucket: the next writer of this process knows what the last one wrote.
    stream.purge().await.unwrap();
    drop(state);
    let (state, stored) = take_over(&bus, "c1").await;
    assert_eq!(stored, all);
    // A writer in between has left a mark, and its writes count.
    drop(state);
    let other = connect(&nats, "ingest").await;
    let (mut elsewhere, _) = take_over(&other, "c1").await;
    elsewhere.put("c1.0", "newer".into()).await.unwrap();
    let (_, stored) = take_over(&bus, "c1").await;
    assert_eq!(stored, [pair("c1.0", "newer"), pair("c1.1", "b")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn clusters_and_other_buckets_do_not_disturb_each_other() {
    let nats = NatsServer::start().await;
    let bus = connect(&nats, "ingest").await;
    let (mut one, _) = take_over(&bus, "c1").await;
    let (mut other, _) = take_over(&bus, "c11").await;
    for value in ["a", "b"] {
        one.put("c1.0", value.into()).await.unwrap();
        other.put("c11.0", value.into()).await.unwrap();
    }
    let (_, stored) = take_over(&bus, "c1").await;
    assert_eq!(stored, [("c1.0".to_owned(), "b".to_owned())]);
    other.put("c11.0", "c".into()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_continues_after_nats_was_unavailable() {
    let mut nats = NatsServer::start().await;
    let bus = connect(&nats, "ingest").await;
    let (mut state, _) = take_over(&bus, "c1").await;
    state.put("c1.0", "a".into()).await.unwrap();
    nats.kill();
    let write = tokio::spawn(async move {
        while let Err(error) = state.put("c1.0", "b".into()).await {
            assert!(matches!(error, PutError::Bus(_)), "{error}");
            bus.ready(&CancellationToken::new()).await.unwrap();
        }
        (state, bus)
    });
    nats.restart().await;
    let (mut state, bus) = tokio::time::timeout(PATIENCE, write)
        .await
        .unwrap()
        .unwrap();
    state.put("c1.0", "c".into()).await.unwrap();
    let (_, stored) = take_over(&bus, "c1").await;
    assert_eq!(stored, [("c1.0".to_owned(), "c".to_owned())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_leads_and_a_standby_follows_at_once_or_when_the_leader_is_silent() {
    let nats = NatsServer::start().await;
    let shutdown = CancellationToken::new();
    let (one, other) = (
        connect(&nats, "ingest").await,
        connect(&nats, "ingest").await,
    );
    let (first, second) = (one.candidate("c1"), other.candidate("c1"));
    let lease = first.lead(&shutdown).await.unwrap();
    assert_eq!(*first.state().borrow(), LeadershipState::Leader);

    // Another cluster has its own leader.
    let elsewhere = other.candidate("c2");
    elsewhere.lead(&shutdown).await.unwrap().give_up().await;

    let waiting = tokio::spawn({
        let shutdown = shutdown.clone();
        async move {
            let lease = second.lead(&shutdown).await.unwrap();
            (second, lease)
        }
    });
    let client = async_nats::connect(nats.url()).await.unwrap();
    let jetstream = async_nats::jetstream::new(client);
    let leases = jetstream.get_key_value("mesh_leases");
    let leases = leases.await.unwrap();
    let renewed = async || leases.entry("c1.ingest").await.unwrap().unwrap().created;
    let begun = renewed().await;
    // Longer than the lease's lifetime.
    wait_until("it is renewed again and again", PATIENCE, async || {
        renewed().await - begun > Duration::from_secs(8)
    })
    .await;
    assert!(!waiting.is_finished(), "the leader renews its lease");
    let given_up = Instant::now();
    lease.give_up().await;
    let (second, lease) = tokio::time::timeout(PATIENCE, waiting)
        .await
        .unwrap()
        .unwrap();
    println!("given up: taken over after {:?}", given_up.elapsed());
    assert_eq!(*second.state().borrow(), LeadershipState::Leader);

    // Its connection is gone without a release.
    let silent = Instant::now();
    other.close().await;
    let lease_of_first = tokio::time::timeout(PATIENCE, first.lead(&shutdown))
        .await
        .unwrap()
        .unwrap();
    println!("silent: taken over after {:?}", silent.elapsed());
    assert!(
        silent.elapsed() > Duration::from_secs(3),
        "not while it may still lead"
    );
    let mut state = second.state();
    wait_until("the silent one is unsure", PATIENCE, async || {
        *state.borrow_and_update() == LeadershipState::Unsure
    })
    .await;
    drop(lease);
    drop(lease_of_first);
}
