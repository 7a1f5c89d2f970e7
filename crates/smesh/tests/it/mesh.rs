//! A mesh of a test's own: a slurm.conf without a Slurm behind it, `smesh init`, `smesh up`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Patience of tests with what takes a second.
pub const SOON: Duration = Duration::from_secs(120);

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
        // Other users shall be kept out by the mesh, not by the folder it happens to be in.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(folder.path().join("slurm.conf"), SLURM_CONF).unwrap();
        let mesh = Self { folder, up: None };
        let output = mesh.run(&["init", "--slurm-conf", "slurm.conf", "--data-dir", "data"]);
        assert!(output.status.success(), "{output:?}");
        mesh
    }

    /// And starts it.
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
            .env("NATS_SERVER_BIN", nats_server());
        command
    }

    /// Runs a command to its end.
    pub fn run(&self, args: &[&str]) -> Output {
        self.smesh(args).stdin(Stdio::null()).output().unwrap()
    }

    /// Starts `smesh up` and waits until its API answers.
    pub fn start(&mut self) {
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
        self.wait_until("the API answers", || self.run(&["events"]).status.success());
    }

    pub fn wait_until(&self, what: &str, condition: impl Fn() -> bool) {
        let start = Instant::now();
        while !condition() {
            assert!(
                start.elapsed() < SOON,
                "not in time: {what}\n{}",
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

    /// Sends it a signal.
    pub fn signal(&self, signal: &str) {
        let child = self.up.as_ref().unwrap();
        let status = Command::new("kill")
            .arg(signal)
            .arg(child.id().to_string())
            .status()
            .unwrap();
        assert!(status.success());
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
        // What a test killed the parent of.
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
