//! Section `[ingest.identity]` of `mesh.toml`.

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
    pub getent_issuer: String,
    pub getent_field: String,
    #[serde(with = "humantime_serde")]
    pub getent_timeout: Duration,
    #[serde(with = "humantime_serde")]
    pub getent_cache_ttl: Duration,
    pub comment_issuer: String,
    pub comment_key: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            getent_issuer: String::new(),
            getent_field: "gecos.5".to_owned(),
            getent_timeout: Duration::from_secs(2),
            getent_cache_ttl: Duration::from_secs(3_600),
            comment_issuer: String::new(),
            comment_key: "oidc".to_owned(),
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
            Field::parse(&self.getent_field).is_none(),
            "ingest.identity.getent_field: name, uid, gecos, or gecos.1 to gecos.5",
        );
        check(
            self.getent_timeout.is_zero() || self.getent_timeout > Duration::from_secs(60),
            "ingest.identity.getent_timeout: more than 0, at most 60s",
        );
        check(
            self.getent_cache_ttl < Duration::from_secs(1),
            "ingest.identity.getent_cache_ttl: at least 1s",
        );
        check(
            self.comment_key.is_empty() || self.comment_key.contains(['=', ',', ' ']),
            "ingest.identity.comment_key: must not contain = or commas",
        );
        faults
    }
}

/// Position of the subject in a passwd entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The user name itself.
    Name,
    /// The uid.
    Uid,
    /// The whole comment field.
    Gecos,
    /// Its n-th part, separated by commas, counted from 1.
    GecosPart(usize),
}

impl Field {
    /// Parses the setting.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "name" => Self::Name,
            "uid" => Self::Uid,
            "gecos" => Self::Gecos,
            _ => match text.strip_prefix("gecos.")?.parse().ok()? {
                part @ 1..=5 => Self::GecosPart(part),
                _ => return None,
            },
        })
    }
}
