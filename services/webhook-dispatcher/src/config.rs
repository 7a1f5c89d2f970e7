//! The `[webhook-dispatcher]` section: what was written, and what it means.

mod check;
mod network;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mesh_db::Location;
use mesh_events::catalogue::{SLURM_EVENTS, STREAMS};
use reqwest::header::{HeaderName, HeaderValue};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use url::Url;
use utoipa::ToSchema;

use crate::domain::address::{self, Subnet};
use crate::domain::circuit;
use crate::domain::filter::Filter;
use crate::domain::format::{Format, Secret};
use crate::domain::gate::Rules;
use crate::domain::rate::Limit;
use crate::domain::retry::Policy;
use crate::domain::success::Codes;
use crate::signature::Signer;

use check::Check;
pub use network::{Network, Proxy, ProxyConfig};

/// What only the operator may say of an endpoint.
const OPERATORS: [&str; 4] = ["url_file", "secret_file", "allow_private", "allow_http"];

/// The section with its defaults.
pub const DEFAULTS: &str = include_str!("../config/default.toml");

/// The `[webhook-dispatcher]` section as it is written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Deadline of one attempt.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// Requests under way to one endpoint.
    pub concurrency: usize,
    /// Attempts in all.
    pub max_attempts: u32,
    /// Upper bound of the first wait.
    #[serde(with = "humantime_serde")]
    pub first_wait: Duration,
    /// Factor between the bounds of waits.
    pub growth: u32,
    /// Upper bound of every wait.
    #[serde(with = "humantime_serde")]
    pub longest_wait: Duration,
    /// So many failures in a row open the circuit of an endpoint; 0: never.
    pub circuit_after: u32,
    /// How long a chat message waits for its cost.
    #[serde(with = "humantime_serde")]
    pub cost_wait: Duration,
    /// Age up to which chats are told of events.
    #[serde(with = "humantime_serde")]
    pub chat_max_event_age: Duration,
    /// How long outcomes are remembered.
    #[serde(with = "humantime_serde")]
    pub remember: Duration,
    /// An endpoint to which nothing has arrived for so long is paused; zero for never.
    #[serde(with = "humantime_serde")]
    pub pause_after: Duration,
    /// Private subnets that every endpoint may be in.
    pub allow_subnets: Vec<String>,
    /// Whether endpoints may have http:// addresses.
    pub allow_http: bool,
    /// Authorities that receivers may be certified by, beside the system's; empty for none.
    pub ca_file: PathBuf,
    /// Who is asked about names; empty to ask as the system does.
    pub dns_servers: Vec<String>,
    /// What requests go through.
    pub proxy: ProxyConfig,
    /// How long the old secret signs beside a new one.
    #[serde(with = "humantime_serde")]
    pub secret_overlap: Duration,
    /// How many endpoints a user may have.
    pub most_per_user: u32,
    /// Encrypts the secrets of endpoints that the API made.
    pub secrets_key: Option<SecretString>,
    /// File of that key; empty for `webhook-dispatcher.key` in the data directory.
    pub secrets_key_file: PathBuf,
    /// Where everything is kept.
    pub db: Database,
    /// Who gets which events.
    pub endpoints: Vec<EndpointConfig>,
}

/// `[webhook-dispatcher.db]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Database {
    /// `sqlite:<path>` or `postgres://…`; empty for `webhook-dispatcher.db` in the data directory.
    pub url: String,
}

impl Default for Config {
    fn default() -> Self {
        let hours = |hours: u64| Duration::from_secs(hours * 60 * 60);
        Self {
            timeout: Duration::from_secs(10),
            concurrency: 64,
            max_attempts: 12,
            first_wait: Duration::from_secs(10),
            growth: 4,
            longest_wait: hours(30),
            circuit_after: 10,
            cost_wait: Duration::from_secs(3),
            chat_max_event_age: hours(1),
            remember: hours(14 * 24),
            pause_after: hours(5 * 24),
            allow_subnets: Vec::new(),
            allow_http: false,
            ca_file: PathBuf::new(),
            dns_servers: Vec::new(),
            proxy: ProxyConfig::default(),
            secret_overlap: hours(24),
            most_per_user: 20,
            secrets_key: None,
            secrets_key_file: PathBuf::new(),
            db: Database::default(),
            endpoints: Vec::new(),
        }
    }
}

