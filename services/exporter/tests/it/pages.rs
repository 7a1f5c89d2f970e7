//! Who may read what, and what is shown of which snapshot.

use axum::http::StatusCode;
use chrono::{TimeDelta, Utc};
use mesh_runtime::api::Role;
use mesh_testkit::NatsServer;

use crate::harness::{Site, bus, cell, node, write_jobs, write_nodes};

#[tokio::test(flavor = "multi_thread")]
async fn only_certain_roles_read_and_each_gets_the_format_it_asked_for() {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let site = Site::new("families = [\"cluster\"]\n");
    let exporter = site.start(&nats).await;
    write_jobs(&bus, Utc::now(), vec![cell("physics", "RUNNING", "", 2)]).await;
    exporter
        .wait_line(
            "cluster",
            "mesh_source_up{cluster=\"testbed\",source=\"ingest\"} 1",
        )
        .await;
    let accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
    let (status, text) = exporter.get("cluster", Role::Metrics, accept).await;
    assert!(status.is_success() && text.ends_with("# EOF\n"), "{text}");
    let (status, text) = exporter.get("cluster", Role::Admin, "*/*").await;
    assert!(status.is_success() && !text.contains("# EOF"), "{text}");
    let (status, _) = exporter.get("cluster", Role::User, "*/*").await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    let (status, text) = exporter.get("vpenso", Role::Metrics, "*/*").await;
    assert_eq!(status, StatusCode::NOT_FOUND, "{text}");
    exporter.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gauges_of_a_stale_source_disappear_and_counters_stay() {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let site = Site::new("");
    let exporter = site.start(&nats).await;
    let old = Utc::now() - TimeDelta::minutes(4);
    write_jobs(&bus, old, vec![cell("physics", "RUNNING", "", 2)]).await;
    write_nodes(&bus, Utc::now(), vec![node("n1", "MIXED", "active", 4)]).await;
    let page = exporter
        .wait_line(
            "cluster",
            "mesh_source_up{cluster=\"testbed\",source=\"node-watcher\"} 1",
        )
        .await;
    assert!(
        page.contains("mesh_source_up{cluster=\"testbed\",source=\"ingest\"} 0"),
        "{page}"
    );
    assert!(!page.contains("mesh_jobs{"), "{page}");
    assert!(
        page.contains("mesh_cpus{cluster=\"testbed\",use=\"allocated\"} 4"),
        "{page}"
    );
    assert_eq!(exporter.page("jobs").await, "");
    assert!(exporter.page("nodes").await.contains("slurm_nodes_mixed 1"));

    write_jobs(&bus, Utc::now(), vec![cell("physics", "RUNNING", "", 2)]).await;
    exporter
        .wait_line(
            "cluster",
            "mesh_jobs{cluster=\"testbed\",partition=\"cpu\",state=\"RUNNING\"} 4",
        )
        .await;
    exporter.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_the_limit_the_smallest_accounts_are_added_up() {
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let site = Site::new("max_series = 1000\n");
    let exporter = site.start(&nats).await;
    let cells = (1..=500).map(|n| cell(&format!("a{n:03}"), "RUNNING", "", n));
    write_jobs(&bus, Utc::now(), cells.collect()).await;
    let total = "mesh_jobs{cluster=\"testbed\",partition=\"cpu\",state=\"RUNNING\"} 250500";
    let page = exporter.wait_line("cluster", total).await;
    let accounts: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with("mesh_account_jobs{"))
        .collect();
    assert_eq!(accounts.len(), 100);
    let sum: u64 = accounts
        .iter()
        .map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap())
        .sum();
    assert_eq!(sum, 250_500, "nothing is lost");
    assert!(
        page.contains("mesh_exporter_folded_series{cluster=\"testbed\",page=\"cluster\"} 2005"),
        "{page}"
    );
    let native = exporter.page("jobs-users-accts").await;
    assert!(native.lines().filter(|line| !line.starts_with('#')).count() <= 1_000);
    exporter.stop().await;
}
