//! An existing Slurm, used like a normal user would and never configured.

use tokio::process::Command;

use crate::{Error, Marks, Slurm};

/// The cluster of this environment (`SLURM_CONF`).
#[derive(Debug)]
pub struct Attached {
    name: String,
}

impl Attached {
    /// Identifies the cluster.
    ///
    /// # Errors
    /// If Slurm does not answer.
    pub async fn find() -> Result<Self, Error> {
        let mut slurm = Self {
            name: String::new(),
        };
        let config = slurm.ask("", &["scontrol", "show", "config"]).await?;
        let name = config
            .lines()
            .filter_map(|line| line.split_once('='))
            .find(|(key, _)| key.trim() == "ClusterName");
        slurm.name = name
            .map(|(_, value)| value.trim().to_owned())
            .ok_or_else(|| Error::Machine("scontrol show config names no ClusterName".into()))?;
        Ok(slurm)
    }
}

impl Slurm for Attached {
    fn name(&self) -> &str {
        &self.name
    }

    /// The user is ignored: commands run as the user of this process.
    fn command(&self, _user: &str, command: &[&str]) -> Command {
        let mut all = Command::new(command.first().copied().unwrap_or_default());
        all.args(command.get(1..).unwrap_or_default())
            .kill_on_drop(true);
        all
    }

    fn marks(&self) -> Option<&Marks> {
        None
    }
}
