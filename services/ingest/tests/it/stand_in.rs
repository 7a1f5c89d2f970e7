//! Stand-in for Slurm's commands: records each call, and lets a test fake answers that a real Slurm cannot be made to give. All other
//! answers come from the real cluster.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mesh_testkit::{script, wait_for};

use crate::cluster::Cluster;

const COMMANDS: [&str; 4] = ["squeue", "scontrol", "sacct", "sacctmgr"];

/// How squeue is called for the queue and for single jobs, but not for the evidence of waits.
pub const POLL: &str = "squeue -h -a -t all";

/// A folder to be used as `bin_dir`.
pub struct StandIn {
    folder: tempfile::TempDir,
}

impl StandIn {
    /// Starts with the real answers of a cluster.
    pub fn new(cluster: &Cluster) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("lies")).unwrap();
        for name in COMMANDS {
            let path = folder.path().join(name);
            // The same shell sources a fake answer, which may exit or continue with the real command.
            let text = format!(
                "here={here} real={real}\nprintf '%s\\n' \"{name} $*\" >>\"$here/calls\"\n\
                 [ ! -e \"$here/lies/{name}\" ] || . \"$here/lies/{name}\"\nexec \"$real\" \"$@\"",
                here = folder.path().display(),
                real = cluster.commands().join(name).display(),
            );
            script(&path, &text);
        }
        Self { folder }
    }

    pub fn bin_dir(&self) -> &Path {
        self.folder.path()
    }

    /// Makes the command run this shell script first, which may exit. `$real` is the real command, `$here` a folder.
    pub fn override_output(&self, command: &str, script: &str) {
        assert!(COMMANDS.contains(&command));
        // Atomically, because a command may be reading it.
        let new = self.folder.path().join("lie");
        fs::write(&new, script).unwrap();
        fs::rename(new, self.override_path(command)).unwrap();
    }

    /// Restores the real answers of the command.
    pub fn truth(&self, command: &str) {
        fs::remove_file(self.override_path(command)).unwrap();
    }

    fn override_path(&self, command: &str) -> PathBuf {
        self.folder.path().join("lies").join(command)
    }

    /// Returns the saved answer to a poll, from the files of the test whose names begin with `old-`.
    pub fn old_listing(&self) -> String {
        let files = fs::read_dir(self.folder.path()).unwrap();
        let files = files.map(|file| file.unwrap().path());
        let of_poll = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy();
            // Not of the evidence, which asks for the running jobs and for the plan of the waiting ones.
            name.starts_with("old-_h__a__t_all_")
        };
        let file = files.into_iter().find(of_poll).expect("a poll's answer");
        fs::read_to_string(file).unwrap()
    }

    /// Returns all calls so far, with their arguments.
    pub fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.folder.path().join("calls")).unwrap_or_default();
        calls.lines().map(str::to_owned).collect()
    }

    /// Returns how often a command was called so far: its name, or its name and its first arguments.
    pub fn count(&self, command: &str) -> usize {
        let first = format!("{command} ");
        let is = |call: &&String| call.starts_with(&first);
        self.calls().iter().filter(is).count()
    }

    /// Waits until a command, as in [`Self::count`], has been called `more` times.
    pub async fn wait_calls(&self, command: &str, more: usize) {
        let target = self.count(command) + more;
        let description = format!("{command} is called {more} times more");
        wait_for(&description, Duration::from_secs(180), async || {
            (self.count(command) >= target).then_some(())
        })
        .await;
    }
}
