//! An endpoint as written in `mesh.toml` or given to the API.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::domain::format::{Format, Secret};

/// An endpoint as it is written: one `[[webhook-dispatcher.endpoints]]`, or what the API is given. Written as JSON it is what may be
/// shown.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[schema(as = WebhookSpec)]
#[serde(deny_unknown_fields, default)]
pub struct EndpointConfig {
    /// Its name, which its owner has only once: letters, digits, `.`, `_` and `-`.
    #[serde(skip_serializing)]
    #[schema(max_length = 64, example = "pipeline")]
    pub name: String,
    /// What it is for.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(max_length = 500)]
    pub description: String,
    /// Where to send. AuditedRead without what could be secret in it.
    #[serde(skip_serializing)]
    #[schema(example = "https://pipeline.example.org/events")]
    pub url: String,
    /// File with the address, where the address itself is a secret. Only in `mesh.toml`.
    #[serde(skip_serializing)]
    #[schema(ignore)]
    pub url_file: Option<PathBuf>,
    /// Signing secret, `whsec_` and 24 to 64 bytes in base64. Made if it is needed and not given; never shown again.
    #[serde(skip_serializing)]
    #[schema(value_type = Option<String>, write_only)]
    pub secret: Option<SecretString>,
    /// File with the secret. Only in `mesh.toml`.
    #[serde(skip_serializing)]
    #[schema(ignore)]
    pub secret_file: Option<PathBuf>,
    /// What is sent: the name of a format, or an object whose `type` names it.
    #[schema(value_type = Object)]
    pub format: Format,
    /// Headers of every request. Values are secret: shown as `…`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, String>)]
    pub headers: BTreeMap<String, Secret>,
    /// Type patterns, as `job.failed`, `job.*`, `*`. Empty: everything, for chats what people act on.
    pub types: Vec<String>,
    /// Unix users whose events are sent. Empty for all; a user's own endpoint has that user.
    pub users: Vec<String>,
    /// Partitions. Empty for all.
    pub partitions: Vec<String>,
    /// Slurm clusters. Empty for all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<String>,
    /// Accounts. Empty for all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub accounts: Vec<String>,
    /// Condition on an event's fields. Empty for none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub when: String,
    /// How the tasks of arrays are told: `each`, or for chats `digest`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "digest")]
    pub arrays: Option<Arrays>,
    /// Older events are not sent, as `1d`.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "1d")]
    pub max_event_age: Option<Duration>,
    /// Private subnets it may be in. Only in `mesh.toml`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(ignore)]
    pub allow_private: Vec<String>,
    /// Whether it may have an http:// address. Only in `mesh.toml`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub allow_http: Option<bool>,
    /// Deadline of one attempt, at most `30s`.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "10s")]
    pub timeout: Option<Duration>,
    /// Requests under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1024)]
    pub concurrency: Option<usize>,
    /// Attempts in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub max_attempts: Option<u32>,
    /// Waits between attempts.
    #[serde(skip_serializing_if = "EndpointRetry::is_empty")]
    pub retry: EndpointRetry,
    /// Upper bound of a wait that the receiver asks for by `Retry-After`, at most `7d`.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "1h")]
    pub max_retry_after: Option<Duration>,
    /// Chats: a job that waits is told of once it has waited for so long, at most `7d`; at once if it cannot start before somebody acts.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "15m")]
    pub pending_threshold: Option<Duration>,
    /// A delivery that did not arrive is given up after so long, as `1d`, although attempts are left.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "1d")]
    pub give_up_after: Option<Duration>,
    /// Statuses that mean success: `202`, `2xx`, `200-204`; 2xx if not given. For `cloudevents` and `template`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub success: Vec<String>,
    /// When its circuit opens: nothing is sent for a while, then one delivery as a probe.
    #[serde(skip_serializing_if = "EndpointCircuitBreaker::is_empty")]
    pub circuit_breaker: EndpointCircuitBreaker,
    /// Requests in a second, minute or hour: `10/s`, `30/m`, `100/h`. None: as fast as it goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "10/s")]
    pub rate_limit: Option<String>,
    /// Requests at once after a pause, within the limit; as many as the number in it if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 10000)]
    pub burst: Option<u32>,
}

/// Waits between the attempts of a delivery.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[schema(as = WebhookRetry)]
#[serde(deny_unknown_fields, default)]
pub struct EndpointRetry {
    /// Upper bound of the first wait.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "10s")]
    pub initial_interval: Option<Duration>,
    /// Factor between the bounds of waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub multiplier: Option<u32>,
    /// Upper bound of every wait.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "30h")]
    pub max_interval: Option<Duration>,
}

impl EndpointRetry {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// When the circuit of an endpoint opens.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[schema(as = WebhookCircuitBreaker)]
#[serde(deny_unknown_fields, default)]
pub struct EndpointCircuitBreaker {
    /// So many failures in a row open it. 0: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 10)]
    pub failure_threshold: Option<u32>,
}

impl EndpointCircuitBreaker {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// How the tasks of arrays are reported.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Arrays {
    /// As a few messages about the array.
    Digest,
    /// As one message per task.
    Each,
}