/// An endpoint as it is written: one `[[webhook-dispatcher.endpoints]]`, or what the API is given. Written as JSON it is what may be
/// shown.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
#[schema(as = WebhookSpec)]
#[serde(deny_unknown_fields, default)]
pub struct EndpointConfig {
    /// Its name, unique: letters, digits, `.`, `_` and `-`.
    #[serde(skip_serializing)]
    #[schema(max_length = 64, example = "pipeline")]
    pub name: String,
    /// What it is for.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schema(max_length = 500)]
    pub description: String,
    /// Where to send. Shown without what could be secret in it.
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
    /// Upper bound of the first wait.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "10s")]
    pub first_wait: Option<Duration>,
    /// Factor between the bounds of waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub growth: Option<u32>,
    /// Upper bound of every wait.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "30h")]
    pub longest_wait: Option<Duration>,
    /// A delivery that did not arrive is given up after so long, as `1d`, although attempts are left.
    #[serde(with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "1d")]
    pub give_up_after: Option<Duration>,
    /// Statuses that mean success: `202`, `2xx`, `200-204`; 2xx if not given. For `cloudevents` and `template`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub success: Vec<String>,
    /// So many failures in a row open its circuit: nothing is sent for a while, then one delivery as a probe. 0: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 10)]
    pub circuit_after: Option<u32>,
    /// Requests in a second, minute or hour: `10/s`, `30/m`, `100/h`. None: as fast as it goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "10/s")]
    pub rate_limit: Option<String>,
    /// Requests at once after a pause, within the limit; as many as the number in it if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 10000)]
    pub burst: Option<u32>,
}

/// How the tasks of arrays are told.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Arrays {
    /// As a few messages about the array.
    Digest,
    /// Each by itself.
    Each,
}

/// An endpoint, checked.
#[derive(Clone)]
pub struct Endpoint {
    /// Its name.
    pub name: String,
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
    /// Subnets it may be in although they are private.
    pub allowed: Vec<Subnet>,
    /// Deadline of one attempt.
    pub timeout: Duration,
    /// Requests under way.
    pub concurrency: usize,
    /// How often and when it is tried.
    pub policy: Policy,
    /// Statuses that mean success.
    pub success: Codes,
    /// So many failures in a row open its circuit; 0: never.
    pub circuit_after: u32,
    /// How fast; `None`: as fast as it goes.
    pub limit: Option<Limit>,
}

impl Endpoint {
    /// When it may be sent something. Probes wait as retries do, but never for hours.
    pub fn rules(&self) -> Rules {
        let policy = self.policy;
        Rules {
            circuit: circuit::Policy {
                after: self.circuit_after,
                first: policy.first_wait,
                growth: policy.growth,
                longest: policy.longest_wait.min(circuit::LONGEST),
            },
            limit: self.limit,
        }
    }

    /// The address as far as it may be shown: no user, password or query; of a chat's address only the host, since its path is the secret.
    pub fn shown_url(&self) -> String {
        self.format.shown(&self.url)
    }
}

/// Something wrong in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Name of the endpoint, or its number; empty for the service's own keys.
    pub endpoint: String,
    /// The key.
    pub key: &'static str,
    /// What is wrong, and what to do.
    pub problem: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.endpoint.is_empty() {
            write!(f, "webhook-dispatcher.{}: {}", self.key, self.problem)
        } else {
            write!(
                f,
                "webhook-dispatcher endpoint {:?}: {}: {}",
                self.endpoint, self.key, self.problem
            )
        }
    }
}

