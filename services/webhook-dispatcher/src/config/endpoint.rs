//! A validated endpoint.

use standard_webhooks::Signer;
use std::sync::Arc;
use std::time::Duration;

use crate::attempt::success::Codes;
use event_filter::Filter;
use ipnet::IpNet;
use redactor::{Redactor, Values};
use reqwest::header::{HeaderName, HeaderValue};
use serde_json::Value;
use url::Url;

use crate::attempt::circuit::{self, CircuitPolicy};
use crate::attempt::gate::AdmissionRules;
use crate::attempt::rate::Limit;
use crate::attempt::retry::RetryPolicy;
use event_message::format::Format;

/// A validated endpoint.
#[derive(Clone)]
pub struct Endpoint {
    /// Full name, including the owner if it belongs to a user.
    pub name: String,
    /// Unix user who owns it. Empty for endpoints of `mesh.toml`.
    pub owner: String,
    /// URL to send to.
    pub url: Url,
    /// Signs requests. `None` for formats without signatures.
    pub signer: Option<Signer>,
    /// Format of requests.
    pub format: Format,
    /// Selects events.
    pub filter: Arc<Filter>,
    /// Whether array events are aggregated into digests.
    pub digest: bool,
    /// Headers of every request.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Definition without secrets, as JSON.
    pub public: String,
    /// Older events are not sent. `None`: no limit.
    pub max_event_age: Option<Duration>,
    /// How long a job must be pending before a chat is notified.
    pub pending_threshold: Duration,
    /// Private subnets that the endpoint may be in.
    pub allowed: Vec<IpNet>,
    /// Deadline of one attempt.
    pub timeout: Duration,
    /// Maximum requests in flight.
    pub concurrency: usize,
    /// Number and intervals of attempts.
    pub policy: RetryPolicy,
    /// Statuses that mean success.
    pub success: Codes,
    /// Consecutive failures that open the circuit. 0: never.
    pub failure_threshold: u32,
    /// Rate limit. `None`: unlimited.
    pub limit: Option<Limit>,
    /// Removes the endpoint's secrets from recorded or displayed text.
    pub redactor: Arc<Redactor>,
}

impl Endpoint {
    /// Rules for admission. Probes use the retry intervals, capped at [`circuit::LONGEST`].
    pub fn rules(&self) -> AdmissionRules {
        let policy = self.policy;
        AdmissionRules {
            circuit: CircuitPolicy {
                failure_threshold: self.failure_threshold,
                initial_interval: policy.initial_interval,
                multiplier: policy.multiplier,
                max_interval: policy.max_interval.min(circuit::LONGEST),
            },
            limit: self.limit,
            max_retry_after: policy.max_retry_after,
        }
    }

    /// True if another definition means the same, with the same secrets.
    pub fn is_same(&self, other: &Self) -> bool {
        let signing = |one: &Self| -> Vec<String> {
            let secrets = one.signer.iter().flat_map(Signer::secrets);
            secrets.map(str::to_owned).collect()
        };
        let settings = |one: &Self| -> Vec<String> {
            let secrets = one.format.secrets().into_iter();
            secrets
                .map(|(_, secret)| secret.expose().to_owned())
                .collect()
        };
        // Every other field is computed from the public definition and the dispatcher's own keys.
        self.public == other.public
            && self.url == other.url
            && self.headers == other.headers
            && signing(self) == signing(other)
            && settings(self) == settings(other)
    }

    /// The definition without secrets.
    pub fn spec(&self) -> Value {
        // Written as JSON by the check of the configuration.
        serde_json::from_str(&self.public).unwrap_or_default()
    }

    /// All secrets of the endpoint.
    pub fn secrets(&self) -> Values {
        let mut values = Values::default();
        values.address(&self.url, self.format.address_is_secret());
        for (name, value) in &self.headers {
            values.header(name.as_str(), value.as_bytes());
        }
        for (_, secret) in self.format.secrets() {
            values.secret(secret.expose());
        }
        for secret in self.signer.iter().flat_map(Signer::secrets) {
            values.signing_secret(secret);
        }
        values
    }

    /// The URL without user, password and query. For chats only the host, as the path is the secret.
    pub fn redacted_url(&self) -> String {
        self.format.shown(&self.url)
    }
}
