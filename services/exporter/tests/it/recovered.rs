//! After the recovery of a damaged file the counters are those of the bus, and the next events count on.

use std::fs;

use mesh_events::EventType;
use mesh_testkit::fixtures::{ended, job, job_event};
use mesh_testkit::{NatsServer, wait_until};

use crate::harness::{Site, bus, publish};

const LABELS: &str = "cluster=\"testbed\",partition=\"cpu\",account=\"physics\"";

fn submitted(count: u32) -> String {
    format!("mesh_jobs_submitted_total{{{LABELS}}} {count}")
}

/// The lines of counters, which no refresh changes without an event.
fn counters(page: &str) -> Vec<String> {
    let lines = page.lines().filter(|line| line.contains("_total{"));
    lines.map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_of_a_damaged_file_are_those_of_the_bus() {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let site = Site::new("");
    let exporter = site.start(&nats).await;
    for id in 1..=20 {
        publish(&bus, &job_event(EventType::JobSubmitted, job(id))).await;
        publish(&bus, &job_event(EventType::JobStarted, job(id))).await;
    }
    let end = |id| job_event(EventType::JobFailed, ended(job(id), "FAILED", 60));
    publish(&bus, &end(1)).await;
    let failed = format!("mesh_job_ends_total{{{LABELS},end=\"failed\"}} 1");
    let before = counters(&exporter.wait_line("cluster", &failed).await);
    assert!(before.contains(&submitted(20)), "{before:?}");
    exporter.stop().await;

    // Once a page whose rows are lost, once the whole file.
    for first in [4096, 0] {
        let file = site.path("exporter.db");
        let mut bytes = fs::read(&file).unwrap();
        bytes[first..].fill(0xAA);
        fs::write(&file, bytes).unwrap();
        let suffix = format!("damaged-{first}");
        let recovered = mesh_db::damage::recover(&file, &suffix, exporter::prepare_file).await;
        recovered.unwrap();
        let exporter = site.start(&nats).await;
        let after = counters(&exporter.wait_line("cluster", &failed).await);
        assert_eq!(after, before);
        let marker = site.path("exporter.db.recovered");
        wait_until("it is done once", crate::harness::DEADLINE, async || {
            !marker.exists()
        })
        .await;
        exporter.stop().await;
    }
    let exporter = site.start(&nats).await;
    publish(&bus, &job_event(EventType::JobSubmitted, job(21))).await;
    exporter.wait_line("cluster", &submitted(21)).await;
    exporter.stop().await;
}
