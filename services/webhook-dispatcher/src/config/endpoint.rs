//! An endpoint, checked.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{HeaderName, HeaderValue};
use serde_json::Value;
use url::Url;

use crate::domain::address::Subnet;
use crate::domain::circuit::{self, CircuitPolicy};
use crate::domain::filter::Filter;
use crate::domain::format::Format;
use crate::domain::gate::AdmissionRules;
use crate::domain::rate::Limit;
use crate::domain::redactor::{Redactor, Values};
use crate::domain::retry::RetryPolicy;
use crate::domain::success::Codes;
use crate::signature::Signer;

/// An endpoint, checked.
#[derive(Clone)]
pub struct Endpoint {
    /// Its full name: with the owner's, if it belongs to a user.
    pub name: String,
    /// Unix user it belongs to; empty for those of `mesh.toml`.
    pub owner: String,
    /// Where to send.
    pub url: Url,
    /// Signs what is sent; `None` for formats that know no signatures.
    pub signer: Option<Signer>,
    /// What is sent.
    pub format: Format,
    /// Which events.
    pub filter: Filter,
    /// Whether arrays are told as digests.
    pub digest: bool,
    /// Headers of every request.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// What may be shown of it.
    pub public: Value,
    /// Older events are not sent.
    pub max_event_age: Option<Duration>,
    /// A chat is told of a job that waits once it has waited for so long.
    pub pending_threshold: Duration,
    /// Subnets it may be in although they are private.
    pub allowed: Vec<Subnet>,
    /// Deadline of one attempt.
    pub timeout: Duration,
    /// Requests under way.
    pub concurrency: usize,
    /// How often and when it is tried.
    pub policy: RetryPolicy,
    /// Statuses that mean success.
    pub success: Codes,
    /// So many failures in a row open its circuit; 0: never.
    pub failure_threshold: u32,
    /// How fast; `None`: as fast as it goes.
    pub limit: Option<Limit>,
    /// Takes its secrets out of what is recorded or shown.
    pub redactor: Arc<Redactor>,
}

impl Endpoint {
    /// When it may be sent something. Probes wait as retries do, but never for hours.
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

    /// Everything about it that is secret.
    pub fn secrets(&self) -> Values {
        let mut values = Values::default();
        values.address(&self.url, self.format.address_is_secret());
        for (_, value) in &self.headers {
            values.header(value.as_bytes());
        }
        for (_, secret) in self.format.secrets() {
            values.secret(secret.expose());
        }
        for secret in self.signer.iter().flat_map(Signer::secrets) {
            values.signing_secret(secret);
        }
        values
    }

    /// The address as far as it may be shown: no user, password or query; of a chat's address only the host, since its path is the secret.
    pub fn redacted_url(&self) -> String {
        self.format.shown(&self.url)
    }
}
