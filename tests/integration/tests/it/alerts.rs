//! Which alert fires when a service is killed or stands still: the services as processes, and a real Prometheus with the rules of
//! deploy/compose. The durations after `for:` are seconds here instead of minutes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path as UrlPath, State};
use axum::http::StatusCode;
use axum::routing::get;
use integration::{Cluster, ClusterOptions, Error, Mesh, Service, wait_for};
use mesh_testkit::{NatsServer, Prometheus};
use rustix::process::Signal;
use tokio::sync::RwLock;

use crate::processes::{PATIENCE, configure, start};

const RULES: &str = include_str!("../../../../deploy/compose/observability/alerts.yml");

/// The services, and the source of which the exporter then knows nothing new.
const SERVICES: [(&str, Option<&str>); 8] = [
    ("ingest", Some("ingest")),
    ("node-watcher", Some("node-watcher")),
    ("cost-engine", None),
    ("ledger", None),
    ("webhook-dispatcher", None),
    ("pending-explainer", None),
    ("workflow-trigger", None),
    ("exporter", None),
];

type Services = Arc<BTreeMap<&'static str, RwLock<Service>>>;

/// Answers Prometheus for the services, whose sockets it cannot read.
async fn proxy(services: Services) -> u16 {
    async fn page(
        State(services): State<Services>,
        UrlPath((name, page)): UrlPath<(String, String)>,
    ) -> (StatusCode, String) {
        let Some(service) = services.get(name.as_str()) else {
            return (StatusCode::NOT_FOUND, String::new());
        };
        let path = match page.as_str() {
            "own" => "/metrics".to_owned(),
            page => format!("/metrics/{page}"),
        };
        let answer = service.read().await.get(&path).await;
        let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::BAD_GATEWAY);
        (status, answer.body)
    }
    let router = Router::new()
        .route("/{service}/{page}", get(page))
        .with_state(services);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    port
}

/// A Prometheus with the rules of alerts.
struct Alerts(Prometheus);

impl Alerts {
    fn start(folder: &Path, target: u16) -> Self {
        let mut rules = String::new();
        for line in RULES.lines() {
            let minutes = line.trim().strip_prefix("for: ");
            match minutes.and_then(|duration| duration.strip_suffix('m')) {
                Some(minutes) => rules.push_str(&format!("        for: {minutes}s\n")),
                None => rules.push_str(&format!("{line}\n")),
            }
        }
        std::fs::write(folder.join("alerts.yml"), rules).unwrap();
        let mut config = "global: { scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s }\nrule_files: [alerts.yml]\nscrape_configs:\n  - job_name: slurm-mesh\n    static_configs:\n".to_owned();
        for (name, _) in SERVICES {
            config.push_str(&format!("      - targets: [\"127.0.0.1:{target}\"]\n        labels: {{ __metrics_path__: /{name}/own, program: {name}, instance: {name} }}\n"));
        }
        config.push_str(&format!("  - job_name: slurm-mesh-cluster\n    metrics_path: /exporter/cluster\n    static_configs: [{{ targets: [\"127.0.0.1:{target}\"] }}]\n"));
        std::fs::write(folder.join("prometheus.yml"), config).unwrap();
        Self(Prometheus::start(folder))
    }

    /// Firing alerts, each with its program or source.
    async fn firing(&self) -> Result<BTreeSet<String>, String> {
        let found = self.0.query("ALERTS{alertstate=\"firing\"}").await?;
        let alert = |alert: &serde_json::Value| {
            let label = |name: &str| {
                alert["metric"][name]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned()
            };
            let of = ["program", "source"].map(label).concat();
            format!("{} {of}", label("alertname"))
        };
        Ok(found.iter().map(alert).collect())
    }

    async fn wait_for(&self, what: &str, mut is_as: impl FnMut(&BTreeSet<String>) -> bool) {
        let mut last = None;
        let waited = wait_for(what, PATIENCE, async || {
            last = Some(self.firing().await);
            let firing = last.as_ref().and_then(|firing| firing.as_ref().ok());
            Ok(firing.is_some_and(&mut is_as).then_some(()))
        });
        let waited = waited.await;
        waited.unwrap_or_else(|error| panic!("{error}: {last:?}"));
    }
}

/// Starts every service. Each is ready.
async fn start_all(mesh: &Mesh) -> Services {
    let mut services = BTreeMap::new();
    for (name, _) in SERVICES {
        let mut service = start(mesh, name).await;
        service.wait_ready(200).await.unwrap();
        services.insert(name, RwLock::new(service));
    }
    Arc::new(services)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_killed_or_stands_still_has_its_alert_and_no_other_service_has_one() {
    mesh_runtime::install_crypto_provider();
    let cluster = Cluster::start(&ClusterOptions {
        hooks: false,
        ..ClusterOptions::small("alerts")
    })
    .await
    .unwrap();
    let nats = NatsServer::start().await;
    let mesh = configure(
        &cluster,
        &nats,
        "[exporter]\nrefresh_interval = \"1s\"\nstale_after = \"30s\"\n",
    )
    .await;
    let services = start_all(&mesh).await;
    let folder = tempfile::tempdir().unwrap();
    let prometheus = Alerts::start(folder.path(), proxy(Arc::clone(&services)).await);
    let up = format!("count(up == 1) == {}", SERVICES.len() + 1);
    wait_for("everything is scraped", PATIENCE, async || {
        let found = prometheus.0.query(&up).await.ok();
        Ok::<_, Error>(found.filter(|found| !found.is_empty()).map(drop))
    })
    .await
    .unwrap();
    // What happens at the start, such as the first election, is over.
    prometheus
        .wait_for("nothing fires", BTreeSet::is_empty)
        .await;

    for (name, source) in SERVICES {
        for is_killed in [true, false] {
            let service = &services[name];
            match is_killed {
                true => service.write().await.kill().await.unwrap(),
                false => service.read().await.signal(Signal::STOP).unwrap(),
            }
            let what = if is_killed { "killed" } else { "stopped" };
            let down = format!("SlurmMeshServiceDown {name}");
            // Old snapshots are looked for once: by the one that is killed, and by the one that stands still.
            let stale = source.filter(|source| (*source == "ingest") == is_killed);
            let stale = stale.map(|source| format!("SlurmMeshSourceStale {source}"));
            let mut seen = BTreeSet::new();
            prometheus
                .wait_for(&format!("alerts of {name}, which is {what}"), |firing| {
                    seen.extend(firing.iter().cloned());
                    let has_stale = stale.as_ref().is_none_or(|stale| firing.contains(stale));
                    firing.contains(&down) && has_stale
                })
                .await;
            for alert in &seen {
                let is_own = alert.ends_with(&format!(" {name}"));
                // Has no program: it is about the mesh.
                let is_about_others = SERVICES
                    .iter()
                    .any(|(other, _)| *other != name && alert.ends_with(&format!(" {other}")));
                assert!(is_own || !is_about_others, "{name} {what}: {seen:?}");
            }
            match is_killed {
                true => *service.write().await = start(&mesh, name).await,
                false => service.read().await.signal(Signal::CONT).unwrap(),
            }
            service.write().await.wait_ready(200).await.unwrap();
            prometheus
                .wait_for(
                    &format!("nothing fires after {name} is back"),
                    BTreeSet::is_empty,
                )
                .await;
        }
    }
}
