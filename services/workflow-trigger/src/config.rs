//! Section `[workflow-trigger]` of `mesh.toml`.

pub mod configured_rules;
mod rule;
mod source;

pub(crate) use source::secrets;

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mesh_db::DatabaseConfig;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use configured_rules::ConfiguredRules;

use crate::api::{AllowanceLimits, Allowances};
use crate::domain::guards::SiteLimits;
use crate::domain::rule::RuleAuthor;

/// The defaults, with a comment for each key.
pub const DEFAULTS: &str = include_str!("../config/default.toml");

/// Settings of the workflow-trigger.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Folder of the batch scripts.
    pub scripts: PathBuf,
    /// How long an accepted job is held.
    #[serde(with = "humantime_serde")]
    pub confirm_after: Duration,
    /// Maximum number of submissions per second.
    pub submit_rate: u32,
    /// Delay before the first retry.
    #[serde(with = "humantime_serde")]
    pub retry_initial_interval: Duration,
    /// Longest delay between attempts.
    #[serde(with = "humantime_serde")]
    pub retry_max_interval: Duration,
    /// Age at which a submission is given up.
    #[serde(with = "humantime_serde")]
    pub give_up_after: Duration,
    /// Longest time for which a retry waits for the other tasks of its array.
    #[serde(with = "humantime_serde")]
    pub array_wait: Duration,
    /// How long runs are stored.
    #[serde(with = "humantime_serde")]
    pub retention: Duration,
    /// Maximum number of events per transaction.
    pub batch_size: usize,
    /// Whether there are rules by API beside those of this section.
    pub api_rules: bool,
    /// The program that runs Slurm's commands as the owner.
    pub submitter: slurm_submit::Config,
    /// The rules as written. [`Config::rules`] checks them one by one, so that a fault names its rule.
    rules: Vec<Value>,
    /// Senders of events from outside.
    sources: Vec<source::SourceConfig>,
    /// Limits of all rules together.
    pub limits: LimitsConfig,
    /// Database.
    pub db: DatabaseConfig,
}

/// `[workflow-trigger.limits]`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Maximum length of a chain.
    pub depth: u32,
    /// Maximum number of firings that go back to one event.
    pub jobs_per_root: u32,
    /// Maximum number of firings in an hour for one owner.
    pub per_user_hour: u32,
    /// Maximum number of firings in an hour.
    pub per_hour: u32,
    /// Maximum number of rules that a user has by API.
    pub rules_per_user: u32,
    /// Maximum number of events that a user publishes in a minute.
    pub user_events_per_minute: NonZeroU32,
    /// Maximum size of the events that a user publishes in a minute, in bytes.
    pub user_bytes_per_minute: NonZeroU32,
    /// Maximum number of events of a source in a minute.
    pub source_events_per_minute: NonZeroU32,
    /// Maximum size of the events of a source in a minute, in bytes.
    pub source_bytes_per_minute: NonZeroU32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            scripts: "triggers.d".into(),
            confirm_after: Duration::from_secs(10),
            submit_rate: 20,
            retry_initial_interval: Duration::from_secs(2),
            retry_max_interval: Duration::from_secs(300),
            give_up_after: Duration::from_secs(86_400),
            array_wait: Duration::from_secs(3_600),
            retention: Duration::from_secs(30 * 86_400),
            batch_size: 64,
            api_rules: false,
            submitter: slurm_submit::Config::default(),
            rules: Vec::new(),
            sources: Vec::new(),
            limits: LimitsConfig::default(),
            db: DatabaseConfig::default(),
        }
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            depth: 8,
            jobs_per_root: 100,
            per_user_hour: 240,
            per_hour: 2_000,
            rules_per_user: 20,
            user_events_per_minute: number(120),
            user_bytes_per_minute: number(1 << 20),
            source_events_per_minute: number(6_000),
            source_bytes_per_minute: number(16 << 20),
        }
    }
}

const fn number(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).expect("not 0")
}

