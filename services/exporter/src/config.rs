//! Section `[exporter]` of `mesh.toml`.

use std::collections::BTreeSet;
use std::time::Duration;

use mesh_db::DatabaseConfig;
use serde::{Deserialize, Serialize};

use crate::families::Family;

/// The defaults, with a comment for each key.
pub const DEFAULTS: &str = include_str!("../config/default.toml");

/// Settings of the exporter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Whether `smesh up` runs the exporter.
    pub enabled: bool,
    /// Families to serve.
    pub families: BTreeSet<Family>,
    /// Interval of making the pages.
    #[serde(with = "humantime_serde")]
    pub refresh_interval: Duration,
    /// Age at which a snapshot is stale.
    #[serde(with = "humantime_serde")]
    pub stale_after: Duration,
    /// Maximum number of series of a page.
    pub max_series: usize,
    /// Maximum number of events per transaction.
    pub batch_size: usize,
    /// Database of the counters.
    pub db: DatabaseConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: false,
            families: Family::DEFAULT.into(),
            refresh_interval: Duration::from_secs(5),
            stale_after: Duration::from_secs(180),
            max_series: 50_000,
            batch_size: 256,
            db: DatabaseConfig::default(),
        }
    }
}

impl Config {
    /// All faults, each with its key.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.refresh_interval < Duration::from_secs(1) {
            faults.push("exporter.refresh_interval: at least 1s".to_owned());
        }
        if self.stale_after < Duration::from_secs(30) {
            faults.push("exporter.stale_after: at least 30s".to_owned());
        }
        if self.max_series < 1_000 {
            faults.push("exporter.max_series: at least 1000".to_owned());
        }
        if !(1..=1000).contains(&self.batch_size) {
            faults.push("exporter.batch_size: from 1 to 1000".to_owned());
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
        let section = file.remove("exporter").expect("the section");
        assert_eq!(
            section.try_into::<Config>().expect("valid"),
            Config::default()
        );
    }

    #[test]
    fn every_fault_names_its_key() {
        let faults = Config {
            refresh_interval: Duration::ZERO,
            stale_after: Duration::ZERO,
            max_series: 0,
            batch_size: 0,
            ..Config::default()
        }
        .faults();
        assert_eq!(faults.len(), 4);
        assert!(faults.iter().all(|fault| fault.starts_with("exporter.")));
    }
}
