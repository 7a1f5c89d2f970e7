//! Where NATS is and who we are there.

use std::path::PathBuf;

use secrecy::SecretString;
use serde::Deserialize;

/// The `[mesh.nats]` section.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Address, e.g. `nats://127.0.0.1:4222`; several separated by commas. Empty: `smesh up` starts its own server.
    pub url: String,
    /// User name. Absent for servers without authorisation, or with `credentials_file`.
    pub user: Option<String>,
    /// Password; `password_file` is better.
    pub password: Option<SecretString>,
    /// File that holds the password.
    pub password_file: Option<PathBuf>,
    /// NATS credentials file (JWT and nkey seed).
    pub credentials_file: Option<PathBuf>,
    /// Whether the service declares streams, consumers and buckets itself. Needs wide rights; off where a deploy job or `smesh up` does it.
    pub provision: bool,
    /// Replicas of streams and buckets: 1, 3 or 5.
    pub replicas: usize,
    /// Most bytes the public bus keeps. When full, publishers wait.
    pub events_max_bytes: Option<i64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            url: String::new(),
            user: None,
            password: None,
            password_file: None,
            credentials_file: None,
            provision: true,
            replicas: 1,
            events_max_bytes: None,
        }
    }
}
