//! A validated endpoint.

use standard_webhooks::Signer;
use std::sync::Arc;
use std::time::Duration;

use event_filter::Filter;
use ipnet::IpNet;
use redactor::{Redactor, Values};
use reqwest::header::{HeaderName, HeaderValue};
use serde_json::Value;
use url::Url;

use crate::attempt::gate::AdmissionRules;
use crate::attempt::retry::RetryPolicy;
use event_message::format::Format;
use event_message::success_codes::SuccessCodes;

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
    pub success: SuccessCodes,
    /// Whether a request may be sent now.
    pub rules: AdmissionRules,
    /// Removes the endpoint's secrets from recorded or displayed text.
    pub redactor: Arc<Redactor>,
}

impl Endpoint {
    /// True if another definition means the same, with the same secrets.
    pub fn is_same(&self, other: &Self) -> bool {
        let [ours, theirs] = [self, other].map(|one| one.signer.iter().flat_map(Signer::secrets));
        // Every other field is computed from the public definition and the dispatcher's own keys.
        self.public == other.public
            && self.url == other.url
            && self.headers == other.headers
            && self.format == other.format
            && ours.eq(theirs)
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
