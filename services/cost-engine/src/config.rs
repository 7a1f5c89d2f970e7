//! The section `[cost-engine]` of `mesh.toml`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mesh_db::Location;
use mesh_runtime::RenamedKeys;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// The section with every key, its default and a comment.
pub const DEFAULTS: &str = include_str!("../config/default.toml");
/// Keys of the section that were renamed.
pub const RENAMED_KEYS: RenamedKeys = &[("database_url", "db.url")];

/// `[cost-engine]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
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
    /// Database of the costs.
    pub db: Database,
    /// The former name of `db.url`.
    database_url: Option<IgnoredAny>,
}

/// `[cost-engine.db]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Database {
    /// `sqlite:<path>` or `postgres://…`; empty for `cost-engine.db` in the data directory.
    pub url: String,
}

impl Database {
    /// Location of the database. A relative path starts in the data directory.
    ///
    /// # Errors
    /// The fault. The text does not repeat the URL, which may hold a password.
    pub fn location(&self, data_dir: &Path) -> Result<Location, String> {
        let url = match self.url.as_str() {
            "" => "sqlite:cost-engine.db",
            url => url,
        };
        Location::parse(url, data_dir).map_err(|fault| format!("cost-engine.db.url: {fault}"))
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            price_book: PathBuf::new(),
            budgets: PathBuf::new(),
            reload_interval: Duration::from_secs(2),
            batch_size: 256,
            db: Database::default(),
            database_url: None,
        }
    }
}

impl Config {
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
        if self.database_url.is_some() {
            faults.push(
                "cost-engine.database_url: renamed to cost-engine.db.url (`[cost-engine.db] url`)"
                    .to_owned(),
            );
        }
        faults.extend(self.db.location(Path::new("")).err());
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
            budgets: "budgets.d".into(),
            reload_interval: Duration::ZERO,
            db: Database {
                url: "mysql://u:secret@h/db".into(),
            },
            ..Config::default()
        };
        let faults = config.faults();
        assert_eq!(faults.len(), 4);
        assert!(!faults.join(" ").contains("secret"));
    }

    #[test]
    fn the_former_key_of_the_database_names_the_new_one() {
        let config: Config = toml::from_str("database_url = \"sqlite:c.db\"").unwrap();
        let faults = config.faults();
        assert_eq!(faults.len(), 1);
        assert!(faults[0].contains("cost-engine.db.url"), "{faults:?}");
    }

    #[test]
    fn the_database_is_below_the_data_directory_by_default() {
        let printed = |url: &str| {
            let db = Database { url: url.into() };
            db.location(Path::new("/data"))
                .map(|location| location.to_string())
        };
        assert_eq!(printed(""), Ok("/data/cost-engine.db".into()));
        assert_eq!(printed("sqlite:c.db"), Ok("/data/c.db".into()));
        assert_eq!(
            printed("postgres://mesh@db.example.org/costs"),
            Ok("postgres://db.example.org:5432/costs".into())
        );
        assert!(printed("sqlite::memory:").is_err());
    }
}