impl Config {
    /// All faults of keys outside rules, each with its key.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut check = |is_valid: bool, fault: &str| {
            if !is_valid {
                faults.push(format!("workflow-trigger.{fault}"));
            }
        };
        let minute = Duration::from_secs(60);
        let day = minute * 60 * 24;
        check(self.confirm_after <= minute, "confirm_after: at most 60s");
        check(
            (1..=1_000).contains(&self.submit_rate),
            "submit_rate: from 1 to 1000",
        );
        check(
            self.retry_initial_interval >= Duration::from_millis(100),
            "retry_initial_interval: at least 100ms",
        );
        check(
            self.retry_max_interval >= self.retry_initial_interval,
            "retry_max_interval: at least retry_initial_interval",
        );
        check(self.give_up_after >= minute, "give_up_after: at least 60s");
        check(self.array_wait <= day * 7, "array_wait: at most 7d");
        check(
            self.retention >= day * 14,
            "retention: at least 14d, as long as the event stream",
        );
        check(
            (1..=1_000).contains(&self.batch_size),
            "batch_size: from 1 to 1000",
        );
        check(
            (1..=64).contains(&self.limits.depth),
            "limits.depth: from 1 to 64",
        );
        faults
    }

    /// The checked rules and sources of a service in this cluster. `relative` resolves paths.
    ///
    /// # Errors
    /// All faults, each with its rule or source and its key.
    pub fn rules(
        &self,
        cluster: &str,
        relative: impl Fn(&Path) -> PathBuf,
    ) -> Result<ConfiguredRules, Vec<String>> {
        let (mut sources, mut faults) = (Vec::new(), Vec::new());
        for config in &self.sources {
            match config.source(&relative) {
                Ok(source) => sources.push(Arc::new(source)),
                Err(problems) => faults.extend(problems),
            }
        }
        let mut names: Vec<&str> = self.sources.iter().map(|source| source.name()).collect();
        names.sort_unstable();
        for pair in names.windows(2).filter(|pair| pair[0] == pair[1]) {
            faults.push(format!(
                "source {:?}: name: there is another of this name",
                pair[0]
            ));
        }
        let scripts = relative(&self.scripts);
        let context = rule::RuleContext {
            cluster,
            scripts: Some(&scripts),
            sources: &names,
            author: RuleAuthor::Administrator,
        };
        match rule::all(context, &self.rules) {
            Ok(rules) if faults.is_empty() => Ok(ConfiguredRules {
                cluster: cluster.to_owned(),
                rules: rules
                    .into_iter()
                    .map(|rule| (rule.id.clone(), Arc::new(rule)))
                    .collect(),
                sources,
            }),
            Ok(_) => Err(faults),
            Err(problems) => {
                faults.extend(problems);
                Err(faults)
            }
        }
    }

    /// True if there are rules, valid or not, or may be some by API.
    pub const fn may_have_rules(&self) -> bool {
        self.api_rules || !self.rules.is_empty()
    }

    /// The limits of all rules together.
    pub const fn site_limits(&self) -> SiteLimits {
        let LimitsConfig {
            depth,
            jobs_per_root,
            per_user_hour,
            per_hour,
            ..
        } = self.limits;
        SiteLimits {
            depth,
            jobs_per_root,
            per_user_hour,
            per_hour,
        }
    }

    /// What senders of events may send.
    pub(crate) fn allowances(&self) -> Allowances {
        let of = |events, bytes| AllowanceLimits { events, bytes };
        let limits = &self.limits;
        Allowances::new(
            of(limits.user_events_per_minute, limits.user_bytes_per_minute),
            of(
                limits.source_events_per_minute,
                limits.source_bytes_per_minute,
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_file_matches_the_code() {
        let mut file: toml::Table = toml::from_str(DEFAULTS).expect("valid TOML");
        let section = file.remove("workflow-trigger").expect("the section");
        let config = section.try_into::<Config>().expect("valid");
        assert_eq!(config, Config::default());
        assert_eq!(config.faults(), Vec::<String>::new());
    }

    #[test]
    fn every_fault_names_its_key() {
        let faults = Config {
            confirm_after: Duration::from_secs(61),
            submit_rate: 0,
            retry_initial_interval: Duration::ZERO,
            give_up_after: Duration::ZERO,
            retention: Duration::ZERO,
            batch_size: 0,
            ..Config::default()
        }
        .faults();
        assert_eq!(faults.len(), 6);
        assert!(
            faults
                .iter()
                .all(|fault| fault.starts_with("workflow-trigger."))
        );
    }
}
