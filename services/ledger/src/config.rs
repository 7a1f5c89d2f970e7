//! The section `[ledger]` of `mesh.toml`.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The section, every key with its default and a comment.
pub const DEFAULTS: &str = include_str!("../config/default.toml");

/// `[ledger]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// How many messages at most are stored in one transaction.
    pub batch_size: usize,
    /// Largest page of `/v1/events`.
    pub max_page: u32,
    /// Most events of one answer of `/v1/jobs/{cluster}/{job}`.
    pub max_story: u32,
    /// Where the ledger is.
    pub db: Database,
}

/// `[ledger.db]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Database {
    /// `sqlite:<path>`; empty for `ledger.db` in the data directory.
    pub url: String,
    /// How many queries may read at the same time.
    pub readers: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            batch_size: 500,
            max_page: 1000,
            max_story: 5000,
            db: Database::default(),
        }
    }
}

impl Default for Database {
    fn default() -> Self {
        Self {
            url: String::new(),
            readers: 4,
        }
    }
}

impl Config {
    /// Checks every value.
    ///
    /// # Errors
    /// All faults at once, each with its key and what is allowed.
    pub fn validate(&self) -> Result<(), Vec<String>> {
        let mut faults = Vec::new();
        let mut within = |key: &str, value: u64, most: u64| {
            if value == 0 || value > most {
                faults.push(format!("ledger.{key}: {value} is not between 1 and {most}"));
            }
        };
        within("batch_size", self.batch_size as u64, 1000);
        within("max_page", self.max_page.into(), 10_000);
        within("max_story", self.max_story.into(), 100_000);
        within("db.readers", self.db.readers.into(), 64);
        if let Err(fault) = sqlite_path(&self.db.url, Path::new("")) {
            faults.push(fault);
        }
        if faults.is_empty() {
            Ok(())
        } else {
            Err(faults)
        }
    }

    /// The database file.
    ///
    /// # Errors
    /// If the URL is of another kind.
    pub fn database(&self, data_dir: &Path) -> Result<PathBuf, Error> {
        sqlite_path(&self.db.url, data_dir).map_err(|fault| Error::Config { fault })
    }
}

/// The file of a `sqlite:` URL.
fn sqlite_path(url: &str, data_dir: &Path) -> Result<PathBuf, String> {
    if url.is_empty() {
        return Ok(data_dir.join("ledger.db"));
    }
    let path = url
        .strip_prefix("sqlite:")
        .map(|path| path.strip_prefix("//").unwrap_or(path));
    match path {
        Some(path) if !path.is_empty() && !path.starts_with(':') && !path.contains('?') => {
            Ok(data_dir.join(path))
        }
        // The text may hold a password, so it is not repeated.
        _ => Err("ledger.db.url: not of the form sqlite:<path of a file>".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_defaults_are_the_defaults() {
        let mut file: toml::Table = DEFAULTS.parse().unwrap();
        let section: Config = file.remove("ledger").unwrap().try_into().unwrap();
        assert_eq!(section, Config::default());
        assert!(file.is_empty());
        section.validate().unwrap();
    }

    #[test]
    fn the_file_is_below_the_data_directory_unless_absolute() {
        let path = |url: &str| sqlite_path(url, Path::new("/data"));
        assert_eq!(path(""), Ok("/data/ledger.db".into()));
        assert_eq!(path("sqlite:l.db"), Ok("/data/l.db".into()));
        assert_eq!(path("sqlite:///srv/l.db"), Ok("/srv/l.db".into()));
        for url in [
            "postgres://u:secret@h/db",
            "sqlite:",
            "sqlite::memory:",
            "l.db",
        ] {
            assert!(!path(url).unwrap_err().contains("secret"));
        }
    }

    #[test]
    fn every_fault_is_reported_at_once() {
        let config = Config {
            batch_size: 0,
            max_page: 1_000_000,
            ..Config::default()
        };
        let faults = config.validate().unwrap_err();
        assert_eq!(faults.len(), 2);
    }
}
