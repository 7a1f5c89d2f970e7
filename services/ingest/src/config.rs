//! Section `[ingest]` of `mesh.toml`.

use std::num::NonZeroU32;
use std::time::Duration;

use chrono::DateTime;
use mesh_runtime::{ParseTimeError, RenamedKeys, TimeBound};
use serde::{Deserialize, Serialize};

/// Default configuration with comments.
pub const DEFAULTS: &str = include_str!("../config/default.toml");
/// Renamed keys of the section: old name, new name.
pub const RENAMED_KEYS: RenamedKeys = &[
    ("sweep_interval", "poll_interval"),
    ("sweep_interval_max", "max_poll_interval"),
    ("absent_after", "catch_up_threshold"),
    ("proof_patience", "missing_record_timeout"),
    ("settle_within", "resolution_timeout"),
    ("usage_after", "usage_delay"),
    ("forget_after", "ended_run_retention"),
    ("identity_poll", "identity_reload_interval"),
    ("identity.getent_cache", "identity.getent_cache_ttl"),
];

/// Settings; `config/default.toml` explains each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(
    missing_docs,
    reason = "config/default.toml documents the keys, and a test compares both"
)]
pub struct Config {
    #[serde(with = "humantime_serde")]
    pub poll_interval: Duration,
    #[serde(with = "humantime_serde")]
    pub max_poll_interval: Duration,
    #[serde(with = "humantime_serde")]
    pub evidence_interval: Duration,
    #[serde(with = "humantime_serde")]
    pub list_interval: Duration,
    #[serde(with = "humantime_serde")]
    pub read_interval: Duration,
    pub unknown_jobs_per_minute: NonZeroU32,
    pub accounting: bool,
    pub history_since: String,
    #[serde(with = "humantime_serde")]
    pub catch_up_overlap: Duration,
    #[serde(with = "humantime_serde")]
    pub catch_up_threshold: Duration,
    #[serde(with = "humantime_serde")]
    pub missing_record_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub resolution_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub usage_delay: Duration,
    #[serde(with = "humantime_serde")]
    pub ended_run_retention: Duration,
    #[serde(with = "humantime_serde")]
    pub identity_reload_interval: Duration,
    pub statistics: StatisticsConfig,
    pub users: crate::users::Config,
    pub identity: crate::identity::Config,
}

/// What is read for metrics only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StatisticsConfig {
    /// Interval of the statistics of slurmctld, licenses, reservations and limits of accounts. 0: never.
    #[serde(with = "humantime_serde")]
    pub interval: Duration,
    /// Interval of fairshare. 0: never.
    #[serde(with = "humantime_serde")]
    pub shares_interval: Duration,
}

/// Tasks of an array may start at once, before a poll has shown them.
const UNKNOWN_JOBS_PER_MINUTE: NonZeroU32 = NonZeroU32::new(1_000).expect("1000 is not 0");

impl Default for Config {
    fn default() -> Self {
        Self {
            poll_interval: Duration::from_secs(5),
            max_poll_interval: Duration::from_secs(60),
            evidence_interval: Duration::from_secs(30),
            list_interval: Duration::ZERO,
            read_interval: Duration::from_millis(50),
            unknown_jobs_per_minute: UNKNOWN_JOBS_PER_MINUTE,
            accounting: true,
            history_since: String::new(),
            catch_up_overlap: Duration::from_secs(600),
            catch_up_threshold: Duration::from_secs(120),
            missing_record_timeout: Duration::from_secs(30),
            resolution_timeout: Duration::from_secs(420),
            usage_delay: Duration::from_secs(10),
            ended_run_retention: Duration::from_secs(3_600),
            identity_reload_interval: Duration::from_secs(5),
            statistics: StatisticsConfig::default(),
            users: crate::users::Config::default(),
            identity: crate::identity::Config::default(),
        }
    }
}

