//! Section `[node-watcher]` of `mesh.toml`.

use std::time::Duration;

use mesh_bus::Backoff;
use mesh_runtime::RenamedKeys;
use serde::{Deserialize, Serialize};

/// The defaults, with a comment for each key.
pub const DEFAULTS: &str = include_str!("../config/default.toml");
/// Keys of the section that were renamed.
pub const RENAMED_KEYS: RenamedKeys = &[("max_interval", "max_poll_interval")];

/// Intervals of the polls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Interval of the polls.
    #[serde(with = "humantime_serde")]
    pub poll_interval: Duration,
    /// Longest interval while Slurm is slow or unavailable.
    #[serde(with = "humantime_serde")]
    pub max_poll_interval: Duration,
    /// Interval at which accounting is asked for downtimes that no poll has seen. Zero: never.
    #[serde(with = "humantime_serde")]
    pub accounting_interval: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            poll_interval: Duration::from_secs(5),
            max_poll_interval: Duration::from_secs(60),
            accounting_interval: Duration::from_secs(60),
        }
    }
}

impl Config {
    /// All faults, each with its key.
    pub fn validate(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.poll_interval < Duration::from_millis(100) {
            faults.push("node-watcher.poll_interval: at least 100ms".to_owned());
        }
        if self.max_poll_interval < self.poll_interval {
            faults.push("node-watcher.max_poll_interval: not less than poll_interval".to_owned());
        }
        faults
    }

    /// Pause between polls if Slurm's answer takes `took`. Polling takes at most a twentieth of the time.
    pub fn pause(&self, took: Duration) -> Duration {
        took.saturating_mul(20)
            .clamp(self.poll_interval, self.max_poll_interval)
    }

    /// Pause before a poll requested by a doorbell. The same bound applies, and two polls never follow each other directly.
    pub fn pause_after_ring(&self, took: Duration) -> Duration {
        took.saturating_mul(20)
            .clamp(Duration::from_millis(200), self.max_poll_interval)
    }

    /// Pause before the state is loaded again, after `wasted` consecutive polls whose results could not be stored. Slurm must not be
    /// polled more often because NATS cannot write. If only NATS failed, a second is enough.
    pub fn pause_after_session(&self, wasted: u32) -> Duration {
        let retry = Duration::from_secs(1);
        if wasted == 0 {
            retry
        } else {
            self.pause_after_failures(wasted).max(retry)
        }
    }

    /// Pause after `failures` consecutive failures.
    pub fn pause_after_failures(&self, failures: u32) -> Duration {
        Backoff::doubling(self.poll_interval, self.max_poll_interval)
            .nth_delay(failures.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_file_matches_the_code() {
        let mut file: toml::Table = toml::from_str(DEFAULTS).expect("valid TOML");
        let section = file.remove("node-watcher").expect("the section");
        assert_eq!(
            section.try_into::<Config>().expect("valid"),
            Config::default()
        );
        let slurm = file.remove("slurm").expect("the section of the client");
        assert_eq!(
            slurm.try_into::<slurm_client::Config>().expect("valid"),
            slurm_client::Config::default()
        );
    }

    #[test]
    fn a_slow_or_absent_slurm_is_asked_less_often() {
        let config = Config::default();
        let seconds = Duration::from_secs;
        assert_eq!(config.pause(Duration::from_millis(20)), seconds(5));
        assert_eq!(config.pause(seconds(1)), seconds(20));
        assert_eq!(config.pause(seconds(10)), seconds(60));
        assert_eq!(
            [1, 50, 10_000].map(|took| config.pause_after_ring(Duration::from_millis(took))),
            [200, 1_000, 60_000].map(Duration::from_millis)
        );
        assert_eq!(
            [1, 2, 3, 9].map(|failures| config.pause_after_failures(failures)),
            [5, 10, 20, 60].map(seconds)
        );
    }

    #[test]
    fn slurm_is_not_asked_every_second_while_the_state_cannot_be_written() {
        let config = Config::default();
        assert_eq!(
            [0, 1, 2, 9].map(|wasted| config.pause_after_session(wasted)),
            [1, 5, 10, 60].map(Duration::from_secs)
        );
    }

    #[test]
    fn every_fault_names_its_key() {
        let faults = Config {
            poll_interval: Duration::ZERO,
            max_poll_interval: Duration::ZERO,
            ..Config::default()
        }
        .validate();
        assert!(faults.len() == 1 && faults[0].starts_with("node-watcher.poll_interval"));
    }
}
