//! Traces behind the buckets of histograms: the exporter's page and the process's own metrics, read by a real Prometheus.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path as UrlPath, State};
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::response::IntoResponse;
use axum::routing::get;
use mesh_events::EventType;
use mesh_runtime::TelemetryConfig;
use mesh_runtime::api::{OPENMETRICS, PROMETHEUS_TEXT, Role, accepts_openmetrics};
use mesh_runtime::telemetry::{self, ProcessMetrics};
use mesh_testkit::fixtures::{ended, job, job_event};
use mesh_testkit::{NatsServer, Prometheus, wait_until};
use tracing::Instrument as _;

use crate::harness::{DEADLINE, Exporter, Site, bus, publish};

const WAITS: &str =
    "mesh_job_wait_seconds_bucket{cluster=\"testbed\",partition=\"cpu\",qos=\"normal\",le=\"15\"}";
const OWN: &str = "test_latency_seconds_bucket{of=\"test\",le=\"0.5\"}";

#[derive(Clone)]
struct Targets {
    exporter: Arc<Exporter>,
    own: ProcessMetrics,
}

/// Answers Prometheus in the format that it prefers.
async fn scrape(
    State(targets): State<Targets>,
    UrlPath(page): UrlPath<String>,
    headers: HeaderMap,
) -> impl IntoResponse {
    let accepts = accepts_openmetrics(&headers);
    let format = if accepts {
        OPENMETRICS
    } else {
        PROMETHEUS_TEXT
    };
    let text = match page.as_str() {
        "own" if accepts => targets.own.openmetrics(),
        "own" => targets.own.text(),
        page => {
            let accept = headers[ACCEPT].to_str().unwrap();
            targets.exporter.get(page, Role::Metrics, accept).await.1
        }
    };
    ([(CONTENT_TYPE, format)], text)
}

async fn serve(targets: Targets) -> u16 {
    let router = Router::new()
        .route("/{page}", get(scrape))
        .with_state(targets);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    port
}

/// Publishes events of a job, and records a latency, within a new trace. Returns its id.
async fn traced(bus: &mesh_bus::Bus, id: u32, latency: f64) -> String {
    let work = async {
        publish(bus, &job_event(EventType::JobStarted, job(id))).await;
        let end = ended(job(id), "COMPLETED", 60);
        publish(bus, &job_event(EventType::JobCompleted, end)).await;
        metrics::histogram!("test_latency_seconds", "of" => "test").record(latency);
        mesh_bus::trace::traceparent().unwrap()
    };
    let traceparent = work.instrument(tracing::info_span!("test")).await;
    traceparent.split('-').nth(1).unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_reads_the_newest_trace_of_each_bucket() {
    mesh_runtime::install_crypto_provider();
    // Nobody listens there: what is exported is lost, and every trace counts as exported.
    let config = "log_format = 'human'\nlog_filter = 'off'\notlp_endpoint = 'http://127.0.0.1:9'\notlp_signals = ['traces']\notlp_metrics_interval = '1m'\nsample_ratio = 1.0\n";
    let config: TelemetryConfig = toml::from_str(config).unwrap();
    let telemetry = telemetry::init("exporter", &config).unwrap();
    let nats = NatsServer::start().await;
    let bus = bus(&nats).await;
    let site = Site::new("");
    let exporter = Arc::new(site.start(&nats).await);
    // Without a trace.
    publish(&bus, &job_event(EventType::JobStarted, job(1))).await;
    exporter.wait_line("cluster", &format!("{WAITS} 1")).await;
    traced(&bus, 2, 0.3).await;
    let new = traced(&bus, 3, 0.4).await;
    exporter.wait_line("cluster", &format!("{WAITS} 3")).await;

    let targets = Targets {
        exporter: Arc::clone(&exporter),
        own: telemetry.metrics.clone(),
    };
    let folder = tempfile::tempdir().unwrap();
    let port = serve(targets).await;
    let config = format!(
        "global: {{ scrape_interval: 1s }}\nscrape_configs:\n  - job_name: cluster\n    metrics_path: /cluster\n    static_configs: [{{ targets: [\"127.0.0.1:{port}\"] }}]\n  - job_name: own\n    metrics_path: /own\n    static_configs: [{{ targets: [\"127.0.0.1:{port}\"] }}]\n"
    );
    std::fs::write(folder.path().join("prometheus.yml"), config).unwrap();
    let prometheus = Prometheus::start(folder.path());
    for (series, value) in [(WAITS, "10"), (OWN, "0.4")] {
        let mut newest = None;
        wait_until(series, DEADLINE, async || {
            newest = prometheus.exemplars(series).await.pop();
            let trace = newest.as_ref().map(|newest| &newest["labels"]["trace_id"]);
            trace.is_some_and(|trace| *trace == new.as_str())
        })
        .await;
        assert_eq!(newest.unwrap()["value"], value);
    }
    // The format without exemplars has none, and the values agree.
    let text = exporter.page("cluster").await;
    assert!(
        text.contains(&format!("{WAITS} 3\n")) && !text.contains("trace_id"),
        "{text}"
    );
}
