//! Which job has which GPU: one series per GPU while the job runs, and never more than the page may have.

use chrono::Utc;
use mesh_events::EventType;
use mesh_events::proto::mesh::job::v1::{Job, NodeAllocation};
use mesh_testkit::NatsServer;
use mesh_testkit::fixtures::{ended, job, job_event};

use crate::harness::{Exporter, Site, bus, cell, publish, write_jobs};

fn with_gpus(id: u32, nodes: &str, indices: &[u32]) -> Job {
    Job {
        allocations: vec![NodeAllocation {
            nodes: nodes.into(),
            gpu_indices: indices.to_vec(),
            ..NodeAllocation::default()
        }],
        ..job(id)
    }
}

fn series(node: &str, gpu: u32, id: u32) -> String {
    format!(
        "mesh_job_gpu_info{{cluster=\"testbed\",node=\"{node}\",gpu=\"{gpu}\",job_id=\"{id}\",partition=\"cpu\",account=\"physics\"}} 1"
    )
}

fn count(page: &str) -> usize {
    let lines = page.lines();
    lines
        .filter(|line| line.starts_with("mesh_job_gpu_info{"))
        .count()
}

/// Waits until the page shows that everything before was counted.
async fn wait_started(exporter: &Exporter, number: u32) -> String {
    let line = format!(
        "mesh_jobs_started_total{{cluster=\"testbed\",partition=\"cpu\",account=\"physics\"}} {number}"
    );
    exporter.wait_line("cluster", &line).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_job_has_a_series_for_each_gpu_also_after_a_restart() {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let site = Site::new("");
    let exporter = site.start(&nats).await;
    write_jobs(&bus, Utc::now(), vec![cell("physics", "RUNNING", "", 2)]).await;
    publish(
        &bus,
        &job_event(EventType::JobStarted, with_gpus(1, "n3", &[0, 2])),
    )
    .await;
    publish(
        &bus,
        &job_event(EventType::JobStarted, with_gpus(2, "n[4-5]", &[1])),
    )
    .await;
    publish(&bus, &job_event(EventType::JobStarted, job(3))).await;
    let page = wait_started(&exporter, 3).await;
    let expected = [
        series("n3", 0, 1),
        series("n3", 2, 1),
        series("n4", 1, 2),
        series("n5", 1, 2),
    ];
    for line in &expected {
        assert!(page.lines().any(|found| found == line), "{line}\n{page}");
    }
    assert_eq!(count(&page), expected.len(), "{page}");
    exporter.stop().await;

    let exporter = site.start(&nats).await;
    exporter.wait_line("cluster", &expected[0]).await;
    let end = ended(with_gpus(1, "n3", &[0, 2]), "COMPLETED", 60);
    publish(&bus, &job_event(EventType::JobCompleted, end)).await;
    publish(&bus, &job_event(EventType::JobStarted, job(4))).await;
    let page = wait_started(&exporter, 4).await;
    assert!(
        !page.contains(&expected[0]) && page.contains(&expected[2]),
        "{page}"
    );
    exporter.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_has_no_more_of_them_than_a_quarter_of_its_series() {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let site = Site::new("max_series = 1000\n");
    let exporter = site.start(&nats).await;
    write_jobs(&bus, Utc::now(), vec![cell("physics", "RUNNING", "", 2)]).await;
    for id in 1..=30 {
        let indices: Vec<u32> = (0..10).collect();
        publish(
            &bus,
            &job_event(EventType::JobStarted, with_gpus(id, "n3", &indices)),
        )
        .await;
    }
    let page = wait_started(&exporter, 30).await;
    assert_eq!(count(&page), 250, "{page}");
    let folded = "mesh_exporter_folded_series{cluster=\"testbed\",page=\"cluster\"} 50";
    assert!(page.lines().any(|line| line == folded), "{page}");
    exporter.stop().await;
}
