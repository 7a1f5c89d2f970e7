//! The program's configuration: for whom it submits.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use slurm_types::JobId;

use crate::SubmitError;
use crate::owner::{Owner, may_become_others, started_by_root};

/// The configuration that is read unless root names another.
pub const CONFIG_PATH: &str = "/etc/slurm-mesh/trigger-submitter.toml";
/// Where Slurm's commands are looked for, unless the configuration names a folder.
const COMMAND_DIRS: [&str; 4] = ["/usr/local/bin", "/usr/bin", "/bin", "/opt/slurm/bin"];
/// Longest configuration.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// For whom jobs are submitted, and how Slurm is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// Users for whom jobs may be submitted; `*` is every user. The process's own user needs no entry.
    pub users: Vec<String>,
    /// Least uid: system users have lower ones.
    pub min_uid: u32,
    /// Ids that submissions may choose: `60000001-67043327`, above `MaxJobId`. Unset: none.
    pub job_ids: Option<String>,
    /// Slurm's commands: `conf`, `bin_dir`, `command_timeout`. For chosen ids slurmrestd: `rest_url`, `token_file`, `rest_user`.
    pub slurm: slurm_client::Config,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            users: Vec::new(),
            min_uid: 1000,
            job_ids: None,
            slurm: slurm_client::Config {
                // A submission waits for job_submit plugins; a killed sbatch leaves it open whether there is a job.
                command_timeout: Duration::from_secs(30),
                ..slurm_client::Config::default()
            },
        }
    }
}

impl Policy {
    /// Reads the configuration.
    ///
    /// # Errors
    /// If a path is given by somebody who could become other users by it, or the file is not readable, not root's, or faulty.
    pub(crate) fn load(path: Option<&Path>) -> io::Result<Self> {
        let privileged = may_become_others();
        if path.is_some() && privileged && !started_by_root() {
            return Err(io::Error::other("--config is for root only"));
        }
        let file = match File::open(path.unwrap_or(Path::new(CONFIG_PATH))) {
            // Without a configuration everybody may submit for themselves.
            Err(error) if path.is_none() && error.kind() == io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            opened => opened?,
        };
        let about = file.metadata()?;
        if privileged && (about.uid() != 0 || about.mode() & 0o022 != 0) {
            return Err(io::Error::other(
                "others than root may change it; chown root and chmod 644 it",
            ));
        }
        let mut text = String::new();
        file.take(MAX_CONFIG_BYTES).read_to_string(&mut text)?;
        toml::from_str(&text).map_err(io::Error::other)
    }

    /// How Slurm's commands are run. Their folder is found here, since commands of the owner have no `PATH`.
    pub(crate) fn commands(&self) -> slurm_client::Config {
        let has_sbatch = |dir: &PathBuf| dir.join("sbatch").is_file();
        let found = || COMMAND_DIRS.map(PathBuf::from).into_iter().find(has_sbatch);
        slurm_client::Config {
            source: slurm_client::Source::Cli,
            bin_dir: self.slurm.bin_dir.clone().or_else(found),
            ..self.slurm.clone()
        }
    }

    /// Checks that a submission may choose this id.
    ///
    /// # Errors
    /// Refused, with the reason.
    pub(crate) fn permits_id(&self, id: JobId) -> Result<(), SubmitError> {
        let range = self.job_ids.as_deref().and_then(|text| {
            let (first, last) = text.split_once('-')?;
            Some(first.trim().parse::<u32>().ok()?..=last.trim().parse().ok()?)
        });
        match range.is_some_and(|range| range.contains(&id.get())) {
            true => Ok(()),
            false => Err(SubmitError::refused(format!(
                "job id {id} is not in job_ids of trigger-submitter.toml"
            ))),
        }
    }

    /// Checks that jobs may be submitted for this user, by commands of the user's own.
    ///
    /// # Errors
    /// Refused, with the reason.
    pub(crate) fn permits(&self, owner: &Owner) -> Result<(), SubmitError> {
        self.lists(owner)?;
        match owner.is_this_process() || may_become_others() {
            true => Ok(()),
            false => Err(SubmitError::refused(format!(
                "user {}: trigger-submitter runs as another user and may not become this one; run it as root or with CAP_SETUID and CAP_SETGID",
                owner.name
            ))),
        }
    }

    /// Checks that jobs may be submitted for this user at all.
    ///
    /// # Errors
    /// Refused, with the reason.
    pub(crate) fn lists(&self, owner: &Owner) -> Result<(), SubmitError> {
        let name = &owner.name;
        let refused = |why: &str| Err(SubmitError::refused(format!("user {name}: {why}")));
        if owner.uid == 0 {
            return refused("no jobs are submitted for root");
        }
        if owner.is_this_process() {
            return Ok(());
        }
        if owner.uid < self.min_uid {
            return refused("the uid is below min_uid of trigger-submitter.toml");
        }
        if owner.groups.contains(&0) {
            return refused("the user is in root's group");
        }
        if !self.users.iter().any(|user| user == "*" || user == name) {
            return refused("not in users of trigger-submitter.toml");
        }
        Ok(())
    }
}
