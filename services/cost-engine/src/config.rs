//! The section `[cost-engine]` of `mesh.toml`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mesh_db::DatabaseConfig;
use mesh_runtime::RenamedKeys;
use serde::{Deserialize, Serialize};

use crate::accrual::AccrualRules;
use crate::domain::Micros;

/// The section with every key, its default and a comment.
pub const DEFAULTS: &str = include_str!("../config/default.toml");
/// Keys of the section that were renamed.
pub const RENAMED_KEYS: RenamedKeys = &[("database_url", "db.url")];

/// Largest amount of `accrue_at`, in currency units.
const MAX_ACCRUE_AT: u64 = 1_000_000_000_000;
/// Bounds of `accrue_every`.
const MIN_ACCRUE_EVERY: Duration = Duration::from_secs(3_600);
const MAX_ACCRUE_EVERY: Duration = Duration::from_secs(366 * 24 * 3_600);

/// `[cost-engine]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The price book, relative to the configuration file. Empty: no costs are computed.
    pub price_book: PathBuf,
    /// Folder with budgets, relative to the configuration file. Empty: no budgets.
    pub budgets: PathBuf,
    /// Interval of the checks for changes of the price book and the budgets.
    #[serde(with = "humantime_serde")]
    pub reload_interval: Duration,
    /// Maximum number of messages in one transaction.
    pub batch_size: usize,
    /// Amounts in currency units whose passing by a running job is published as `cost.accrued`, ascending.
    pub accrue_at: Vec<u64>,
    /// Interval of `cost.accrued` of a running job. Zero: none.
    #[serde(with = "humantime_serde")]
    pub accrue_every: Duration,
    /// Database of the costs.
    pub db: DatabaseConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            price_book: PathBuf::new(),
            budgets: PathBuf::new(),
            reload_interval: Duration::from_secs(2),
            batch_size: 256,
            accrue_at: vec![10, 100, 1_000, 10_000, 100_000, 1_000_000],
            accrue_every: Duration::ZERO,
            db: DatabaseConfig::default(),
        }
    }
}

impl Config {
    /// When accrued costs are due.
    pub(crate) fn accrual_rules(&self) -> AccrualRules {
        let micros = |units: &u64| Micros(i64::try_from(*units * 1_000_000).unwrap_or(i64::MAX));
        let seconds = i64::try_from(self.accrue_every.as_secs()).unwrap_or(i64::MAX);
        AccrualRules {
            at: self.accrue_at.iter().map(micros).collect(),
            every: (seconds > 0).then_some(seconds),
        }
    }

    /// All faults, each with its key and the allowed values. Empty if the section is valid.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if !(1..=1000).contains(&self.batch_size) {
            faults.push(format!(
                "cost-engine.batch_size: {} is not between 1 and 1000",
                self.batch_size
            ));
        }
        if !(Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&self.reload_interval)
        {
            faults.push("cost-engine.reload_interval: not between 100ms and 1h".to_owned());
        }
        if !self.budgets.as_os_str().is_empty() && self.price_book.as_os_str().is_empty() {
            faults.push(
                "cost-engine.budgets: without a price book there are no costs; set cost-engine.price_book"
                    .to_owned(),
            );
        }
        if !self.accrue_at.is_sorted_by(|one, next| one < next)
            || self.accrue_at.first() == Some(&0)
            || self
                .accrue_at
                .last()
                .is_some_and(|last| *last > MAX_ACCRUE_AT)
        {
            faults.push(format!(
                "cost-engine.accrue_at: not ascending whole numbers between 1 and {MAX_ACCRUE_AT}"
            ));
        }
        let is_every_valid = (MIN_ACCRUE_EVERY..=MAX_ACCRUE_EVERY).contains(&self.accrue_every)
            && self.accrue_every.subsec_nanos() == 0;
        if !self.accrue_every.is_zero() && !is_every_valid {
            faults.push(
                "cost-engine.accrue_every: neither 0s nor whole seconds between 1h and 366d"
                    .to_owned(),
            );
        }
        faults.extend(self.db.location("cost-engine", Path::new("")).err());
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_defaults_are_the_defaults() {
        let mut file: toml::Table = DEFAULTS.parse().unwrap();
        let section: Config = file.remove("cost-engine").unwrap().try_into().unwrap();
        assert_eq!(section, Config::default());
        assert!(file.is_empty());
        assert_eq!(section.faults(), Vec::<String>::new());
    }

    #[test]
    fn every_fault_is_reported_at_once_and_no_password() {
        let config = Config {
            batch_size: 0,
            accrue_at: vec![10, 10],
            accrue_every: Duration::from_secs(60),
            budgets: "budgets.d".into(),
            reload_interval: Duration::ZERO,
            db: DatabaseConfig {
                url: "mysql://u:secret@h/db".into(),
            },
            ..Config::default()
        };
        let faults = config.faults();
        assert_eq!(faults.len(), 6, "{faults:?}");
        assert!(!faults.join(" ").contains("secret"));
    }
}
