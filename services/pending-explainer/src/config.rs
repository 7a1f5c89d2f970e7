//! Section `[pending-explainer]` of `mesh.toml`.

use std::time::Duration;

use mesh_runtime::RenamedKeys;
use serde::{Deserialize, Serialize};

/// The defaults, with a comment for each key.
pub const DEFAULTS: &str = include_str!("../config/default.toml");
/// Keys of the section that were renamed.
pub const RENAMED_KEYS: RenamedKeys =
    &[("queue_interval", "poll_interval"), ("batch", "batch_size")];

/// Settings of the explainer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Interval of reading the queue snapshot.
    #[serde(with = "humantime_serde")]
    pub poll_interval: Duration,
    /// Interval of estimating starts.
    #[serde(with = "humantime_serde")]
    pub estimate_interval: Duration,
    /// Maximum number of events per batch.
    pub batch_size: usize,
    /// Maximum number of shards written concurrently.
    pub concurrency: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            poll_interval: Duration::from_secs(10),
            estimate_interval: Duration::from_secs(60),
            batch_size: 256,
            concurrency: 32,
        }
    }
}

impl Config {
    /// All faults, each with its key.
    pub fn validate(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.poll_interval < Duration::from_millis(100) {
            faults.push("pending-explainer.poll_interval: at least 100ms".to_owned());
        }
        if self.estimate_interval < Duration::from_millis(100) {
            faults.push("pending-explainer.estimate_interval: at least 100ms".to_owned());
        }
        if !(1..=1000).contains(&self.batch_size) {
            faults.push("pending-explainer.batch_size: from 1 to 1000".to_owned());
        }
        if !(1..=1024).contains(&self.concurrency) {
            faults.push("pending-explainer.concurrency: from 1 to 1024".to_owned());
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_file_matches_the_code() {
        let mut file: toml::Table = toml::from_str(DEFAULTS).expect("valid TOML");
        let section = file.remove("pending-explainer").expect("the section");
        assert_eq!(
            section.try_into::<Config>().expect("valid"),
            Config::default()
        );
    }

    #[test]
    fn every_fault_names_its_key() {
        let faults = Config {
            poll_interval: Duration::ZERO,
            estimate_interval: Duration::ZERO,
            batch_size: 0,
            concurrency: 0,
        }
        .validate();
        assert_eq!(faults.len(), 4);
        assert!(
            faults
                .iter()
                .all(|fault| fault.starts_with("pending-explainer."))
        );
    }
}
