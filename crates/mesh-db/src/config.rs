//! The keys of a service's database.

use std::path::Path;

use secret_file::LoginUrl;
use serde::{Deserialize, Serialize};

use crate::Location;

/// `[<service>.db]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DatabaseConfig {
    /// `sqlite:<path>` or `postgres://…`; empty for `<service>.db` in the data directory.
    pub url: LoginUrl,
}

impl DatabaseConfig {
    /// Location of a service's database. A relative path starts in the data directory.
    ///
    /// # Errors
    /// The fault, with its key. The text does not repeat the URL, which may hold a password.
    pub fn location(&self, service: &str, data_dir: &Path) -> Result<Location, String> {
        if self.url.is_empty() {
            return Ok(Location::Sqlite(data_dir.join(format!("{service}.db"))));
        }
        Location::parse(&self.url, data_dir).map_err(|fault| format!("{service}.db.url: {fault}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_is_below_the_data_directory_by_default() {
        let location = |url: &str| {
            let config = DatabaseConfig { url: url.into() };
            let location = config.location("ledger", Path::new("/data"));
            location.map(|location| location.to_string())
        };
        assert_eq!(location(""), Ok("/data/ledger.db".into()));
        assert_eq!(location("sqlite:l.db"), Ok("/data/l.db".into()));
        assert_eq!(
            location("postgres://mesh@db.example.org/events"),
            Ok("postgres://db.example.org:5432/events".into())
        );
        let fault = location("mysql://u:secret@h/db").unwrap_err();
        assert!(fault.starts_with("ledger.db.url: ") && !fault.contains("secret"));
    }
}
