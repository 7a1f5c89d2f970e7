//! A nats-server for one test.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::Port;

/// Deadline of a start.
const PATIENCE: Duration = Duration::from_secs(60);

/// A nats-server with JetStream on its own port, durable as in production. Killed on drop.
pub struct NatsServer {
    child: Option<Child>,
    port: Port,
    /// Port for cluster routes, held so that no other process takes it.
    route: Option<Port>,
    folder: TempDir,
}

impl NatsServer {
    /// Starts a server on a free port.
    ///
    /// # Panics
    /// If there is no nats-server, with the command that installs one.
    pub async fn start() -> Self {
        Self::start_with("").await
    }

    /// Starts a server with additional lines of configuration, e.g. users.
    ///
    /// # Panics
    /// If there is no nats-server, with the command that installs one.
    pub async fn start_with(configuration: &str) -> Self {
        let mut server = Self::new();
        server.configure(configuration);
        server.spawn().await;
        server
    }

    /// Starts a server that stores its streams in a folder of the caller's.
    ///
    /// # Panics
    /// If there is no nats-server, with the command that installs one.
    pub async fn start_with_streams_at(folder: &Path) -> Self {
        let mut server = Self::new();
        server.write_configuration(folder, "");
        server.spawn().await;
        server
    }

    fn new() -> Self {
        Self {
            child: None,
            port: Port::take(),
            route: None,
            folder: tempfile::tempdir().expect("a temporary folder"),
        }
    }

    /// Replaces the additional lines of configuration; they take effect at the next start.
    pub fn configure(&self, configuration: &str) {
        self.write_configuration(self.folder.path(), configuration);
    }

    fn write_configuration(&self, streams: &Path, configuration: &str) {
        let text = format!(
            "listen: \"{}\"\njetstream {{ store_dir: {streams:?}, sync_interval: always, max_file_store: 20GB }}\n{configuration}\n",
            self.port.address(),
        );
        std::fs::write(self.folder.path().join("nats.conf"), text).expect("write nats.conf");
    }

    /// Starts a cluster of servers that share their streams; with a count of one as [`NatsServer::start`].
    ///
    /// # Panics
    /// If there is no nats-server, with the command that installs one.
    pub async fn start_cluster(count: usize) -> Vec<Self> {
        if count == 1 {
            return vec![Self::start().await];
        }
        let routes: Vec<Port> = (0..count).map(|_| Port::take()).collect();
        let all: Vec<String> = routes
            .iter()
            .map(|port| format!("nats://{}", port.address()))
            .collect();
        let mut servers = Vec::new();
        for (n, route) in routes.into_iter().enumerate() {
            let (listen, all) = (route.address(), all.join(", "));
            let mut server = Self::start_with(&format!(
                "server_name: n{n}\ncluster {{ name: mesh, listen: \"{listen}\", routes: [{all}] }}"
            ))
            .await;
            server.route = Some(route);
            servers.push(server);
        }
        servers
    }

    /// Client addresses of all of these servers.
    pub fn urls(servers: &[Self]) -> String {
        let urls: Vec<String> = servers.iter().map(Self::url).collect();
        urls.join(",")
    }

    /// Address for clients.
    pub fn url(&self) -> String {
        format!("nats://{}", self.port.address())
    }

    /// Id of its process; `None` while it is killed.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Stops it (SIGSTOP), and returns once none of its threads runs. It accepts connections and answers nothing.
    ///
    /// # Panics
    /// If it is killed already, or does not stop within ten seconds.
    pub fn pause(&self) {
        self.signal("-STOP");
        let began = Instant::now();
        while !self.stands_still() {
            assert!(began.elapsed() < Duration::from_secs(10), "it runs on");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// True if each of its threads is stopped, according to proc(5).
    fn stands_still(&self) -> bool {
        let threads = format!("/proc/{}/task", self.pid().expect("it runs"));
        let mut threads = std::fs::read_dir(threads).expect("its threads").flatten();
        threads.all(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat"));
            // The state follows the name, which is in parentheses.
            stat.is_ok_and(|stat| {
                let state = stat.rsplit(')').next();
                state.is_some_and(|state| state.starts_with(" T"))
            })
        })
    }

    /// Lets it go on after [`Self::pause`].
    ///
    /// # Panics
    /// If it is killed.
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let pid = self.pid().expect("it runs").to_string();
        let sent = Command::new("kill").args([signal, &pid]).status();
        assert!(sent.expect("kill").success(), "kill {signal} {pid}");
    }

    /// Its `store_dir`, unless the caller named one.
    pub fn store(&self) -> &Path {
        self.folder.path()
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
        self.spawn().await;
    }

    /// Returns once it listens, which is the last step of its start.
    async fn spawn(&mut self) {
        let log_path = self.folder.path().join("nats.log");
        let log = std::fs::File::create(&log_path).expect("create log");
        let child = Command::new(nats_server())
            .arg("-c")
            .arg(self.folder.path().join("nats.conf"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("start nats-server");
        let child = self.child.insert(child);
        let start = Instant::now();
        while tokio::net::TcpStream::connect(self.port.address())
            .await
            .is_err()
        {
            let ended = child.try_wait().expect("look at nats-server");
            assert!(
                ended.is_none() && start.elapsed() < PATIENCE,
                "nats-server did not start:\n{}",
                std::fs::read_to_string(&log_path).unwrap_or_default()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The nats-server to use: `NATS_SERVER_BIN`, else what `scripts/nats-server` finds or fetches.
///
/// # Panics
/// If there is none.
pub fn nats_server() -> PathBuf {
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
