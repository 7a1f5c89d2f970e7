//! A mesh per test: a slurm.conf without a Slurm, `smesh init`, `smesh up`.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Deadline of the tests for things that take about a second.
pub const TIMEOUT: Duration = Duration::from_secs(120);

pub const SLURM_CONF: &str = "ClusterName=testbed\nSlurmctldHost=nowhere(127.0.0.1)\nSlurmctldPort=1\nSlurmUser=daemon\nAuthType=auth/munge\n\
    NodeName=n[1-4] CPUs=4 RealMemory=8000 Gres=gpu:a100:2\n";

pub struct Mesh {
    pub folder: TempDir,
    up: Option<Child>,
}

impl Mesh {
    /// Writes slurm.conf and mesh.toml.
    pub fn init() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // The mesh itself must keep other users out, not the folder it happens to be in.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(folder.path().join("slurm.conf"), SLURM_CONF).unwrap();
        let mesh = Self { folder, up: None };
        let output = mesh.run(&["init", "--slurm-conf", "slurm.conf", "--data-dir", "data"]);
        assert!(output.status.success(), "{output:?}");
        mesh
    }

    /// With the streams of its nats-server in a separate folder.
    pub fn init_with_streams_at(folder: &Path) -> Self {
        let mesh = Self::init();
        let private = mesh.path("data/private");
        fs::create_dir_all(&private).unwrap();
        for folder in [&mesh.path("data"), &private] {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).unwrap();
        }
        std::os::unix::fs::symlink(folder, private.join("jetstream")).unwrap();
        mesh
    }

    /// Also starts it.
    pub fn started() -> Self {
        let mut mesh = Self::init();
        mesh.start();
        mesh
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `smesh` in the mesh's folder.
    pub fn smesh(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_smesh"));
        command
            .args(args)
            .current_dir(self.folder.path())
            .env_remove("SLURM_CONF")
            .env_remove("MESH_CONFIG")
            .env("SMESH_KNOWN_LEDGERS", self.path("known_ledgers.json"))
            .env("NATS_SERVER_BIN", nats_server());
        command
    }

    /// Runs a command to its end.
    pub fn run(&self, args: &[&str]) -> Output {
        self.smesh(args).stdin(Stdio::null()).output().unwrap()
    }

    /// Starts `smesh up` and waits until its API answers.
    pub fn start(&mut self) {
        self.spawn();
        self.wait_until("the API answers", || self.run(&["events"]).status.success());
    }

    /// Starts `smesh up`.
    pub fn spawn(&mut self) {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.path("up.log"))
            .unwrap();
        let child = self
            .smesh(&["up"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.up = Some(child);
    }

    pub fn wait_until(&self, description: &str, condition: impl Fn() -> bool) {
        let start = Instant::now();
        while !condition() {
            assert!(
                start.elapsed() < TIMEOUT,
                "not in time: {description}\n{}",
                fs::read_to_string(self.path("up.log")).unwrap_or_default()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends a signal to `smesh up` and waits for its end.
    pub fn end(&mut self, signal: &str) -> std::process::ExitStatus {
        self.signal(signal);
        self.up.take().unwrap().wait().unwrap()
    }

    /// Sends a signal to `smesh up` and waits for its end, which must come in time.
    pub fn end_within(&mut self, signal: &str, time: Duration) -> std::process::ExitStatus {
        let start = Instant::now();
        self.signal(signal);
        let mut up = self.up.take().unwrap();
        loop {
            if let Some(status) = up.try_wait().unwrap() {
                return status;
            }
            if start.elapsed() > time {
                up.kill().unwrap();
                let log = fs::read_to_string(self.path("up.log")).unwrap();
                panic!("it does not end within {time:?}\n{log}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn signal(&self, signal: &str) {
        let child = self.up.as_ref().unwrap();
        let status = Command::new("kill")
            .arg(signal)
            .arg(child.id().to_string())
            .status()
            .unwrap();
        assert!(status.success());
    }

    /// Process id of `smesh up`.
    pub fn pid(&self) -> u32 {
        self.up.as_ref().unwrap().id()
    }

    /// True if the API accepts connections. The socket file exists a moment earlier.
    pub fn listens(&self) -> bool {
        UnixStream::connect(self.path("data/api.sock")).is_ok()
    }

    /// The answer of `/readyz`, ready or not.
    pub fn readiness(&self) -> serde_json::Value {
        self.get("/readyz")
    }

    /// The answer of the API, of whatever status.
    pub fn get(&self, path: &str) -> serde_json::Value {
        let mut stream = UnixStream::connect(self.path("data/api.sock")).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\nHost: mesh\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }

    /// Text of a reported problem, by the name of its condition.
    pub fn problem(&self, name: &str) -> String {
        let readiness = self.readiness();
        let problem = readiness["problems"][name].as_str();
        problem.unwrap_or_default().to_owned()
    }

    /// Sends a JetStream API request without a body, as the administrator. It must succeed.
    pub fn jetstream(&self, request: &str) {
        let answer = self.jetstream_answer(request);
        assert!(answer.contains("\"success\":true"), "{request}: {answer}");
    }

    /// Answer to such a request.
    pub fn jetstream_answer(&self, request: &str) -> String {
        let read = |name: &str| fs::read_to_string(self.path(name)).unwrap();
        let port: u16 = read("data/private/nats.port").parse().unwrap();
        let password = read("data/private/nats-passwords/admin");
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        write!(
            stream,
            "CONNECT {{\"user\":\"admin\",\"pass\":\"{password}\",\"verbose\":false}}\r\n\
             SUB answers 1\r\nPUB $JS.API.{request} answers 0\r\n\r\n"
        )
        .unwrap();
        let lines = BufReader::new(stream).lines().map(Result::unwrap);
        let answer = lines
            .skip_while(|line| !line.starts_with("MSG answers"))
            .nth(1);
        answer.unwrap()
    }

    /// Sends a doorbell as a hook does.
    pub fn ring(&self) -> mesh_hook::ring::Outcome {
        let config = mesh_hook::Config::load(&self.path("data/hook.toml")).unwrap();
        let now = std::time::SystemTime::now();
        let doorbell = mesh_hook::doorbell::doorbell(&mesh_hook::doorbell::Call {
            cluster: "testbed",
            hook: "PrologSlurmctld",
            host: "h",
            called_at: now,
            environment: &Default::default(),
            arguments: &[],
        });
        mesh_hook::ring::ring(&config, &doorbell, now, Instant::now())
    }

    /// Process id of its nats-server.
    pub fn nats_pid(&self) -> u32 {
        fs::read_to_string(self.path("data/private/nats.pid"))
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        if self.up.is_some() {
            self.end("-TERM");
        }
        // A test may have killed the parent of this process.
        if let Ok(pid) = fs::read_to_string(self.path("data/private/nats.pid"))
            && is_nats(pid.trim(), self.folder.path())
        {
            Command::new("kill").arg(pid.trim()).status().unwrap();
        }
    }
}

pub fn is_nats(pid: &str, folder: &Path) -> bool {
    fs::read_to_string(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|line| line.contains(&*folder.to_string_lossy()))
}

/// The nats-server of the tests, as mesh-testkit finds it.
fn nats_server() -> PathBuf {
    if let Some(path) = std::env::var_os("NATS_SERVER_BIN") {
        return path.into();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(root.join("scripts/nats-server"))
        .current_dir(&root)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "no nats-server: run `make setup`, or set NATS_SERVER_BIN"
    );
    root.join(String::from_utf8(output.stdout).unwrap().trim())
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
