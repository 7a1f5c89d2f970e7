//! An endpoint as written in `mesh.toml` or given to the API.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use event_message::format::{Format, Secret};
use secrecy::SecretString;
use secret_file::{MASK, without_login};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};
use utoipa::ToSchema;

/// Configuration of a webhook endpoint, in `[[webhook-dispatcher.endpoints]]` or in a request. Defaults that refer to
/// the dispatcher are keys of `[webhook-dispatcher]` in its `mesh.toml`.
#[derive(Clone, Default, Deserialize, Serialize, ToSchema)]
#[schema(as = WebhookSpec)]
#[serde(deny_unknown_fields, default)]
pub struct EndpointConfig {
    /// Name, unique per owner: letters, digits, `.`, `_` and `-`.
    #[serde(skip_serializing)]
    #[schema(max_length = 64, example = "pipeline")]
    pub name: String,
    /// Free text, at most 500 characters.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(max_length = 500)]
    pub description: String,
    /// URL that receives the events. Shown without user, password and query. For `slack`, `teams` and `discord`, whose URL
    /// is a secret, only the host is shown.
    #[serde(skip_serializing)]
    #[schema(example = "https://pipeline.example.org/events")]
    pub url: String,
    /// File that contains the URL, for URLs that are secrets. Only in `mesh.toml`.
    #[serde(skip_serializing)]
    #[schema(ignore)]
    pub url_file: Option<PathBuf>,
    /// Signing secret: `whsec_` and 24 to 64 bytes in base64. Generated if the format requires one and none is given.
    /// Returned only when it is created or rotated.
    #[serde(skip_serializing)]
    #[schema(value_type = Option<String>, write_only)]
    pub secret: Option<SecretString>,
    /// File that contains the signing secret. Only in `mesh.toml`.
    #[serde(skip_serializing)]
    #[schema(ignore)]
    pub secret_file: Option<PathBuf>,
    /// Payload format: a name such as `cloudevents` or `slack`, or an object whose `type` is the name, with settings.
    #[schema(value_type = Object)]
    pub format: Format,
    /// HTTP headers of every request. Values are secrets and shown as `…`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, String>)]
    pub headers: BTreeMap<String, Secret>,
    /// Event type patterns: `job.failed`, `job.*`, `*`. Empty: all types; for chats and `pagerduty` a default selection.
    pub types: Vec<String>,
    /// Unix users whose events are sent. Empty: all users; the owner if the caller is not an administrator.
    pub users: Vec<String>,
    /// Slurm partitions whose events are sent. Empty: all.
    pub partitions: Vec<String>,
    /// Slurm clusters whose events are sent. Empty: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<String>,
    /// Slurm accounts whose events are sent. Empty: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub accounts: Vec<String>,
    /// Condition on the fields of an event, such as `job.exit_code > 1`. Empty: none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub when: String,
    /// Messages about job arrays: `each` (one per task) or `digest` (a few per array, chats only). Default: `digest` for
    /// chats, otherwise `each`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "digest")]
    pub arrays: Option<Arrays>,
    /// Events older than this expire unsent, such as `1d`. Default: the dispatcher's `chat_max_event_age` for chats,
    /// otherwise no limit.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "1d")]
    pub max_event_age: Option<Duration>,
    /// Private subnets that the URL may point to. Only in `mesh.toml`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(ignore)]
    pub allow_private: Vec<String>,
    /// Whether the URL may be `http://`. Only in `mesh.toml`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub allow_http: Option<bool>,
    /// Deadline of one attempt, at most `30s`. Default: the dispatcher's `timeout`.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "10s")]
    pub timeout: Option<Duration>,
    /// Maximum concurrent requests. Default: 1 for chats and `pagerduty`, otherwise the dispatcher's `concurrency`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1024)]
    pub concurrency: Option<usize>,
    /// Number of attempts before a delivery becomes a dead letter. Default: the dispatcher's `max_attempts`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub max_attempts: Option<u32>,
    /// Waits between attempts.
    #[serde(skip_serializing_if = "is_default")]
    pub retry: EndpointRetry,
    /// Maximum pause that the receiver may request by `Retry-After`, at most `7d`. Default: the dispatcher's
    /// `max_retry_after`.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "1h")]
    pub max_retry_after: Option<Duration>,
    /// Chats only: how long a job must be pending before its explanation is sent, at most `7d`. A job that cannot start
    /// without intervention is reported at once. Default: the dispatcher's `pending_threshold`.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "15m")]
    pub pending_threshold: Option<Duration>,
    /// Maximum time for all attempts of a delivery, such as `1d`. Afterwards it becomes a dead letter even if attempts
    /// remain. Default: no limit.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "1d")]
    pub give_up_after: Option<Duration>,
    /// HTTP statuses that mean success: `202`, `2xx`, `200-204`. Only for `cloudevents` and `template`. Default: `2xx`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub success: Vec<String>,
    /// Circuit breaker: stops deliveries to a failing receiver, then sends single deliveries as probes.
    #[serde(skip_serializing_if = "is_default")]
    pub circuit_breaker: EndpointCircuitBreaker,
    /// Maximum requests per second, minute or hour: `10/s`, `30/m`, `100/h`. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "10/s")]
    pub rate_limit: Option<String>,
    /// Maximum requests at once after an idle time; requires `rate_limit`. Default: the number in `rate_limit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 10000)]
    pub burst: Option<u32>,
}

impl EndpointConfig {
    /// As in `mesh.toml`, without secrets.
    fn without_secrets(&self) -> Value {
        let mut shown = json!(self);
        let url = match self.format.address_is_secret() {
            true => MASK.to_owned(),
            false => without_login(&self.url),
        };
        for (key, value) in [
            ("name", Some(json!(self.name))),
            ("url", (!self.url.is_empty()).then(|| json!(url))),
            ("secret", self.secret.as_ref().map(|_| json!(MASK))),
            ("url_file", self.url_file.as_ref().map(|file| json!(file))),
            (
                "secret_file",
                self.secret_file.as_ref().map(|file| json!(file)),
            ),
        ] {
            if let Some(value) = value {
                shown[key] = value;
            }
        }
        shown
    }
}

/// Serializes endpoints as in `mesh.toml`, without secrets.
pub(super) fn shown<S: Serializer>(
    endpoints: &[EndpointConfig],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(endpoints.iter().map(EndpointConfig::without_secrets))
}

/// Without secrets.
impl fmt::Debug for EndpointConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EndpointConfig({})", self.without_secrets())
    }
}

/// Waits between the attempts of a delivery. Each wait is random, from 0 to a bound that grows with every attempt.
/// Defaults: `[webhook-dispatcher.retry]` of the dispatcher.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[schema(as = WebhookRetry)]
#[serde(deny_unknown_fields, default)]
pub struct EndpointRetry {
    /// Bound of the first wait, such as `10s`.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "10s")]
    pub initial_interval: Option<Duration>,
    /// Factor between the bounds of consecutive waits, at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub multiplier: Option<u32>,
    /// Maximum bound of a wait, such as `30h`.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "30h")]
    pub max_interval: Option<Duration>,
}

/// When the circuit breaker of a webhook opens.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
#[schema(as = WebhookCircuitBreaker)]
#[serde(deny_unknown_fields, default)]
pub struct EndpointCircuitBreaker {
    /// Consecutive failures that open the circuit; 0: never. Default: the dispatcher's `circuit_breaker.failure_threshold`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 10)]
    pub failure_threshold: Option<u32>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
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