impl Config {
    /// Returns every invalid setting, prefixed with its key.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut check = |wrong: bool, fault: &str| {
            if wrong {
                faults.push(fault.to_owned());
            }
        };
        check(
            self.poll_interval < Duration::from_millis(500),
            "ingest.poll_interval: at least 500ms",
        );
        check(
            self.evidence_interval < Duration::from_secs(1),
            "ingest.evidence_interval: at least 1s",
        );
        check(
            !self.list_interval.is_zero() && self.list_interval < Duration::from_millis(500),
            "ingest.list_interval: 0s, or at least 500ms",
        );
        for (key, interval) in [
            ("interval", self.statistics.interval),
            ("shares_interval", self.statistics.shares_interval),
        ] {
            check(
                !interval.is_zero() && interval < Duration::from_secs(1),
                &format!("ingest.statistics.{key}: 0s, or at least 1s"),
            );
        }
        check(
            self.read_interval < Duration::from_millis(10),
            "ingest.read_interval: at least 10ms",
        );
        check(
            self.resolution_timeout < self.missing_record_timeout,
            "ingest.resolution_timeout: at least ingest.missing_record_timeout",
        );
        check(
            self.ended_run_retention < self.catch_up_overlap.saturating_mul(2),
            "ingest.ended_run_retention: at least twice ingest.catch_up_overlap",
        );
        check(
            self.catch_up_threshold < Duration::from_secs(1),
            "ingest.catch_up_threshold: at least 1s",
        );
        check(
            self.identity_reload_interval.is_zero(),
            "ingest.identity_reload_interval: more than 0",
        );
        check(
            self.history_since(0).is_err(),
            "ingest.history_since: empty, or a time such as 2026-11-01T00:00:00Z, 2026-11-01, yesterday or 2h",
        );
        faults.extend(self.users.faults());
        faults.extend(self.identity.faults());
        faults
    }

    /// How long the accounting backlog comes before everything else that accounting is asked. With the lookups that follow, which last up to
    /// `resolution_timeout`, this stays below ten minutes.
    pub fn backlog_priority(&self) -> Duration {
        self.resolution_timeout / 3
    }

    /// [`Config::catch_up_overlap`] in seconds.
    pub fn overlap_secs(&self) -> i64 {
        i64::try_from(self.catch_up_overlap.as_secs()).unwrap_or(i64::MAX)
    }

    /// Returns the configured start of the history to publish at the first start, in Unix seconds. `yesterday` and `2h` are before the
    /// start of capture, not before now: later processes go on with the history that the first one began.
    ///
    /// # Errors
    /// If the text is not a time.
    pub fn history_since(&self, capture_since: i64) -> Result<Option<i64>, ParseTimeError> {
        if self.history_since.is_empty() {
            return Ok(None);
        }
        let start = DateTime::from_timestamp(capture_since, 0).unwrap_or_default();
        let bound = TimeBound::parse(&self.history_since, &start)?;
        Ok(Some(bound.resolve(&start).timestamp()))
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
    fn history_begins_at_a_time_or_before_the_start_of_capture() {
        let time = |text: &str| DateTime::parse_from_rfc3339(text).unwrap().timestamp();
        let capture_since = time("2026-11-22T10:00:00Z");
        for (text, from) in [
            ("2026-11-01T10:00:00+01:00", "2026-11-01T09:00:00Z"),
            ("2026-11-01T10:00", "2026-11-01T10:00:00Z"),
            ("2026-11-01", "2026-11-01T00:00:00Z"),
            ("yesterday", "2026-11-21T00:00:00Z"),
            ("2h", "2026-11-22T08:00:00Z"),
            ("7days", "2026-11-15T10:00:00Z"),
        ] {
            let config = Config {
                history_since: text.into(),
                ..Config::default()
            };
            let found = config.history_since(capture_since);
            assert_eq!(found, Ok(Some(time(from))), "{text}");
            assert_eq!(config.faults(), Vec::<String>::new(), "{text}");
        }
        assert_eq!(Config::default().history_since(capture_since), Ok(None));
    }

    #[test]
    fn faults_name_their_keys() {
        let config = Config {
            history_since: "last week".into(),
            ended_run_retention: Duration::ZERO,
            ..Config::default()
        };
        let faults = config.faults().join("\n");
        assert!(
            faults.contains("ingest.history_since")
                && faults.contains("ingest.ended_run_retention"),
            "{faults}"
        );
    }
}
