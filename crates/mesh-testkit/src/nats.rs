//! A nats-server of a test's own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A nats-server with JetStream on a port of its own, durable as in production. Killed on drop.
pub struct NatsServer {
    child: Option<Child>,
    port: u16,
    folder: TempDir,
}

impl NatsServer {
    /// Starts a server on a free port.
    ///
    /// # Panics
    /// If there is no nats-server, with the command that gets one.
    pub async fn start() -> Self {
        Self::start_with("").await
    }

    /// Starts a server with more lines of configuration, e.g. users.
    ///
    /// # Panics
    /// If there is no nats-server, with the command that gets one.
    pub async fn start_with(configuration: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let text = format!(
            "listen: \"127.0.0.1:-1\"\nports_file_dir: {0:?}\njetstream {{ store_dir: {0:?}, sync_interval: always, max_file_store: 20GB }}\n{configuration}\n",
            folder.path()
        );
        std::fs::write(folder.path().join("nats.conf"), text).expect("write nats.conf");
        let mut server = Self {
            child: None,
            port: 0,
            folder,
        };
        server.spawn();
        server.port = server.wait_for_port().await;
        server
    }

    /// Address for clients.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// A configuration for [`mesh_bus::Config`]-like readers: `url = "…"`.
    pub fn toml(&self) -> String {
        format!("url = \"{}\"\n", self.url())
    }

    /// Ends the server as a power cut would; its data stays.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("kill nats-server");
            child.wait().expect("wait for nats-server");
        }
    }

    /// Starts the killed server again on the same port and data.
    pub async fn restart(&mut self) {
        self.kill();
        let configuration = self.folder.path().join("nats.conf");
        let text = std::fs::read_to_string(&configuration).expect("read nats.conf");
        let fixed = text.replacen("127.0.0.1:-1", &format!("127.0.0.1:{}", self.port), 1);
        std::fs::write(&configuration, fixed).expect("write nats.conf");
        self.spawn();
        self.wait_for_port().await;
    }

    fn spawn(&mut self) {
        for entry in std::fs::read_dir(self.folder.path()).expect("read folder") {
            let path = entry.expect("read folder").path();
            if path
                .extension()
                .is_some_and(|extension| extension == "ports")
            {
                std::fs::remove_file(path).expect("remove old ports file");
            }
        }
        let log = std::fs::File::create(self.folder.path().join("nats.log")).expect("create log");
        let child = Command::new(binary())
            .arg("-c")
            .arg(self.folder.path().join("nats.conf"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("start nats-server");
        self.child = Some(child);
    }

    /// The server writes its ports into a file once it listens.
    async fn wait_for_port(&self) -> u16 {
        let start = Instant::now();
        loop {
            if let Some(port) = self.port_from_file()
                && tokio::net::TcpStream::connect(("127.0.0.1", port))
                    .await
                    .is_ok()
            {
                return port;
            }
            let log =
                || std::fs::read_to_string(self.folder.path().join("nats.log")).unwrap_or_default();
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "nats-server did not start:\n{}",
                log()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn port_from_file(&self) -> Option<u16> {
        let files = std::fs::read_dir(self.folder.path()).ok()?;
        let path = files
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|e| e == "ports"))?;
        let ports: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()?;
        ports["nats"][0].as_str()?.rsplit(':').next()?.parse().ok()
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The nats-server to use: `NATS_SERVER_BIN`, else what `scripts/nats-server` finds or fetches.
fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("NATS_SERVER_BIN") {
        return path.into();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(root.join("scripts/nats-server"))
        .current_dir(&root)
        .output()
        .expect("run scripts/nats-server");
    assert!(
        output.status.success(),
        "no nats-server: run `make setup`, or set NATS_SERVER_BIN\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    if path.is_absolute() {
        path
    } else {
        root.join(path)
    }
}
