//! Foreign bytes in the keys of the state bucket: watching goes on, and what was lost is a gap.

use std::collections::BTreeSet;

use futures_util::TryStreamExt as _;
use mesh_events::Event;
use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_testkit::{NatsServer, wait_for, wait_until};

use crate::harness::{
    DEADLINE, bus, cluster_with_accounting, of_node, published_so_far, start_with, until, update,
};

const GARBAGE: &[u8] = b"\xff\x00not ours";
const FAST: &str =
    "poll_interval = \"200ms\"\nmax_poll_interval = \"1s\"\naccounting_interval = \"1s\"\n";

/// Overwrites the keys of the bucket that match. Returns how many.
async fn overwrite(nats: &NatsServer, matches: impl Fn(&str) -> bool) -> usize {
    let client = async_nats::connect(nats.url()).await.unwrap();
    let jetstream = async_nats::jetstream::new(client);
    let bucket = jetstream.get_key_value("mesh_nodes").await.unwrap();
    let keys: Vec<String> = bucket.keys().await.unwrap().try_collect().await.unwrap();
    let matching = keys
        .iter()
        .filter(|key| !key.contains(".damaged.") && !key.ends_with(".writer") && matches(key));
    let mut count = 0;
    for key in matching {
        bucket.put(key, GARBAGE.into()).await.unwrap();
        count += 1;
    }
    count
}

fn gaps(events: &[Event]) -> Vec<&CaptureEvent> {
    let of_state = events
        .iter()
        .filter(|event| event.r#type == "capture.gap_closed");
    of_state
        .filter_map(|event| match &event.payload {
            Some(Payload::Capture(gap)) => Some(gap),
            _ => None,
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_bytes_in_stored_state_are_put_aside_and_watching_goes_on() {
    let (nats, cluster) = (NatsServer::start().await, cluster_with_accounting());
    let bus = bus(&nats).await;
    let service = start_with(&nats, &cluster, FAST).await;
    until(&bus, "n4", "baseline").await;
    update(&cluster, "n1", &["State=DRAIN", "Reason=bad disk"]);
    until(&bus, "n1", "drained admin").await;
    service.stop().await;

    for (round, (name, suffix)) in [("every key", ""), ("the watermark", ".started")]
        .into_iter()
        .enumerate()
    {
        assert!(overwrite(&nats, |key| key.ends_with(suffix)).await >= 1);
        let service = start_with(&nats, &cluster, FAST).await;
        wait_for(name, DEADLINE, async || {
            (gaps(&published_so_far(&bus).await).len() > round).then_some(())
        })
        .await;
        wait_until("the watcher is ready", DEADLINE, async || {
            service.health.problems().is_empty()
        })
        .await;
        update(&cluster, "n2", &["State=DRAIN", "Reason=bad disk"]);
        until(&bus, "n2", "drained admin").await;
        update(&cluster, "n2", &["State=RESUME"]);
        until(&bus, "n2", "recovered").await;
        service.stop().await;
    }
    // What was written meanwhile can be read.
    let service = start_with(&nats, &cluster, FAST).await;
    update(&cluster, "n1", &["State=RESUME"]);
    let events = until(&bus, "n1", "recovered").await;
    service.stop().await;

    let gaps = gaps(&events);
    let messages: Vec<&str> = gaps.iter().map(|gap| gap.message.as_str()).collect();
    assert_eq!(messages.len(), 2, "{messages:?}");
    assert!(messages[0].contains("state of nodes (") && messages[1].contains("of the polls"));
    assert!(
        gaps.iter()
            .all(|gap| gap.source == "state" && !gap.not_recoverable.is_empty())
    );
    assert_eq!(
        of_node(&events, "n1"),
        ["baseline", "drained admin", "baseline admin", "recovered"]
    );
    let outages = ["drained admin", "recovered"].repeat(2);
    let of_n2 = [vec!["baseline", "baseline"], outages].concat();
    assert_eq!(of_node(&events, "n2"), of_n2);
    let ids: BTreeSet<_> = events.iter().map(|event| &event.id).collect();
    assert_eq!(ids.len(), events.len());
    for node in ["n1", "n2", "n3", "n4"] {
        let key = format!("node/{node}");
        let of_node = events.iter().filter(|event| event.entity_key() == key);
        let numbers: Vec<u64> = of_node.map(|event| event.run_seq).collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "{node}: {numbers:?}");
    }
}
