//! Section `[ingest]` of `mesh.toml`.

use std::num::NonZeroU32;
use std::time::Duration;

use chrono::{DateTime, Utc};
use mesh_runtime::{ParseTimeError, time_bound};
use serde::Deserialize;

/// The section with its defaults and comments.
pub const DEFAULTS: &str = include_str!("../config/default.toml");

/// Settings; `config/default.toml` explains each.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(
    missing_docs,
    reason = "config/default.toml is the documentation, and a test keeps both together"
)]
pub struct Config {
    #[serde(with = "humantime_serde")]
    pub sweep_interval: Duration,
    #[serde(with = "humantime_serde")]
    pub sweep_interval_max: Duration,
    #[serde(with = "humantime_serde")]
    pub read_interval: Duration,
    pub unknown_jobs_per_minute: NonZeroU32,
    pub accounting: bool,
    pub history_since: String,
    #[serde(with = "humantime_serde")]
    pub catch_up_overlap: Duration,
    #[serde(with = "humantime_serde")]
    pub absent_after: Duration,
    #[serde(with = "humantime_serde")]
    pub proof_patience: Duration,
    #[serde(with = "humantime_serde")]
    pub settle_within: Duration,
    #[serde(with = "humantime_serde")]
    pub usage_after: Duration,
    #[serde(with = "humantime_serde")]
    pub forget_after: Duration,
    #[serde(with = "humantime_serde")]
    pub identity_poll: Duration,
    pub users: crate::users::Config,
    pub identity: crate::identity::Config,
}

/// An array may begin to run at once, before a sweep has seen it.
const UNKNOWN_JOBS_PER_MINUTE: NonZeroU32 = NonZeroU32::new(1_000).expect("1000 is not 0");

impl Default for Config {
    fn default() -> Self {
        Self {
            sweep_interval: Duration::from_secs(5),
            sweep_interval_max: Duration::from_secs(60),
            read_interval: Duration::from_millis(50),
            unknown_jobs_per_minute: UNKNOWN_JOBS_PER_MINUTE,
            accounting: true,
            history_since: String::new(),
            catch_up_overlap: Duration::from_secs(600),
            absent_after: Duration::from_secs(120),
            proof_patience: Duration::from_secs(30),
            settle_within: Duration::from_secs(600),
            usage_after: Duration::from_secs(10),
            forget_after: Duration::from_secs(3_600),
            identity_poll: Duration::from_secs(5),
            users: crate::users::Config::default(),
            identity: crate::identity::Config::default(),
        }
    }
}

impl Config {
    /// Every fault, by key.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut check = |wrong: bool, fault: &str| {
            if wrong {
                faults.push(fault.to_owned());
            }
        };
        check(
            self.sweep_interval < Duration::from_millis(500),
            "ingest.sweep_interval: at least 500ms",
        );
        check(
            self.read_interval < Duration::from_millis(10),
            "ingest.read_interval: at least 10ms",
        );
        check(
            self.settle_within < self.proof_patience,
            "ingest.settle_within: at least ingest.proof_patience",
        );
        check(
            self.forget_after < self.catch_up_overlap.saturating_mul(2),
            "ingest.forget_after: at least twice ingest.catch_up_overlap",
        );
        check(
            self.absent_after < Duration::from_secs(1),
            "ingest.absent_after: at least 1s",
        );
        check(
            self.identity_poll.is_zero(),
            "ingest.identity_poll: more than 0",
        );
        check(
            self.history_since().is_err(),
            "ingest.history_since: empty, or a time such as 2026-11-01T00:00:00Z or 2026-11-01",
        );
        faults.extend(self.users.faults());
        faults.extend(self.identity.faults());
        faults
    }

    /// [`Config::catch_up_overlap`] in seconds.
    pub fn overlap_secs(&self) -> i64 {
        i64::try_from(self.catch_up_overlap.as_secs()).unwrap_or(i64::MAX)
    }

    /// Begin of the history to be published at the first start.
    ///
    /// # Errors
    /// If the text is no time and no date.
    pub fn history_since(&self) -> Result<Option<DateTime<Utc>>, ParseTimeError> {
        match self.history_since.as_str() {
            "" => Ok(None),
            text => time_bound::rfc3339_or_date(text, &Utc).map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_defaults_are_the_defaults() {
        let documented: toml::Table = DEFAULTS.parse().unwrap();
        assert_eq!(
            documented["ingest"].clone().try_into::<Config>().unwrap(),
            Config::default()
        );
        assert_eq!(
            documented["slurm"]
                .clone()
                .try_into::<slurm_client::Config>()
                .unwrap(),
            slurm_client::Config::default()
        );
        assert_eq!(Config::default().faults(), Vec::<String>::new());
    }

    #[test]
    fn faults_name_their_keys() {
        let config = Config {
            history_since: "yesterday".into(),
            forget_after: Duration::ZERO,
            ..Config::default()
        };
        let faults = config.faults().join("\n");
        assert!(
            faults.contains("ingest.history_since") && faults.contains("ingest.forget_after"),
            "{faults}"
        );
    }
}
