//! A Slurm cluster of this process, created by `tests/cluster/up`, with hooks that send doorbells to a mesh.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use mesh_testkit::ClusterPorts;
use tempfile::TempDir;
use tokio::process::Command;

use crate::programs::root;
use crate::{Error, Marks, Programs, marks, wait_for};

/// Commands that query or change Slurm, as some user.
#[expect(
    async_fn_in_trait,
    reason = "used within this package only, on one task"
)]
pub trait Slurm {
    /// ClusterName.
    fn name(&self) -> &str;

    /// A command as that user, ready to run.
    fn command(&self, user: &str, command: &[&str]) -> Command;

    /// The marks, if this cluster's jobs are to write some.
    fn marks(&self) -> Option<&Marks>;

    /// Runs a command as that user.
    ///
    /// # Errors
    /// If it cannot be run. A failing command is not an error.
    async fn run(&self, user: &str, command: &[&str]) -> Result<Output, Error> {
        let name = command.first().copied().unwrap_or_default();
        self.command(user, command)
            .output()
            .await
            .map_err(Error::io("run", name))
    }

    /// Runs a command as that user and returns its output.
    ///
    /// # Errors
    /// If it fails.
    async fn ask(&self, user: &str, command: &[&str]) -> Result<String, Error> {
        let output = self.run(user, command).await?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        } else {
            Err(Error::command(
                format!("{} (as {user})", command.join(" ")),
                &output,
            ))
        }
    }

    /// Submits a script. Its begin and end are marked.
    ///
    /// # Errors
    /// If Slurm refuses.
    async fn submit(&self, user: &str, options: &[&str], script: &str) -> Result<u32, Error> {
        let script = match self.marks() {
            Some(marks) => format!(
                "{}\n( {script} )\ns=$?\n{}\nexit $s",
                marks.line("begin"),
                marks.line("end")
            ),
            None => script.to_owned(),
        };
        let fixed = [
            "sbatch",
            "--parsable",
            "--chdir=/tmp",
            "--output=/dev/null",
            "--wrap",
            &script,
        ];
        let answer = self.ask(user, &[&fixed[..], options].concat()).await?;
        let id = answer.split(';').next().unwrap_or_default();
        id.parse()
            .map_err(|_| Error::Machine(format!("sbatch answered {answer:?}, not a job id")))
    }

    /// Waits until a job (or task `123_4`) is in one of these states in squeue.
    ///
    /// # Errors
    /// If that takes too long.
    async fn wait_state(
        &self,
        job: &str,
        states: &[&str],
        patience: Duration,
    ) -> Result<(), Error> {
        wait_for(
            &format!("job {job} in state {}", states.join(" or ")),
            patience,
            async || {
                // squeue fails for a job that slurmctld has purged.
                let command = ["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"];
                let output = self.run("root", &command).await?;
                let text = String::from_utf8_lossy(&output.stdout);
                Ok(text
                    .lines()
                    .any(|line| states.contains(&line.trim()))
                    .then_some(()))
            },
        )
        .await
    }
}

/// Settings of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// ClusterName.
    pub name: String,
    /// Variables for `tests/cluster/up`.
    pub knobs: Vec<(&'static str, String)>,
    /// True if Slurm calls mesh-hook.
    pub hooks: bool,
}

impl ClusterOptions {
    /// Two plain nodes, with hooks.
    pub fn small(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            knobs: vec![
                ("NODES", "2".into()),
                ("GPU_NODES", "0".into()),
                ("CLOUD", "0".into()),
            ],
            hooks: true,
        }
    }

    /// Two plain nodes, two with fake GPUs, two cloud nodes, with hooks.
    pub fn full(name: &str) -> Self {
        Self {
            // As long as the scenario waits for a node to be started.
            knobs: vec![("RESUME_TIMEOUT", "180".into())],
            ..Self::small(name)
        }
    }
}

/// A running cluster. Stopped and removed on drop and, by `OWNER`, when this process is killed.
#[derive(Debug)]
pub struct Cluster {
    name: String,
    // Dropped in this order: the hooks' FIFO, then the folder.
    marks: Marks,
    folder: TempDir,
    kept: bool,
    // Free again once the daemons are stopped.
    _ports: ClusterPorts,
}

impl Cluster {
    /// Starts a cluster.
    ///
    /// # Errors
    /// If it does not start, e.g. without root.
    pub async fn start(options: &ClusterOptions) -> Result<Self, Error> {
        if !rustix::process::geteuid().is_root() {
            return Err(Error::Machine(
                "a Slurm cluster needs root, since it runs jobs as several users: run this as root"
                    .into(),
            ));
        }
        let folder = tempfile::Builder::new()
            .prefix("mesh-it-")
            .tempdir_in("/tmp")
            .map_err(Error::io("make a folder in", "/tmp"))?;
        // slurmctld and the users run under other accounts.
        set_mode(folder.path(), 0o755)?;
        let ports = ClusterPorts::take();
        let base_port = ports.base().to_string();
        let cluster = Self {
            name: options.name.clone(),
            marks: Marks::listen(&folder.path().join("marks"))?,
            folder,
            kept: false,
            _ports: ports,
        };
        let mut up = Command::new(script("up"));
        up.arg(cluster.dir())
            .arg(base_port)
            .env("CLUSTER", &options.name)
            .envs(options.knobs.iter().map(|(name, value)| (name, value)))
            .env("OWNER", std::process::id().to_string());
        if options.hooks {
            up.env("EXTRA_CONF", cluster.write_hooks(&Programs::find()?)?);
        }
        let output = up
            .output()
            .await
            .map_err(Error::io("run", "tests/cluster/up"))?;
        if output.status.success() {
            Ok(cluster)
        } else {
            Err(Error::command(
                "tests/cluster/up (without Slurm here, run `make setup` first)",
                &output,
            ))
        }
    }