impl Config {
    /// Checks everything and makes the endpoints. `read` reads a secret's file.
    ///
    /// # Errors
    /// Every fault, not only the first.
    pub fn validate(
        &self,
        read: impl Fn(&Path) -> std::io::Result<String>,
    ) -> Result<Vec<Endpoint>, Vec<Fault>> {
        let mut faults = Vec::new();
        let own = |key, problem: &str| Fault {
            endpoint: String::new(),
            key,
            problem: problem.to_owned(),
        };
        let allowed: Vec<Subnet> = self
            .allow_subnets
            .iter()
            .filter_map(|text| {
                text.parse()
                    .map_err(|error: address::InvalidSubnet| {
                        faults.push(own("allow_subnets", &error.to_string()))
                    })
                    .ok()
            })
            .collect();
        if self.remember < kept() {
            let kept = humantime::format_duration(kept());
            let problem = format!(
                "at least {kept}: so long the stream keeps events, and what is forgotten would be sent twice"
            );
            faults.push(own("remember", &problem));
        }
        if self.cost_wait > Duration::from_secs(60) {
            faults.push(own(
                "cost_wait",
                "at most 60s; people wait for these messages",
            ));
        }
        if self.pause_after > self.remember {
            faults.push(own(
                "pause_after",
                "at most `remember`, and 0s for never: what is older is forgotten",
            ));
        }
        faults.extend(self.db.location(Path::new("")).err());
        let mut names = BTreeSet::new();
        let mut endpoints = Vec::new();
        for (index, written) in self.endpoints.iter().enumerate() {
            let mut check = Check::new(self, written);
            check.name();
            if !written.name.is_empty() && !names.insert(&written.name) {
                check.fault("name", "used twice; every endpoint needs its own");
            }
            let endpoint = check.endpoint(&allowed, &read);
            let label = if written.name.is_empty() {
                format!("#{}", index + 1)
            } else {
                written.name.clone()
            };
            faults.extend(check.faults.into_iter().map(|fault| Fault {
                endpoint: label.clone(),
                ..fault
            }));
            endpoints.extend(endpoint);
        }
        if faults.is_empty() {
            Ok(endpoints)
        } else {
            Err(faults)
        }
    }
}

impl Config {
    /// Checks an endpoint as the API is given it.
    ///
    /// # Errors
    /// Every fault; what only the operator may set is one.
    pub fn endpoint(&self, spec: &Value) -> Result<Endpoint, Vec<Fault>> {
        let fault = |key, problem: String| Fault {
            endpoint: String::new(),
            key,
            problem,
        };
        let faults: Vec<Fault> = OPERATORS
            .iter()
            .filter(|key| spec.get(**key).is_some())
            .map(|key| fault(key, "can only be set in mesh.toml".to_owned()))
            .collect();
        if !faults.is_empty() {
            return Err(faults);
        }
        let written: EndpointConfig = serde_path_to_error::deserialize(spec)
            .map_err(|error| vec![fault("", unread(&error))])?;
        let allowed = self.allow_subnets.iter().flat_map(|text| text.parse());
        let allowed: Vec<Subnet> = allowed.collect();
        let mut check = Check::new(self, &written);
        check.name();
        check.name_in_paths();
        // Whoever may write files into an address could read those of the server.
        let nothing = |_: &Path| {
            Err(std::io::Error::other(
                "files can only be named in mesh.toml",
            ))
        };
        let endpoint = check.endpoint(&allowed, &nothing);
        match endpoint {
            Some(endpoint) if check.faults.is_empty() => Ok(endpoint),
            _ => Err(check.faults),
        }
    }
}

/// What cannot be read, and where.
fn unread(error: &serde_path_to_error::Error<serde_json::Error>) -> String {
    match error.path().to_string().as_str() {
        // Of the object itself: an unknown field, which is named.
        "." => error.inner().to_string(),
        path => format!("{path}: {}", error.inner()),
    }
}

impl Database {
    /// Where the tables are.
    ///
    /// # Errors
    /// What is wrong with the address.
    pub fn location(&self, data_dir: &Path) -> Result<Location, Fault> {
        if self.url.is_empty() {
            return Ok(Location::Sqlite(data_dir.join("webhook-dispatcher.db")));
        }
        Location::parse(&self.url, data_dir).map_err(|problem| Fault {
            endpoint: String::new(),
            key: "db.url",
            problem,
        })
    }
}

/// How long the stream keeps events.
fn kept() -> Duration {
    STREAMS
        .iter()
        .filter(|stream| stream.name == SLURM_EVENTS)
        .map(|stream| stream.max_age)
        .max()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
