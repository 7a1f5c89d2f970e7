//! No event lost or duplicated after a restart of the service or of NATS, or with two instances.

use std::collections::BTreeSet;

use chrono::{TimeDelta, Utc};
use mesh_events::{EventType, catalogue, subject};
use mesh_testkit::{NatsServer, fixtures, wait_until};
use pending_explainer::adapters::store::Store;
use pending_explainer::domain::ClusterView;
use pending_explainer::domain::timeline::{UpdateOutcome, apply_event};
use tokio_util::sync::CancellationToken;

use crate::estimates::evidence;
use crate::harness::{DEADLINE, bus, explained, published_so_far, row, snapshot, start, waiting};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn published_explanations_survive_a_restart() {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let service = start(&nats).await;
    bus.publish(&waiting(1, EventType::JobPending, "Priority", 2))
        .await
        .unwrap();
    explained(&bus, 1).await;
    service.kill().await;
    let service = start(&nats).await;
    // The same class, or an older event: nothing published. Another class: published.
    bus.publish(&waiting(1, EventType::JobPending, "Resources", 3))
        .await
        .unwrap();
    bus.publish(&waiting(1, EventType::JobHeld, "JobHeldAdmin", 1))
        .await
        .unwrap();
    bus.publish(&waiting(1, EventType::JobPending, "Licenses", 4))
        .await
        .unwrap();
    let events = explained(&bus, 2).await;
    let ids: BTreeSet<_> = events.iter().map(|event| &event.id).collect();
    assert_eq!(ids.len(), 2);
    service.stop().await;
    assert_eq!(published_so_far(&bus).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stored_events_are_published_after_a_crash() {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    // An instance that dies between write and publish.
    let store = Store::load(
        bus.bucket(catalogue::BUCKET_EXPLAINER).await.unwrap(),
        fixtures::CLUSTER,
    )
    .await
    .unwrap();
    let event = waiting(1, EventType::JobPending, "Priority", 1);
    let shard = store
        .shard(fixtures::CLUSTER, &event.job().unwrap().run)
        .await
        .unwrap();
    let mut intended = None;
    shard.change(
        |runs| match apply_event(runs, &event, ClusterView::default(), Utc::now()) {
            UpdateOutcome::Publish(event) => {
                intended = Some(event.clone());
                (true, vec![*event])
            }
            other => panic!("nothing to say: {other:?}"),
        },
    );
    store
        .commit(&shard, &CancellationToken::new())
        .await
        .unwrap();
    drop(store);

    let service = start(&nats).await;
    let events = explained(&bus, 1).await;
    assert_eq!(events.first(), intended.as_deref());
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_nats_loses_nothing() {
    let mut nats = NatsServer::start().await;
    let service = {
        let bus = bus(&nats).await;
        let service = start(&nats).await;
        for id in 1..=20 {
            bus.publish(&waiting(id, EventType::JobPending, "Priority", 1))
                .await
                .unwrap();
        }
        service
    };
    nats.restart().await;
    let bus = bus(&nats).await;
    let events = explained(&bus, 20).await;
    assert_eq!(
        events
            .iter()
            .map(|event| event.job().unwrap().job_id)
            .collect::<BTreeSet<_>>(),
        (1..=20).collect()
    );
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_instances_publish_everything_once() {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let (one, other) = (start(&nats).await, start(&nats).await);
    for id in 1..=60 {
        bus.publish(&waiting(id, EventType::JobPending, "Priority", 1))
            .await
            .unwrap();
    }
    let events = explained(&bus, 60).await;
    assert_eq!(
        events
            .iter()
            .map(|event| &event.id)
            .collect::<BTreeSet<_>>()
            .len(),
        60
    );
    one.stop().await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stored_explanations_are_restored_after_a_deletion() {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let context = async_nats::jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    let name = format!("KV_{}", catalogue::BUCKET_EXPLAINER);
    let service = start(&nats).await;
    bus.publish(&waiting(1, EventType::JobPending, "Priority", 2))
        .await
        .unwrap();
    explained(&bus, 1).await;
    let mut service = service;
    for (round, reason) in (0..).zip(["Licenses", "Resources"]) {
        match round {
            0 => drop(context.delete_stream(&name).await.unwrap()),
            _ => drop(
                context
                    .get_stream(&name)
                    .await
                    .unwrap()
                    .purge()
                    .await
                    .unwrap(),
            ),
        }
        wait_until("it is put back", DEADLINE, async || {
            let bucket = bus.bucket(catalogue::BUCKET_EXPLAINER).await;
            let Ok(bucket) = bucket else { return false };
            let found = bucket.load(&subject::token(fixtures::CLUSTER)).await;
            found.is_ok_and(|found| !found.is_empty())
        })
        .await;
        service.kill().await;
        service = start(&nats).await;
        bus.publish(&waiting(1, EventType::JobPending, reason, 4 + round))
            .await
            .unwrap();
        let events = explained(&bus, 2 + usize::try_from(round).unwrap()).await;
        let ids: BTreeSet<_> = events.iter().map(|event| &event.id).collect();
        assert_eq!(ids.len(), events.len());
    }
    // Changed right after it was deleted: the state in memory is written, not the stored one.
    context
        .get_stream(&name)
        .await
        .unwrap()
        .purge()
        .await
        .unwrap();
    bus.publish(&waiting(1, EventType::JobPending, "Dependency", 9))
        .await
        .unwrap();
    let events = explained(&bus, 4).await;
    let ids: BTreeSet<_> = events.iter().map(|event| &event.id).collect();
    assert_eq!(ids.len(), 4);
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_bytes_in_stored_state_are_put_aside_and_explaining_goes_on() {
    const GARBAGE: &[u8] = b"{not ours";
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let service = start(&nats).await;
    let waits = async |reason, seq| {
        let event = waiting(1, EventType::JobPending, reason, seq);
        bus.publish(&event).await.unwrap();
    };
    let poll = async || {
        let now = Utc::now() + TimeDelta::seconds(2);
        evidence(&bus, &[9], 4, now).await;
        snapshot(&bus, vec![row(1, 5, None)], now).await;
    };
    waits("Priority", 2).await;
    let cluster = subject::token(fixtures::CLUSTER);
    let bucket = bus.bucket(catalogue::BUCKET_EXPLAINER).await.unwrap();
    let estimates = format!("_estimates.{cluster}");
    poll().await;
    wait_until("estimates are stored", DEADLINE, async || {
        bucket.get(&estimates).await.unwrap().is_some()
    })
    .await;
    explained(&bus, 1).await;
    service.kill().await;

    let mut stored = bucket.load(&cluster).await.unwrap();
    stored.extend(bucket.get(&estimates).await.unwrap());
    assert_eq!(stored.len(), 2);
    for entry in &stored {
        let written = bucket.put(&entry.key, GARBAGE.into(), Some(entry.revision));
        written.await.unwrap();
    }
    // The first start finds them, the second what the first one wrote.
    for (reason, seq, count) in [("Licenses", 3, 2), ("Resources", 4, 3)] {
        let service = start(&nats).await;
        waits(reason, seq).await;
        let events = explained(&bus, count).await;
        let ids: BTreeSet<_> = events.iter().map(|event| &event.id).collect();
        assert_eq!(ids.len(), count);
        poll().await;
        wait_until("estimates are stored again", DEADLINE, async || {
            let entry = bucket.get(&estimates).await.unwrap();
            entry.is_some_and(|entry| entry.value != GARBAGE)
        })
        .await;
        service.kill().await;
    }
    // Kept once.
    let found = bucket.all().await.unwrap();
    let aside = found.iter().filter(|entry| entry.value == GARBAGE);
    let aside: BTreeSet<&str> = aside.map(|entry| entry.key.as_str()).collect();
    assert_eq!(aside.len(), 2, "{aside:?}");
    assert!(aside.iter().all(|key| key.contains(".damaged.")));
}
