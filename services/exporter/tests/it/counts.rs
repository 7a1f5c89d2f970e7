//! Every event counts once, whatever happens to the exporter.

use std::collections::BTreeMap;

use mesh_events::proto::mesh::job::v1::Usage;
use mesh_events::{Event, EventType, RunKey, Slot};
use mesh_testkit::fixtures::{CLUSTER, ended, job, job_event};
use mesh_testkit::{NatsServer, wait_until};

use crate::harness::{Site, bus, publish};

const LABELS: &str = "cluster=\"testbed\",partition=\"cpu\",account=\"physics\"";

fn life(id: u32, end: EventType, state: &str) -> [Event; 3] {
    [
        job_event(EventType::JobSubmitted, job(id)),
        job_event(EventType::JobStarted, job(id)),
        job_event(end, ended(job(id), state, 60)),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_ends_and_use_are_counted() {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let site = Site::new("");
    let exporter = site.start(&nats).await;
    for event in life(1, EventType::JobFailed, "FAILED") {
        publish(&bus, &event).await;
    }
    let usage = Usage {
        cpu_seconds: 120,
        memory_kib: 4 << 20,
        elapsed_seconds: 60,
        ..Usage::default()
    };
    let mut finished = ended(job(1), "FAILED", 60);
    finished.usage = Some(usage);
    let run = RunKey::parse(CLUSTER, &finished.run).unwrap();
    let mut updated = job_event(EventType::JobUpdated, finished);
    updated.id = mesh_events::EventId::recorded(&run, Slot::Updated).to_string();
    updated.id_source = None;
    publish(&bus, &updated).await;

    let used = format!("mesh_job_cpu_seconds_total{{{LABELS},kind=\"used\"}} 120");
    let page = exporter.wait_line("cluster", &used).await;
    for line in [
        format!("mesh_jobs_submitted_total{{{LABELS}}} 1"),
        format!("mesh_jobs_started_total{{{LABELS}}} 1"),
        format!("mesh_job_ends_total{{{LABELS},end=\"failed\"}} 1"),
        // All ends of a partition and account are series from the first job on.
        format!("mesh_job_ends_total{{{LABELS},end=\"node_fail\"}} 0"),
        // 4 CPUs and 8 GiB for a minute, of which 2 CPUs and 4 GiB were used.
        format!("mesh_job_cpu_seconds_total{{{LABELS},kind=\"allocated\"}} 240"),
        format!("mesh_job_memory_byte_seconds_total{{{LABELS},kind=\"used\"}} 257698037760"),
        format!("mesh_job_memory_byte_seconds_total{{{LABELS},kind=\"allocated\"}} 515396075520"),
        "mesh_job_wait_seconds_bucket{cluster=\"testbed\",partition=\"cpu\",qos=\"normal\",le=\"5\"} 0".to_owned(),
        "mesh_job_wait_seconds_bucket{cluster=\"testbed\",partition=\"cpu\",qos=\"normal\",le=\"15\"} 1".to_owned(),
        "mesh_job_wait_seconds_sum{cluster=\"testbed\",partition=\"cpu\",qos=\"normal\"} 10".to_owned(),
        "mesh_job_run_seconds_bucket{cluster=\"testbed\",partition=\"cpu\",le=\"60\"} 1".to_owned(),
    ] {
        assert!(page.lines().any(|found| found == line), "{line}\n{page}");
    }
    exporter.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_and_repeated_events_change_no_counter() {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let site = Site::new("batch_size = 3\n");
    let ends = [
        (EventType::JobCompleted, "COMPLETED"),
        (EventType::JobFailed, "FAILED"),
        (EventType::JobTimeout, "TIMEOUT"),
    ];
    let mut expected: BTreeMap<String, u32> = BTreeMap::new();
    let mut all = Vec::new();
    for id in 1..=60 {
        let (end, state) = ends[id as usize % ends.len()];
        *expected.entry(end.event().to_owned()).or_default() += 1;
        all.extend(life(id, end, state));
    }
    for events in all.chunks(36) {
        let exporter = site.start(&nats).await;
        for event in events {
            publish(&bus, event).await;
        }
        // Somewhere in the middle of its work.
        exporter.kill().await;
    }
    // A consumer that is made again delivers everything again, also after the deduplication window of the bus.
    bus.recreate_consumer(mesh_events::catalogue::SLURM_EVENTS, "exporter")
        .await
        .unwrap();
    let exporter = site.start(&nats).await;
    let started = format!("mesh_jobs_started_total{{{LABELS}}} 60");
    exporter.wait_line("cluster", &started).await;
    wait_until(
        "nothing is left to handle",
        crate::harness::DEADLINE,
        async || {
            let positions = bus
                .consumer_positions(mesh_events::catalogue::SLURM_EVENTS)
                .await
                .unwrap();
            let own = positions
                .iter()
                .find(|position| position.name == "exporter");
            own.is_some_and(|own| own.ack_floor == 180)
        },
    )
    .await;
    // One more event shows that the page is newer than all of them.
    publish(&bus, &job_event(EventType::JobSubmitted, job(61))).await;
    let submitted = format!("mesh_jobs_submitted_total{{{LABELS}}} 61");
    let page = exporter.wait_line("cluster", &submitted).await;
    for (end, number) in expected {
        let line = format!("mesh_job_ends_total{{{LABELS},end=\"{end}\"}} {number}");
        assert!(page.lines().any(|found| found == line), "{line}\n{page}");
    }
    assert!(page.contains(&started), "{page}");
    exporter.stop().await;
}
