//! What Slurm prints of nodes and this version does not know: told once a day, also over a restart.

use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::subject;
use mesh_testkit::{NatsServer, script, wait_until};

use crate::harness::{DEADLINE, Running, bus, cluster, configuration, said_so_far, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_and_a_number_that_no_version_had_are_told_once_a_day() {
    let (nats, cluster) = (NatsServer::start().await, cluster(24_700));
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
    let lies = truth.replace(
        &format!("{:?}", cluster.commands()),
        &format!("{:?}", folder.path()),
    );
    assert_ne!(truth, lies);
    for _ in 0..2 {
        let service = Running::start_from(&lies).await;
        wait_until("it has looked", DEADLINE, async || {
            service.health.problems().is_empty()
        })
        .await;
        until(&bus, "n4", "baseline").await;
        service.stop().await;
    }
    let said = said_so_far(&bus).await;
    let mut told = Vec::new();
    for event in said
        .iter()
        .filter(|event| event.r#type == "capture.schema_drift")
    {
        let Some(Payload::Capture(what)) = &event.payload else {
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
        told.push((event.run_seq, what.message.as_str()));
    }
    assert_eq!(
        told,
        [
            (
                1,
                "slurmctld printed the node state \"BRAND_NEW\", which this version does not know"
            ),
            (
                2,
                "slurmctld printed a TRES or a number of a node in a form that this version cannot read"
            ),
        ]
    );
}
