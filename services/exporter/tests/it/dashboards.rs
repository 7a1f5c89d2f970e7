//! Every query of the dashboards and every recording rule, executed by a real Prometheus that scrapes the exporter's page.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use axum::Router;
use axum::routing::get;
use exporter::families::Family;
use exporter::refresh::pages;
use mesh_testkit::{DcgmExporter, Prometheus, wait_until};
use serde::Deserialize;

use crate::harness::DEADLINE;
use crate::promtool::inputs;

const DASHBOARDS: &str = include_str!("../../../../deploy/grafana/dashboards.toml");

#[derive(Deserialize)]
struct Source {
    dashboard: Vec<Dashboard>,
}

#[derive(Deserialize)]
struct Dashboard {
    title: String,
    panel: Vec<Panel>,
}

#[derive(Deserialize)]
struct Panel {
    title: String,
    queries: Vec<Query>,
    #[serde(default)]
    allowed_empty: bool,
}

#[derive(Deserialize)]
struct Query {
    expr: String,
}

/// Serves a page whose counters grow with each scrape. Returns its port.
async fn serve_page() -> u16 {
    let scrapes = Arc::new(AtomicI64::new(0));
    let page = async move || {
        let scale = scrapes.fetch_add(1, Ordering::Relaxed) + 1;
        let pages = pages(inputs(scale), &BTreeSet::from([Family::Cluster]));
        let text = pages["cluster"][&false].plain.clone();
        ([("content-type", "text/plain; version=0.0.4")], text)
    };
    let router = Router::new().route("/metrics/cluster", get(page));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    port
}

fn start(folder: &Path, target: u16, dcgm: &str) -> Prometheus {
    // Evaluated each minute in production.
    let rules = include_str!("../../../../deploy/compose/observability/kpis.yml");
    let fast = rules.replace("interval: 1m", "interval: 1s");
    std::fs::write(folder.join("kpis.yml"), fast).unwrap();
    let config = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [kpis.yml]\nscrape_configs:\n  - job_name: slurm-mesh-cluster\n    metrics_path: /metrics/cluster\n    static_configs: [{{ targets: [\"127.0.0.1:{target}\"] }}]\n  - job_name: dcgm\n    static_configs: [{{ targets: [{dcgm:?}] }}]\n"
    );
    std::fs::write(folder.join("prometheus.yml"), config).unwrap();
    Prometheus::start(folder)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_query_of_the_dashboards_has_a_result() {
    mesh_runtime::install_crypto_provider();
    let folder = tempfile::tempdir().unwrap();
    let dcgm = DcgmExporter::start("n1", folder.path(), &["0", "1"]).await;
    dcgm.set_use("1", 30.0);
    let prometheus = start(folder.path(), serve_page().await, &dcgm.address());
    let rules = [
        "mesh:cpu_efficiency:ratio_1d",
        "mesh:memory_waste:ratio_1d",
        "mesh:job_wait:p95_seconds_1d",
        "mesh:job_failure:ratio_1d",
        "mesh:nodes_impaired:ratio",
        "mesh:job_gpu_occupancy:ratio == 0.3",
        "mesh:gpu_occupancy:ratio == 0.3",
    ];
    for rule in rules {
        let description = format!("{rule} has a value");
        wait_until(&description, DEADLINE, async || {
            !prometheus.query(rule).await.unwrap().is_empty()
        })
        .await;
    }
    let efficiency = prometheus
        .query("mesh:cpu_efficiency:ratio_1d")
        .await
        .unwrap();
    let value: f64 = efficiency[0]["value"][1].as_str().unwrap().parse().unwrap();
    assert!((value - 0.75).abs() < 1e-9, "300 of 400 seconds: {value}");

    let source: Source = toml::from_str(DASHBOARDS).unwrap();
    let mut faults = Vec::new();
    for dashboard in &source.dashboard {
        for panel in &dashboard.panel {
            for query in &panel.queries {
                let expr = query
                    .expr
                    .replace("$__rate_interval", "1m")
                    .replace("$cluster", ".*");
                let place = format!("{} / {}: {expr}", dashboard.title, panel.title);
                // A scrape that takes longer than its time limit of a second leaves nothing until the next one.
                wait_until(&place, DEADLINE, async || {
                    match prometheus.query(&expr).await {
                        Err(error) => {
                            faults.push(format!("{place}: {error}"));
                            true
                        }
                        Ok(found) => panel.allowed_empty || !found.is_empty(),
                    }
                })
                .await;
            }
        }
    }
    assert_eq!(faults, Vec::<String>::new());
}