    /// Writes the programs called by Slurm: one small script per hook, as written by `smesh hooks install`, plus a mark. They use the
    /// mesh set by [`Cluster::ring`]. The program is copied to a folder that SlurmUser can access.
    fn write_hooks(&self, programs: &Programs) -> Result<PathBuf, Error> {
        let folder = self.path("hooks");
        std::fs::create_dir(&folder).map_err(Error::io("make", &folder))?;
        set_mode(&folder, 0o755)?;
        let program = folder.join("mesh-hook");
        std::fs::copy(&programs.hook, &program).map_err(Error::io("copy", &programs.hook))?;
        set_mode(&program, 0o755)?;
        for hook in ["PrologSlurmctld", "EpilogSlurmctld", "JobComp"] {
            let path = folder.join(hook);
            let text = format!(
                "#!/bin/sh\n{}\nexec {} --config {}\n",
                marks::line(&self.path("marks"), hook),
                program.display(),
                self.path("hook.toml").display()
            );
            std::fs::write(&path, text).map_err(Error::io("write", &path))?;
            set_mode(&path, 0o755)?;
        }
        let conf = self.path("extra.conf");
        let text = format!(
            "PrologSlurmctld={0}/PrologSlurmctld\nEpilogSlurmctld={0}/EpilogSlurmctld\nJobCompType=jobcomp/script\nJobCompLoc={0}/JobComp\n",
            folder.display()
        );
        std::fs::write(&conf, text).map_err(Error::io("write", &conf))?;
        Ok(conf)
    }

    /// Connects the hooks to a mesh by this configuration of `mesh-hook`.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn ring(&self, hook_config: &Path) -> Result<(), Error> {
        let (link, new) = (self.path("hook.toml"), self.path("hook.toml.new"));
        symlink(hook_config, &new).map_err(Error::io("make", &new))?;
        std::fs::rename(&new, &link).map_err(Error::io("make", &link))
    }

    /// Disconnects the hooks: they find no configuration and send nothing.
    ///
    /// # Errors
    /// If the change cannot be written.
    pub fn disconnect_hooks(&self) -> Result<(), Error> {
        let link = self.path("hook.toml");
        std::fs::remove_file(&link).map_err(Error::io("remove", &link))
    }

    /// Keeps the folder with all its files on drop, where the cluster is still stopped. Returns its path.
    pub fn keep(&mut self) -> &Path {
        self.folder.disable_cleanup(true);
        self.kept = true;
        self.folder.path()
    }

    /// A path next to the cluster, in a folder that is removed with it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The cluster's own folder.
    pub fn dir(&self) -> PathBuf {
        self.path("c")
    }

    /// Path of its slurm.conf.
    pub fn slurm_conf(&self) -> PathBuf {
        self.dir().join("etc/slurm.conf")
    }

    /// Folder of its Slurm commands.
    pub fn commands(&self) -> PathBuf {
        self.dir().join("commands")
    }

    /// Marks of jobs and hooks.
    pub fn clock(&self) -> &Marks {
        &self.marks
    }

    /// A value in its file `facts`.
    pub fn fact(&self, key: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.dir().join("facts")).ok()?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
        Some(line.to_owned())
    }

    /// Starts, stops, kills, pauses, … a daemon.
    ///
    /// # Errors
    /// If `tests/cluster/ctl` fails.
    pub async fn control(&self, action: &str, daemon: &str) -> Result<(), Error> {
        let output = Command::new(script("ctl"))
            .arg(self.dir())
            .args([action, daemon])
            .output()
            .await
            .map_err(Error::io("run", "tests/cluster/ctl"))?;
        if output.status.success() {
            Ok(())
        } else {
            Err(Error::command(format!("ctl {action} {daemon}"), &output))
        }
    }
}

impl Slurm for Cluster {
    fn name(&self) -> &str {
        &self.name
    }

    fn command(&self, user: &str, command: &[&str]) -> Command {
        let mut all = Command::new(script("as"));
        all.arg(self.dir())
            .arg(user)
            .args(command)
            .kill_on_drop(true);
        all
    }

    fn marks(&self) -> Option<&Marks> {
        Some(&self.marks)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let down = std::process::Command::new(script("down"))
            .arg(self.dir())
            .args((!self.kept).then_some("--wipe"))
            .output();
        match down {
            Ok(output) if output.status.success() => {}
            Ok(output) => anstream::eprintln!(
                "take the cluster down: {}",
                String::from_utf8_lossy(&output.stderr)
            ),
            Err(error) => anstream::eprintln!("stop the cluster: {error}"),
        }
    }
}

fn script(name: &str) -> PathBuf {
    root().join("tests/cluster").join(name)
}

/// Sets the permission bits of a file.
///
/// # Errors
/// If they cannot be set.
pub fn set_mode(path: &Path, mode: u32) -> Result<(), Error> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
        .map_err(Error::io("set the mode of", path))
}
