//! Section `[slurm]` of `mesh.toml`.

use std::{num::NonZeroU32, path::PathBuf, time::Duration};

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
    /// At most so many commands per second on average, whatever rings.
    pub commands_per_second: NonZeroU32,
}

/// A sweep is one command; what 16 doorbells cause is 17 at most.
const COMMANDS_PER_SECOND: NonZeroU32 = NonZeroU32::new(20).expect("20 is not 0");

impl Default for Config {
    fn default() -> Self {
        Self {
            conf: None,
            bin_dir: None,
            command_timeout: Duration::from_secs(10),
            commands_per_second: COMMANDS_PER_SECOND,
        }
    }
}
