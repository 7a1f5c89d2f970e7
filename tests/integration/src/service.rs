//! A service as a separate process, as run by a site's process manager.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use hyper::Method;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use crate::{Answer, Error, Mesh, Programs, http, wait_for};

/// How long a service may take to answer, or to stop (`drain_deadline` is 10 s).
const PATIENCE: Duration = Duration::from_secs(120);

/// A service of a mesh. Killed on drop, or when the thread that started it ends.
#[derive(Debug)]
pub struct Service {
    /// Name of the service.
    pub name: &'static str,
    child: Child,
    socket: PathBuf,
    log: PathBuf,
}

impl Service {
    /// Peak of its resident memory in MiB; `None` if it does not run.
    pub fn peak_mib(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()?)).ok()?;
        let peak = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))?;
        let kib: u64 = peak.split_whitespace().next()?.parse().ok()?;
        Some(kib.div_ceil(1_024))
    }

    /// Starts a service of a configured mesh, with a clean environment and these variables.
    ///
    /// # Errors
    /// If its program cannot be built or started.
    pub async fn start(
        mesh: &Mesh,
        name: &'static str,
        environment: &[(&str, OsString)],
    ) -> Result<Self, Error> {
        Self::start_replica(mesh, name, name, environment).await
    }

    /// Starts one of several replicas of a service, named `name`, with its own socket and log.
    ///
    /// # Errors
    /// If its program cannot be built or started.
    pub async fn start_replica(
        mesh: &Mesh,
        service: &str,
        name: &'static str,
        environment: &[(&str, OsString)],
    ) -> Result<Self, Error> {
        let program = Programs::services().await?.join(service);
        let data = mesh.data_dir();
        std::fs::create_dir_all(&data).map_err(Error::io("make", &data))?;
        let log = data.join(format!("{name}.log"));
        let socket = data.join(format!("{name}.sock"));
        let output = OpenOptions::new().create(true).append(true).open(&log);
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(&program)
            .arg("--config")
            .arg(mesh.config())
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("MESH_MESH__API__SOCKET", &socket)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output.map_err(Error::io("open", &log))?)
            // Protects it from Ctrl-C of our terminal.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(Error::io("start", &program))?;
        Ok(Self {
            name,
            child,
            socket,
            log,
        })
    }

    /// The log of this process and its predecessors with this name.
    pub fn read_log(&self) -> String {
        std::fs::read(&self.log)
            .map(|log| String::from_utf8_lossy(&log).into_owned())
            .unwrap_or_default()
    }

    /// Process id while it runs.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Sends a GET to one of its routes. The status is 0 while it does not answer.
    pub async fn get(&self, path: &str) -> Answer {
        let answer = http::ask(&self.socket, Method::GET, path, &[], String::new());
        match tokio::time::timeout(Duration::from_secs(10), answer).await {
            Ok(Ok(answer)) => answer,
            _ => Answer {
                status: 0,
                body: String::new(),
            },
        }
    }

    /// Waits until `/readyz` returns this status, and returns its body.
    ///
    /// # Errors
    /// If that takes too long, or the service ends. Includes the end of its log.
    pub async fn wait_ready(&mut self, status: u16) -> Result<String, Error> {
        let description = format!("{} answers /readyz with {status}", self.name);
        let mut last = Answer {
            status: 0,
            body: String::new(),
        };
        let ready = wait_for(&description, PATIENCE, async || {
            if let Ok(Some(ended)) = self.child.try_wait() {
                return Err(Error::Machine(format!("{} ended: {ended}", self.name)));
            }
            last = self.get("/readyz").await;
            Ok((last.status == status).then(|| last.body.clone()))
        })
        .await;
        ready.map_err(|error| {
            Error::Machine(format!(
                "{error}: {} {}; its log ends with: {}",
                last.status,
                last.body,
                self.log_tail()
            ))
        })
    }

    /// Value of a metric, by the beginning of its line.
    pub async fn metric(&self, line: &str) -> Option<f64> {
        let body = self.get("/metrics").await.body;
        let found = body.lines().find(|found| found.starts_with(line))?;
        found.rsplit_once(' ')?.1.parse().ok()
    }

    /// Exit status, if it has ended.
    ///
    /// # Errors
    /// If the status cannot be read.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, Error> {
        self.child
            .try_wait()
            .map_err(Error::io("wait for", self.name))
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// If it does not run.
    pub fn signal(&self, signal: Signal) -> Result<(), Error> {
        let pid = self
            .child
            .id()
            .and_then(|id| Pid::from_raw(id.cast_signed()));
        let pid = pid.ok_or_else(|| Error::Machine(format!("{} does not run", self.name)))?;
        kill_process(pid, signal).map_err(|error| Error::io("signal", self.name)(error.into()))
    }

    /// Kills it with SIGKILL.
    ///
    /// # Errors
    /// If it cannot be waited for.
    pub async fn kill(&mut self) -> Result<(), Error> {
        self.child
            .kill()
            .await
            .map_err(Error::io("kill", self.name))
    }

    /// Stops it with SIGTERM, as a process manager does, and returns its exit status.
    ///
    /// # Errors
    /// If it does not end in time. Includes the end of its log.
    pub async fn terminate(mut self) -> Result<ExitStatus, Error> {
        self.signal(Signal::TERM)?;
        match tokio::time::timeout(PATIENCE, self.child.wait()).await {
            Ok(status) => status.map_err(Error::io("wait for", self.name)),
            Err(_) => Err(Error::Deadline {
                description: format!("{} ends; its log ends with: {}", self.name, self.log_tail()),
                patience: PATIENCE,
            }),
        }
    }

    /// The last lines of its log.
    pub fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = text.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }
}
