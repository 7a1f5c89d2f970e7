//! Section `[ingest.users]` of `mesh.toml`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Settings; `config/default.toml` explains each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(
    missing_docs,
    reason = "config/default.toml documents the keys, and a test compares both"
)]
pub struct Config {
    #[serde(with = "humantime_serde")]
    pub interval: Duration,
    #[serde(with = "humantime_serde")]
    pub full_interval: Duration,
    pub logins_per_minute: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(60),
            full_interval: Duration::from_secs(3_600),
            logins_per_minute: 30,
        }
    }
}

impl Config {
    /// Returns every invalid setting, prefixed with its key.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.interval < Duration::from_secs(1) {
            faults.push("ingest.users.interval: at least 1s".to_owned());
        }
        if self.full_interval < self.interval {
            faults.push("ingest.users.full_interval: at least ingest.users.interval".to_owned());
        }
        faults
    }
}
