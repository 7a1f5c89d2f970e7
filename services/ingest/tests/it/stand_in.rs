//! Slurm's commands with somebody in between: each call is noted, and a test may have a command lie as a real Slurm cannot be brought to.
//! What is not lied about is the real cluster's answer.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mesh_testkit::{script, wait_for};

use crate::cluster::Cluster;

const COMMANDS: [&str; 4] = ["squeue", "scontrol", "sacct", "sacctmgr"];

/// A folder to be `bin_dir`.
pub struct StandIn {
    folder: tempfile::TempDir,
}

impl StandIn {
    /// Tells the truth about a cluster.
    pub fn new(cluster: &Cluster) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("lies")).unwrap();
        for name in COMMANDS {
            let path = folder.path().join(name);
            // A lie is read by the same shell: it may exit, or go on to the truth.
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

    /// The folder.
    pub fn bin_dir(&self) -> &Path {
        self.folder.path()
    }

    /// From now on the command does this first: a shell script that may exit; `$real` is the real command, `$here` a folder.
    pub fn lie(&self, command: &str, script: &str) {
        assert!(COMMANDS.contains(&command));
        // In one step: a command may be reading it.
        let new = self.folder.path().join("lie");
        fs::write(&new, script).unwrap();
        fs::rename(new, self.lie_path(command)).unwrap();
    }

    /// From now on the command tells the truth.
    pub fn truth(&self, command: &str) {
        fs::remove_file(self.lie_path(command)).unwrap();
    }

    fn lie_path(&self, command: &str) -> PathBuf {
        self.folder.path().join("lies").join(command)
    }

    /// What a test kept of a command's answers in files whose names begin with `old-`: the one that holds a sweep.
    pub fn old_listing(&self) -> String {
        let files = fs::read_dir(self.folder.path()).unwrap();
        let files = files.map(|file| file.unwrap().path());
        let of_poll = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with("old-_h__a")
        };
        let file = files.into_iter().find(of_poll).expect("a sweep was kept");
        fs::read_to_string(file).unwrap()
    }

    /// Every call so far, with its arguments.
    pub fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.folder.path().join("calls")).unwrap_or_default();
        calls.lines().map(str::to_owned).collect()
    }

    /// How often a command was called so far.
    pub fn count(&self, command: &str) -> usize {
        let is = |call: &&String| call.split(' ').next() == Some(command);
        self.calls().iter().filter(is).count()
    }

    /// Waits until a command has been called so many more times.
    pub async fn wait_calls(&self, command: &str, more: usize) {
        let enough = self.count(command) + more;
        let what = format!("{command} is called {more} times more");
        wait_for(&what, Duration::from_secs(180), async || {
            (self.count(command) >= enough).then_some(())
        })
        .await;
    }
}
