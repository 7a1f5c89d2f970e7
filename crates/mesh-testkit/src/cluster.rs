//! A real Slurm cluster in a folder.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::ClusterPorts;

/// A cluster started by `tests/cluster/up`. Removed when dropped, and (`OWNER`) when this process ends.
#[derive(Debug)]
pub struct SlurmCluster {
    name: String,
    dir: PathBuf,
    // Free again once the daemons are stopped.
    _ports: ClusterPorts,
}

impl SlurmCluster {
    /// Starts a cluster; `knobs` are those of `tests/cluster/up`. Control groups are used only if they say so: all clusters of a machine
    /// share them, and a cluster with the same ports in another network namespace has jobs with the same ids.
    ///
    /// # Panics
    /// If it does not start.
    pub fn up(name: &str, knobs: &[(&str, &str)]) -> Self {
        Self::up_on(name, ClusterPorts::take(), knobs)
    }

    /// Folder that a cluster of this name on these ports will have.
    pub fn dir_on(name: &str, ports: &ClusterPorts) -> PathBuf {
        // A short path that every user may enter.
        format!("/tmp/mesh-{name}-{}-{}", ports.base(), std::process::id()).into()
    }

    /// As [`Self::up`], on certain ports.
    ///
    /// # Panics
    /// If it does not start.
    pub fn up_on(name: &str, ports: ClusterPorts, knobs: &[(&str, &str)]) -> Self {
        let base = ports.base().to_string();
        let cluster = Self {
            name: name.to_owned(),
            dir: Self::dir_on(name, &ports),
            _ports: ports,
        };
        let mut up = cluster.script("up", &[base]);
        up.env("CLUSTER", name)
            .env("CG", "0")
            .env("OWNER", std::process::id().to_string());
        printed(up.envs(knobs.iter().copied())).unwrap_or_else(|error| {
            panic!("no Slurm cluster: {error}\nwithout Slurm run `make setup` first")
        });
        cluster
    }

    /// ClusterName.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Path of slurm.conf.
    pub fn conf(&self) -> PathBuf {
        self.dir.join("etc/slurm.conf")
    }

    /// Folder of its Slurm commands.
    pub fn commands(&self) -> PathBuf {
        self.dir.join("commands")
    }

    /// A value of its file `facts`.
    ///
    /// # Panics
    /// If there is none.
    pub fn fact(&self, key: &str) -> String {
        let facts = std::fs::read_to_string(self.dir.join("facts")).expect("a cluster has facts");
        let mut lines = facts.lines();
        let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        value
            .unwrap_or_else(|| panic!("no {key} in {facts}"))
            .to_owned()
    }

    /// Runs a command as a user and returns its output.
    ///
    /// # Panics
    /// If it fails.
    pub fn run_as(&self, user: &str, command: &[&str]) -> String {
        self.attempt(user, command)
            .unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// As [`Self::run_as`], for a command that may fail.
    ///
    /// # Errors
    /// The command's error output.
    pub fn attempt(&self, user: &str, command: &[&str]) -> Result<String, String> {
        printed(&mut self.script("as", &[&[user], command].concat()))
    }

    /// Starts, stops, kills, pauses, … a daemon.
    ///
    /// # Panics
    /// If that fails.
    pub fn ctl(&self, action: &str, daemon: &str) {
        printed(&mut self.script("ctl", &[action, daemon]))
            .unwrap_or_else(|error| panic!("ctl {action} {daemon}: {error}"));
    }

    fn script(&self, name: &str, arguments: &[impl AsRef<OsStr>]) -> Command {
        let mut command = Command::new(
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../../tests/cluster")
                .join(name),
        );
        command.arg(&self.dir).args(arguments).current_dir("/tmp");
        command
    }
}

impl Drop for SlurmCluster {
    #[allow(clippy::print_stderr, reason = "for the reader of the test's output")]
    fn drop(&mut self) {
        if let Err(error) = printed(&mut self.script("down", &["--wipe"])) {
            eprintln!("stop the cluster: {error}");
        }
    }
}

/// A command's output, or its error output.
fn printed(command: &mut Command) -> Result<String, String> {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if status.success() {
        Ok(text(&stdout))
    } else {
        Err(text(&stderr))
    }
}
