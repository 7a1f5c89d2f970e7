//! The real `smesh up` as a child process.

mod api;

use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};
use std::time::Duration;

use mesh_bus::Bus;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use crate::{Cluster, Error, Programs, wait_for};

/// How long `smesh up` may take to become ready or to stop.
const PATIENCE: Duration = Duration::from_secs(120);

/// Settings of a mesh.
#[derive(Clone, Debug, Default)]
pub struct MeshOptions {
    /// TOML that is merged over the `mesh.toml` written by `smesh init`, key by key.
    pub overlay: String,
    /// The price book. `None` for the one written by `smesh init`.
    pub price_book: Option<String>,
    /// The identity map. `None` for the one written by `smesh init`.
    pub identities: Option<String>,
}

/// A mesh: configuration, data directory and, while it runs, the process. Killed on drop.
#[derive(Debug)]
pub struct Mesh {
    programs: Programs,
    folder: PathBuf,
    slurm_conf: Option<PathBuf>,
    child: Option<Child>,
}

impl Mesh {
    /// Sets up a mesh for a cluster in its folder `name`: `smesh init`, then the changes. Does not start it.
    ///
    /// # Errors
    /// If `smesh init` fails.
    pub async fn set_up(
        cluster: &Cluster,
        name: &str,
        options: &MeshOptions,
    ) -> Result<Self, Error> {
        // Merged below the test's settings, which take precedence.
        let mut overlay = toml::Table::new();
        let commands = cluster.commands().display().to_string();
        let slurm = toml::Table::from_iter([("bin_dir".to_owned(), commands.into())]);
        overlay.insert("slurm".to_owned(), slurm.into());
        merge(&mut overlay, parse(&options.overlay, "the overlay")?);
        let options = MeshOptions {
            overlay: overlay.to_string(),
            ..options.clone()
        };
        Self::set_up_in(cluster.path(name), Some(cluster.slurm_conf()), &options).await
    }

    /// The same in any folder, for the Slurm of that slurm.conf or, without one, of this environment.
    ///
    /// # Errors
    /// If `smesh init` fails.
    pub async fn set_up_in(
        folder: PathBuf,
        slurm_conf: Option<PathBuf>,
        options: &MeshOptions,
    ) -> Result<Self, Error> {
        std::fs::create_dir_all(&folder).map_err(Error::io("make", &folder))?;
        let mesh = Self {
            programs: Programs::find()?,
            folder,
            slurm_conf,
            child: None,
        };
        let (data, config) = (mesh.data_dir(), mesh.config());
        let mut init = mesh.command();
        init.args(["init", "--force", "--data-dir"])
            .arg(&data)
            .arg("--output")
            .arg(&config);
        if let Some(conf) = &mesh.slurm_conf {
            init.arg("--slurm-conf").arg(conf);
        }
        let output = init.output().await.map_err(Error::io("run", "smesh"))?;
        if !output.status.success() {
            return Err(Error::command("smesh init", &output));
        }
        mesh.change(&options.overlay)?;
        for (name, text) in [
            ("price-book.toml", &options.price_book),
            ("identity.toml", &options.identities),
        ] {
            if let Some(text) = text {
                let path = mesh.folder.join(name);
                std::fs::write(&path, text).map_err(Error::io("write", &path))?;
            }
        }
        Ok(mesh)
    }

    /// Merges TOML over `mesh.toml`. Takes effect at the next start.
    ///
    /// # Errors
    /// If either is not valid TOML.
    pub fn change(&self, overlay: &str) -> Result<(), Error> {
        let path = self.config();
        let text = std::fs::read_to_string(&path).map_err(Error::io("read", &path))?;
        let mut config = parse(&text, &path.display().to_string())?;
        merge(&mut config, parse(overlay, "the overlay")?);
        std::fs::write(&path, config.to_string()).map_err(Error::io("write", &path))?;
        // It contains secrets of endpoints.
        std::fs::set_permissions(&path, Permissions::from_mode(0o600))
            .map_err(Error::io("change the mode of", &path))
    }

    /// Path of `mesh.toml`.
    pub fn config(&self) -> PathBuf {
        self.folder.join("mesh.toml")
    }

