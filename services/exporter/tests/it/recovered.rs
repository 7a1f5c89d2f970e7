//! After the recovery of a damaged file the counters are those of the bus, and the next events count on.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

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

/// A server that never answers requests to delete a consumer.
const NO_DELETION: &str = r#"
no_auth_user: site
authorization { users: [{ user: site, password: site, permissions: { publish: { deny: ["$JS.API.CONSUMER.DELETE.>"] } } }] }
"#;

/// True once the marker is gone. False if it stays for longer than a request takes.
async fn wait_some_attempts(marker: &Path) -> bool {
    let end = Instant::now() + Duration::from_secs(20);
    while marker.exists() && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    !marker.exists()
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_of_a_damaged_file_are_those_of_the_bus() {
    let mut nats = NatsServer::start().await;
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

    // At first the old consumer cannot be deleted.
    nats.configure(NO_DELETION);
    nats.restart().await;
    let file = site.path("exporter.db");
    let marker = site.path("exporter.db.recovered");
    fs::write(&file, [0xAA; 4096]).unwrap();
    let recovered = mesh_db::damage::recover(&file, "kept", exporter::prepare_file).await;
    recovered.unwrap();
    let exporter = site.start(&nats).await;
    let is_cleared = wait_some_attempts(&marker).await;
    assert!(!is_cleared, "its events would never be counted");
    nats.configure("");
    nats.restart().await;
    let after = counters(&exporter.wait_line("cluster", &failed).await);
    assert_eq!(after, before);
    assert!(!marker.exists());
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
