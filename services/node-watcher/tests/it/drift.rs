//! Unknown forms in Slurm's node output are published once a day, also across a restart.

use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::subject;
use mesh_testkit::{NatsServer, script, wait_for, wait_until};

use crate::harness::{DEADLINE, bus, cluster, configuration, published_so_far, start_from, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_state_and_an_unknown_number_are_reported_once_a_day() {
    let (nats, cluster) = (NatsServer::start().await, cluster());
    let bus = bus(&nats).await;
    let folder = tempfile::tempdir().unwrap();
    let real = cluster.commands().join("scontrol");
    script(
        &folder.path().join("scontrol"),
        &format!(
            "{real:?} \"$@\" | sed 's/State=IDLE/State=IDLE+BRAND_NEW/; s/CfgTRES=cpu=/CfgTRES=cpu=many/'"
        ),
    );
    let settings = "poll_interval = \"200ms\"\nmax_poll_interval = \"1s\"\n";
    let truth = configuration(&nats, &cluster, settings);
    let altered = truth.replace(
        &format!("{:?}", cluster.commands()),
        &format!("{:?}", folder.path()),
    );
    assert_ne!(truth, altered);
    for _ in 0..2 {
        let service = start_from(&altered).await;
        wait_until("it has looked", DEADLINE, async || {
            service.health.problems().is_empty()
        })
        .await;
        until(&bus, "n4", "baseline").await;
        service.stop().await;
    }
    let events = published_so_far(&bus).await;
    let mut published = Vec::new();
    for event in events
        .iter()
        .filter(|event| event.r#type == "capture.schema_drift")
    {
        let Some(Payload::Capture(capture_event)) = &event.payload else {
            panic!("{event:?}");
        };
        assert_eq!(event.entity_key(), "capture/nodes");
        assert_eq!(
            subject::of(event).unwrap(),
            format!(
                "slurm.{}.capture.schema_drift.nodes",
                subject::token(cluster.name())
            )
        );
        published.push((event.run_seq, capture_event.message.as_str()));
    }
    assert_eq!(
        published,
        [
            (
                1,
                "slurmctld printed the node state \"BRAND_NEW\", which this version does not know"
            ),
            (
                2,
                "slurmctld printed CfgTRES of a node in a format that this version cannot read; it starts (letters as x, digits as 0): cpu=x0"
            ),
        ]
    );
}

/// One unreadable record makes the answer unusable. The drift is published although nothing else is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreadable_record_is_reported_without_its_content() {
    let (nats, cluster) = (NatsServer::start().await, cluster());
    let bus = bus(&nats).await;
    let folder = tempfile::tempdir().unwrap();
    let real = cluster.commands().join("scontrol");
    script(
        &folder.path().join("scontrol"),
        &format!("{real:?} \"$@\" | sed 's/ State=IDLE[^ ]*/ Owner=alice/'"),
    );
    let settings = "poll_interval = \"200ms\"\nmax_poll_interval = \"1s\"\n";
    let truth = configuration(&nats, &cluster, settings);
    let altered = truth.replace(
        &format!("{:?}", cluster.commands()),
        &format!("{:?}", folder.path()),
    );
    let service = start_from(&altered).await;
    let published = wait_for("the drift is told", DEADLINE, async || {
        let events = published_so_far(&bus).await;
        events
            .into_iter()
            .find(|event| event.r#type == "capture.schema_drift")
    })
    .await;
    service.stop().await;
    let Some(Payload::Capture(capture_event)) = &published.payload else {
        panic!("{published:?}");
    };
    assert!(
        capture_event.message.starts_with(
            "slurmctld printed an answer that this version cannot read (scontrol): a record could not be read; it starts (letters"
        ),
        "{}",
        capture_event.message
    );
    assert!(
        !capture_event.message.contains("alice"),
        "{}",
        capture_event.message
    );
    assert!(
        published_so_far(&bus)
            .await
            .iter()
            .all(|event| !event.r#type.starts_with("node."))
    );
}
