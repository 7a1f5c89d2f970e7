//! A dispatcher as a separate process.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use mesh_testkit::wait_until;

use crate::harness::DEADLINE;

pub fn command(config: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_webhook-dispatcher"));
    command.arg("--config").arg(config).stdin(Stdio::null());
    command
}

/// A running dispatcher. Killed on drop.
pub struct Dispatcher {
    child: Child,
    config: PathBuf,
    n: usize,
}

impl Dispatcher {
    /// Starts dispatcher number `n`. Its output goes to its log.
    pub fn start(config: &Path, n: usize) -> Self {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(log(config, n))
            .unwrap();
        let child = command(config)
            .env("MESH_MESH__API__SOCKET", socket(config, n))
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self {
            child,
            config: config.to_owned(),
            n,
        }
    }

    /// Socket of its API.
    pub fn socket(&self) -> PathBuf {
        socket(&self.config, self.n)
    }

    pub fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args([signal, &pid]).status();
        assert!(status.unwrap().success());
    }

    /// Kills it (SIGKILL) and starts another.
    pub fn replace(&mut self) {
        self.kill();
        *self = Self::start(&self.config.clone(), self.n);
    }

    /// Waits until it has exited.
    pub async fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("it ends", DEADLINE, async || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        })
        .await;
        status.unwrap()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Output of the dispatchers of this configuration.
pub fn logs(config: &Path) -> String {
    let logs = (0..4).filter_map(|n| std::fs::read_to_string(log(config, n)).ok());
    logs.collect::<Vec<_>>().join("\n----\n")
}

fn socket(config: &Path, n: usize) -> PathBuf {
    config.with_file_name(format!("dispatcher-{n}.sock"))
}

fn log(config: &Path, n: usize) -> PathBuf {
    config.with_file_name(format!("dispatcher-{n}.log"))
}
