//! Configuration of the NATS connection.

use std::fmt;
use std::path::PathBuf;

use secrecy::SecretString;
use serde::{Deserialize, Serialize};

/// The `[mesh.nats]` section.
#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// URL, e.g. `nats://127.0.0.1:4222`. Several are separated by commas. Empty: `smesh up` starts its own server.
    #[serde(serialize_with = "secret_file::masked_login")]
    pub url: String,
    /// User name. Absent for servers without authorization, or with `credentials_file`.
    pub user: Option<String>,
    /// Password. Prefer `password_file`.
    #[serde(serialize_with = "secret_file::masked")]
    pub password: Option<SecretString>,
    /// File with the password.
    pub password_file: Option<PathBuf>,
    /// NATS credentials file (JWT and NKey seed).
    pub credentials_file: Option<PathBuf>,
    /// File with an NKey seed, instead of `user` and `password`, or of `credentials_file`.
    pub nkey_file: Option<PathBuf>,
    /// PEM file with the certificate authorities of the server. Makes TLS required. Absent: the system's authorities, and TLS only if
    /// the URL is `tls://` or the server requires it.
    pub ca_file: Option<PathBuf>,
    /// PEM file with the client certificate, for servers that require one.
    pub cert_file: Option<PathBuf>,
    /// PEM file with the private key of `cert_file`.
    pub key_file: Option<PathBuf>,
    /// Whether the service declares streams, consumers and buckets at start. Requires broad permissions. Disabled if a deployment job or
    /// `smesh up` declares them.
    pub provision: bool,
    /// Replicas of streams and buckets: 1, 3 or 5.
    pub replicas: usize,
    /// Maximum size of the stream SLURM_EVENTS in bytes. Publishers wait while it is full.
    pub events_max_bytes: Option<i64>,
}

impl Config {
    /// All faults, each with its key.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if ![1, 3, 5].contains(&self.replicas) {
            faults.push("mesh.nats.replicas: 1, 3 or 5".to_owned());
        }
        let password = self.password.is_some() || self.password_file.is_some();
        let means = [
            self.user.is_some() || password,
            self.credentials_file.is_some(),
            self.nkey_file.is_some(),
        ];
        if means.iter().filter(|given| **given).count() > 1 {
            faults.push(
                "mesh.nats.user, mesh.nats.credentials_file, mesh.nats.nkey_file: set only one of them".to_owned(),
            );
        }
        if password && self.user.is_none() {
            faults.push("mesh.nats.user: required with a password".to_owned());
        }
        if self.cert_file.is_some() != self.key_file.is_some() {
            faults.push("mesh.nats.cert_file, mesh.nats.key_file: set both or neither".to_owned());
        }
        faults
    }

    /// The URL without user and password, for logs and messages.
    pub fn redacted_url(&self) -> String {
        secret_file::without_login(&self.url)
    }
}

/// Without passwords.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("url", &self.redacted_url())
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            url: String::new(),
            user: None,
            password: None,
            password_file: None,
            credentials_file: None,
            nkey_file: None,
            ca_file: None,
            cert_file: None,
            key_file: None,
            provision: true,
            replicas: 1,
            events_max_bytes: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_without_its_password() {
        for (url, redacted) in [
            ("nats://h:1", "nats://h:1"),
            ("nats://u:p@h:1", "nats://********@h:1"),
            ("token@h", "********@h"),
            (
                "nats://u:p@ss@h,tls://u:q@i:2",
                "nats://********@h,tls://********@i:2",
            ),
            ("nats://:::", "nats://:::"),
            ("", ""),
        ] {
            let config = Config {
                url: url.into(),
                ..Config::default()
            };
            assert_eq!(config.redacted_url(), redacted);
            assert!(format!("{config:?}").contains(&format!("{redacted:?}")));
        }
    }
}
