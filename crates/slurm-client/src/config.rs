//! Section `[slurm]` of `mesh.toml`.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

/// How to reach Slurm by its commands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// slurm.conf to use. Unset: the environment's `SLURM_CONF`, else what the commands find themselves.
    pub conf: Option<PathBuf>,
    /// Folder of Slurm's commands. Unset: the search path.
    pub bin_dir: Option<PathBuf>,
    /// How long one command may take before it is killed.
    #[serde(with = "humantime_serde")]
    pub command_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            conf: None,
            bin_dir: None,
            command_timeout: Duration::from_secs(10),
        }
    }
}
