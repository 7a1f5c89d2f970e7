//! The section `[cost-engine]` of `mesh.toml`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

/// The section, every key with its default and a comment.
pub const DEFAULTS: &str = include_str!("../config/default.toml");

/// `[cost-engine]`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The price book, relative to the configuration file. Empty: no costs are computed.
    pub price_book: PathBuf,
    /// How often the price book is looked at for changes.
    #[serde(with = "humantime_serde")]
    pub reload_interval: Duration,
    /// `sqlite:<path>`; empty for `cost-engine.db` in the data directory.
    pub database_url: String,
    /// How many messages at most are handled in one transaction.
    pub batch_size: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            price_book: PathBuf::new(),
            reload_interval: Duration::from_secs(2),
            database_url: String::new(),
            batch_size: 256,
        }
    }
}

impl Config {
    /// Every fault, each with its key and what is allowed; none if the section can be used.
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
        if self.database(Path::new("")).is_none() {
            // The text may hold a password, so it is not repeated.
            faults.push(
                "cost-engine.database_url: not of the form sqlite:<path of a file>".to_owned(),
            );
        }
        faults
    }

    /// The database file; `None` if the URL is of another kind.
    pub fn database(&self, data_dir: &Path) -> Option<PathBuf> {
        if self.database_url.is_empty() {
            return Some(data_dir.join("cost-engine.db"));
        }
        let path = self.database_url.strip_prefix("sqlite:")?;
        let path = path.strip_prefix("//").unwrap_or(path);
        let is_file = !path.is_empty() && !path.starts_with(':') && !path.contains('?');
        is_file.then(|| data_dir.join(path))
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
            reload_interval: Duration::ZERO,
            database_url: "postgres://u:secret@h/db".into(),
            ..Config::default()
        };
        let faults = config.faults();
        assert_eq!(faults.len(), 3);
        assert!(!faults.join(" ").contains("secret"));
    }

    #[test]
    fn the_database_is_below_the_data_directory_unless_absolute() {
        let path = |url: &str| {
            Config {
                database_url: url.into(),
                ..Config::default()
            }
            .database(Path::new("/data"))
        };
        assert_eq!(path(""), Some("/data/cost-engine.db".into()));
        assert_eq!(path("sqlite:c.db"), Some("/data/c.db".into()));
        assert_eq!(path("sqlite:///srv/c.db"), Some("/srv/c.db".into()));
        assert_eq!(path("sqlite::memory:"), None);
    }
}
