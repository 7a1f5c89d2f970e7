//! A real Prometheus.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::process::{Child, Command};

use crate::{Port, wait_for};

/// Time limit of its start.
const START_DEADLINE: Duration = Duration::from_secs(30);

/// A Prometheus, killed when dropped.
pub struct Prometheus {
    address: String,
    _port: Port,
    _child: Child,
}

impl Prometheus {
    /// Starts a Prometheus with the `prometheus.yml` of the folder, where it also stores its data.
    ///
    /// # Panics
    /// If it is not installed.
    pub fn start(folder: &Path) -> Self {
        let port = Port::take();
        let address = port.address().to_string();
        let child = Command::new("prometheus")
            .current_dir(folder)
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=tsdb"])
            .arg("--enable-feature=exemplar-storage")
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("prometheus is missing: run scripts/setup");
        Self {
            address,
            _port: port,
            _child: child,
        }
    }

    /// The results of a query. While Prometheus starts, it refuses connections, then answers 503 with a line of text.
    ///
    /// # Errors
    /// Why Prometheus refuses the query.
    ///
    /// # Panics
    /// If it does not start in time.
    pub async fn query(&self, expr: &str) -> Result<Vec<Value>, String> {
        let answer = self.ask("query", &[("query", expr)]).await;
        match &answer["data"]["result"] {
            Value::Array(found) => Ok(found.clone()),
            _ => Err(answer["error"].to_string()),
        }
    }

    /// The exemplars of a series.
    ///
    /// # Panics
    /// If Prometheus does not start in time.
    pub async fn exemplars(&self, series: &str) -> Vec<Value> {
        let times = [("start", "0"), ("end", "9999999999")];
        let parameters = [&[("query", series)][..], &times].concat();
        let answer = self.ask("query_exemplars", &parameters).await;
        let series = answer["data"].as_array().into_iter().flatten();
        let exemplars = series.filter_map(|series| series["exemplars"].as_array());
        exemplars.flatten().cloned().collect()
    }

    async fn ask(&self, path: &str, parameters: &[(&str, &str)]) -> Value {
        let url = format!("http://{}/api/v1/{path}", self.address);
        let client = reqwest::Client::new();
        wait_for("Prometheus is ready", START_DEADLINE, async || {
            let request = client.get(&url).query(parameters);
            request.send().await.ok()?.json().await.ok()
        })
        .await
    }
}
