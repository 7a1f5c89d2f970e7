//! A ledger as a process.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mesh_testkit::fixtures::CLUSTER;
use mesh_testkit::{NatsServer, wait_until};
use serde_json::Value;
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

use super::{DEADLINE, Database};

/// `mesh.drain_deadline`. Longer than its default: a stop that takes most of the time by design must be in time on a busy machine too.
const DRAIN_DEADLINE: Duration = Duration::from_secs(40);

/// The service's binary, running on a database.
pub struct Process {
    folder: TempDir,
    child: Option<Child>,
    http: reqwest::Client,
}

impl Process {
    pub async fn start(nats: &NatsServer, database: &Database) -> Self {
        Self::start_with(nats, database, "", "").await
    }

    /// Starts it with additional lines in `[mesh]` and in other sections.
    pub async fn start_with(
        nats: &NatsServer,
        database: &Database,
        mesh: &str,
        more: &str,
    ) -> Self {
        let process = Self::spawn_with(nats, &database.url, mesh, more);
        process
            .until("ready", async |process| {
                process.get("/readyz").await.is_some()
            })
            .await;
        process
    }

    /// Starts it with additional configuration, without waiting.
    pub fn spawn(nats: &NatsServer, url: &str, configuration: &str) -> Self {
        Self::spawn_with(nats, url, "", configuration)
    }

    /// As [`Self::start_with`], without waiting.
    pub fn spawn_with(nats: &NatsServer, url: &str, mesh: &str, more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("ledger.sock");
        let drain = match mesh.contains("drain_deadline") {
            true => String::new(),
            false => format!("drain_deadline = \"{}s\"\n", DRAIN_DEADLINE.as_secs()),
        };
        let config = format!(
            "[mesh]\ncluster = {CLUSTER:?}\ndata_dir = {:?}\n{drain}{mesh}[mesh.nats]\nurl = {:?}\n[ledger]\nbatch_size = 100\n[ledger.db]\nurl = {url:?}\n{more}\n",
            folder.path(),
            nats.url()
        );
        mesh_testkit::write_private(&folder.path().join("mesh.toml"), config);
        mesh_runtime::install_crypto_provider();
        let http = reqwest::Client::builder()
            .unix_socket(socket)
            .pool_max_idle_per_host(0)
            .build()
            .unwrap();
        let mut process = Self {
            folder,
            child: None,
            http,
        };
        process.restart();
        process
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("ledger.log")).unwrap_or_default()
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Sends SIGTERM, and checks that it ends in time and successfully.
    pub async fn stop(&mut self) {
        self.stop_within(DRAIN_DEADLINE).await;
    }

    /// As [`Self::stop`], with another `mesh.drain_deadline`.
    pub async fn stop_within(&mut self, deadline: Duration) {
        let mut child = self.child.take().unwrap();
        let pid = child.id().to_string();
        let start = Instant::now();
        let found = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(found.unwrap().success());
        let mut status = None;
        wait_until("it ends", DEADLINE, async || {
            status = child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        let elapsed = start.elapsed();
        assert!(status.unwrap().success(), "{status:?}\n{}", self.log());
        assert!(elapsed < deadline, "{elapsed:?}\n{}", self.log());
    }

    /// Uses another database from the next start on.
    pub fn restore_backup(&self, from: &Database, to: &Database) {
        let path = self.folder.path().join("mesh.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        let url = |database: &Database| format!("url = {:?}", database.url);
        std::fs::write(path, text.replace(&url(from), &url(to))).unwrap();
    }

    pub fn data_dir(&self) -> &Path {
        self.folder.path()
    }

    /// Adds lines to its configuration for the next start.
    pub fn configure(&self, more: &str) {
        let path = self.folder.path().join("mesh.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, format!("{text}{more}\n")).unwrap();
    }

    pub fn restart(&mut self) {
        self.kill();
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.path().join("ledger.log"))
            .unwrap();
        // A write beyond a limit of limit_files() must fail instead of killing the process.
        let child = Command::new("sh")
            .args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"])
            .arg(env!("CARGO_BIN_EXE_ledger"))
            .arg("--config")
            .arg(self.folder.path().join("mesh.toml"))
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    /// Limits the size of files that the process writes, in bytes, to simulate a full disk. `None`
    /// removes the limit.
    pub fn limit_files(&self, bytes: Option<u64>) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        let soft = bytes.map_or_else(|| "unlimited".to_owned(), |bytes| bytes.to_string());
        // The colon leaves the hard limit unchanged, so that the soft limit can be raised again.
        let status = Command::new("prlimit")
            .args(["--pid", &pid, &format!("--fsize={soft}:")])
            .status()
            .expect("prlimit, of the package util-linux");
        assert!(status.success());
    }

    /// Creates a request as root.
    pub fn request(&self, path: &str) -> reqwest::RequestBuilder {
        self.http.get(format!("http://ledger{path}"))
    }

    /// Connects to its gRPC API as root.
    pub async fn channel(&self) -> Channel {
        let socket = self.folder.path().join("ledger.sock");
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
        endpoint.connect().await.unwrap()
    }

    /// Returns the body, or `None` unless the request succeeds.
    pub async fn get(&self, path: &str) -> Option<String> {
        let answer = self.request(path).send().await.ok()?;
        if !answer.status().is_success() {
            return None;
        }
        answer.text().await.ok()
    }

    pub async fn json(&self, path: &str) -> Option<Value> {
        serde_json::from_str(&self.get(path).await?).ok()
    }

    /// Sends JSON. Returns the response with any status, or `None` if there is none.
    pub async fn post(&self, path: &str, body: &Value) -> Option<Value> {
        let request = self.http.post(format!("http://ledger{path}"));
        let answer = request.body(body.to_string()).send().await.ok()?;
        serde_json::from_str(&answer.text().await.ok()?).ok()
    }

    pub async fn head(&self) -> Option<u64> {
        self.json("/v1/ledger/head").await?["seq"].as_u64()
    }

    pub async fn until(&self, description: &str, mut condition: impl AsyncFnMut(&Self) -> bool) {
        let result = tokio::time::timeout(
            DEADLINE,
            wait_until(description, DEADLINE * 2, async || condition(self).await),
        )
        .await;
        assert!(result.is_ok(), "not in time: {description}\n{}", self.log());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