    /// Path of the data directory.
    pub fn data_dir(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Path of the ledgers that `smesh` has seen.
    pub fn known_ledgers(&self) -> PathBuf {
        self.folder.join("known_ledgers.json")
    }

    /// Path of the API's socket.
    pub fn socket(&self) -> PathBuf {
        self.data_dir().join("api.sock")
    }

    /// Path of the hooks' configuration, written by the mesh.
    pub fn hook_config(&self) -> PathBuf {
        self.data_dir().join("hook.toml")
    }

    /// A `smesh` command for this mesh, with a clean environment.
    pub fn command(&self) -> Command {
        self.prepared(Command::new(&self.programs.smesh))
    }

    fn prepared(&self, mut command: Command) -> Command {
        const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
        command
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", "/")
            // Each mesh begins its ledger with a key of its own, under an origin that others had before.
            .env("SMESH_KNOWN_LEDGERS", self.known_ledgers())
            .env("NATS_SERVER_BIN", &self.programs.nats)
            .env("MESH_CONFIG", self.config())
            .stdin(Stdio::null());
        // Without a slurm.conf of our own, that of this environment.
        let inherited = std::env::var_os("SLURM_CONF").map(PathBuf::from);
        if let Some(conf) = self.slurm_conf.clone().or(inherited) {
            command.env("SLURM_CONF", conf);
        }
        command
    }

    /// Folder of the programs.
    pub fn programs_dir(&self) -> &Path {
        self.programs.smesh.parent().unwrap_or(Path::new("."))
    }

    /// Runs `smesh` with these arguments.
    ///
    /// # Errors
    /// If it cannot be run. A failing command is not an error.
    pub async fn smesh(&self, arguments: &[&str]) -> Result<Output, Error> {
        let mut command = self.command();
        let output = command.args(arguments).kill_on_drop(true).output().await;
        output.map_err(Error::io("run", "smesh"))
    }

    /// Starts `smesh up` and waits until it is ready.
    ///
    /// # Errors
    /// If it ends, or is not ready in time. Includes its output.
    pub async fn start(&mut self) -> Result<(), Error> {
        self.spawn()?;
        let ready = wait_for("`smesh up` is ready", PATIENCE, async || {
            if let Some(status) = self.ended()? {
                return Err(Error::Machine(format!(
                    "`smesh up` ended ({status}): {}",
                    self.log_tail()
                )));
            }
            Ok(self.is_ready().await.then_some(()))
        });
        match ready.await {
            Err(Error::Deadline {
                description,
                patience,
            }) => {
                let problems = self.get("/readyz").await.map(|answer| answer.body);
                let description = format!(
                    "{description}: {}; its log ends with: {}",
                    problems.unwrap_or_default(),
                    self.log_tail()
                );
                Err(Error::Deadline {
                    description,
                    patience,
                })
            }
            done => done,
        }
    }

    /// Starts `smesh up`; see [`Mesh::start`].
    ///
    /// It gets SIGTERM if this thread ends without stopping it. It does not get Ctrl-C from our terminal, because it must stop in
    /// order.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn spawn(&mut self) -> Result<(), Error> {
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "TERM", "--"])
            .arg(&self.programs.smesh)
            .arg("up");
        let child = self
            .prepared(command)
            .stdout(self.log_file("up.out")?)
            .stderr(self.log_file("up.log")?)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(Error::io("start", &self.programs.smesh))?;
        self.child = Some(child);
        Ok(())
    }

    fn log_file(&self, name: &str) -> Result<File, Error> {
        let path = self.folder.join(name);
        let file = OpenOptions::new().create(true).append(true).open(&path);
        file.map_err(Error::io("open", path))
    }

    /// Exit status, if it has ended.
    ///
    /// # Errors
    /// If the status cannot be read.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, Error> {
        self.child.as_mut().map_or(Ok(None), |child| {
            child.try_wait().map_err(Error::io("wait for", "smesh"))
        })
    }

    /// The log of all its starts.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("up.log")).unwrap_or_default()
    }

    /// Its standard output.
    pub fn log_text(&self) -> String {
        std::fs::read_to_string(self.folder.join("up.out")).unwrap_or_default()
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" | ")
    }

    /// Process id while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    /// Stops it in order (SIGTERM).
    ///
    /// # Errors
    /// If it does not stop in time.
    pub async fn stop(&mut self) -> Result<ExitStatus, Error> {
        self.signal(Signal::TERM);
        let Some(mut child) = self.child.take() else {
            return Err(Error::Machine("`smesh up` does not run".into()));
        };
        match tokio::time::timeout(PATIENCE, child.wait()).await {
            Ok(status) => status.map_err(Error::io("wait for", "smesh")),
            Err(_) => Err(Error::Deadline {
                description: format!("`smesh up` stops; its log ends with: {}", self.log_tail()),
                patience: PATIENCE,
            }),
        }
    }

    /// Kills it (SIGKILL). Its nats-server runs until the next start.
    ///
    /// # Errors
    /// If it cannot be waited for.
    pub async fn kill(&mut self) -> Result<(), Error> {
        match self.child.take() {
            Some(mut child) => child.kill().await.map_err(Error::io("kill", "smesh")),
            None => Ok(()),
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = self.pid().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        if let Some(pid) = pid {
            // It may have ended already. The wait then returns its status.
            kill_process(pid, signal).ok();
        }
    }

    /// Sends a signal to its nats-server, e.g. STOP to make it unresponsive.
    ///
    /// # Errors
    /// If there is none.
    pub fn signal_nats(&self, signal: Signal) -> Result<(), Error> {
        let path = self.data_dir().join("private/nats.pid");
        let text = std::fs::read_to_string(&path).map_err(Error::io("read", &path))?;
        let pid = text.trim().parse().ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| Error::Machine(format!("{text:?} is not a process id")))?;
        kill_process(pid, signal).map_err(|error| Error::io("signal", "nats-server")(error.into()))
    }

    /// Port of its nats-server.
    ///
    /// # Errors
    /// If it has none yet.
    pub fn nats_port(&self) -> Result<u16, Error> {
        let path = self.data_dir().join("private/nats.port");
        let text = std::fs::read_to_string(&path).map_err(Error::io("read", &path))?;
        let port = text.trim().parse();
        port.map_err(|_| Error::Machine(format!("{}: {text:?} is not a port", path.display())))
    }

    /// A connection to its bus with read access to events.
    ///
    /// # Errors
    /// If its nats-server has not been started yet.
    pub async fn bus(&self) -> Result<Bus, Error> {
        let path = self.data_dir().join("private/nats-passwords/reader");
        let config = mesh_bus::Config {
            url: format!("nats://127.0.0.1:{}", self.nats_port()?),
            user: Some("reader".into()),
            password_file: Some(path),
            provision: false,
            ..mesh_bus::Config::default()
        };
        Ok(Bus::connect(&config, "reader").await?)
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        // A killed mesh leaves its nats-server running for the next start. Here there is no next start.
        if let Some(nats) = process_with(&self.data_dir().join("private/nats.conf")) {
            kill_process(nats, Signal::KILL).ok();
        }
    }
}

/// The process with this file on its command line. It is found although its own files may be removed already.
fn process_with(conf: &Path) -> Option<Pid> {
    let conf = conf.to_string_lossy();
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let pid = pids.find(|pid: &i32| {
        let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
        command.is_ok_and(|command| command.contains(&*conf))
    });
    pid.and_then(Pid::from_raw)
}

fn parse(text: &str, description: &str) -> Result<toml::Table, Error> {
    text.parse()
        .map_err(|error| Error::Machine(format!("{description}: {error}")))
}

fn merge(under: &mut toml::Table, over: toml::Table) {
    for (key, value) in over {
        match (under.get_mut(&key), value) {
            (Some(toml::Value::Table(under)), toml::Value::Table(over)) => merge(under, over),
            (_, value) => {
                under.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlay_changes_only_its_keys() {
        let mut config: toml::Table = "[a]\nx = 1\ny = 2\n[a.b]\nz = 3".parse().unwrap();
        merge(&mut config, "[a]\nx = 9\n[c]\nw = 4".parse().unwrap());
        let expected: toml::Table = "[a]\nx = 9\ny = 2\n[a.b]\nz = 3\n[c]\nw = 4"
            .parse()
            .unwrap();
        assert_eq!(config, expected);
    }
}
