//! The `[webhook-dispatcher]` section, as written and as validated.

mod check;
mod endpoint;
mod renamed;
mod written;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use guarded_http::address::parse_subnet;
use guarded_http::{Network, ProxyConfig};
use ipnet::IpNet;
use mesh_db::{DatabaseConfig, Location};
use mesh_events::catalogue::{SLURM_EVENTS, STREAMS};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::attempt::retry::Intervals;
use crate::stream::SERVICE as NAME;

use check::Check;
pub use endpoint::Endpoint;
pub use renamed::RENAMED_KEYS;
pub(crate) use renamed::{refuse_old_keys, rename_old_keys};
pub use written::{Arrays, EndpointCircuitBreaker, EndpointConfig, EndpointRetry};

/// Keys of an endpoint that are accepted in `mesh.toml` only.
const OPERATORS: [&str; 4] = ["url_file", "secret_file", "allow_private", "allow_http"];

/// The section with its defaults.
pub const DEFAULTS: &str = include_str!("../config/default.toml");

/// The `[webhook-dispatcher]` section as written.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Deadline of one attempt.
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// Maximum requests in flight to one endpoint.
    pub concurrency: usize,
    /// Maximum attempts of a delivery.
    pub max_attempts: u32,
    /// Waits between attempts.
    pub retry: Intervals,
    /// Maximum wait requested by a receiver with `Retry-After`.
    #[serde(with = "humantime_serde")]
    pub max_retry_after: Duration,
    /// How long a job must be pending before chats are notified.
    #[serde(with = "humantime_serde")]
    pub pending_threshold: Duration,
    /// When the circuit breaker of an endpoint opens.
    pub circuit_breaker: CircuitBreakerConfig,
    /// How long a chat message waits for its cost.
    #[serde(with = "humantime_serde")]
    pub cost_join_timeout: Duration,
    /// Maximum age of events sent to chats.
    #[serde(with = "humantime_serde")]
    pub chat_max_event_age: Duration,
    /// How long outcomes are stored.
    #[serde(with = "humantime_serde")]
    pub retention: Duration,
    /// Pauses an endpoint after this time without a successful delivery. Zero: never.
    #[serde(with = "humantime_serde")]
    pub auto_disable_after: Duration,
    /// Private subnets that every endpoint may be in.
    pub allow_subnets: Vec<String>,
    /// Whether endpoints may have `http://` URLs.
    pub allow_http: bool,
    /// PEM file with certificate authorities trusted for receivers, in addition to the system's. Empty: none.
    pub ca_file: PathBuf,
    /// DNS servers for the names of receivers. Empty: the system's resolver.
    pub dns_servers: Vec<String>,
    /// The egress proxy.
    pub proxy: ProxyConfig,
    /// How long a replaced secret signs in addition to the new one.
    #[serde(with = "humantime_serde")]
    pub secret_overlap: Duration,
    /// Maximum endpoints per user.
    pub max_endpoints_per_user: u32,
    /// Maximum requests in flight to all endpoints, beyond one for each.
    pub max_in_flight: usize,
    /// Key that encrypts the secrets of endpoints created by the API.
    #[serde(serialize_with = "secret_file::masked")]
    pub secrets_key: Option<SecretString>,
    /// File with that key. Empty: `webhook-dispatcher.key` in the data directory.
    pub secrets_key_file: PathBuf,
    /// The database.
    pub db: DatabaseConfig,
    /// The endpoints of `mesh.toml`.
    #[serde(serialize_with = "written::shown")]
    pub endpoints: Vec<EndpointConfig>,
}

/// `[webhook-dispatcher.circuit_breaker]`
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CircuitBreakerConfig {
    /// Consecutive failures that open the circuit. 0: never.
    pub failure_threshold: u32,
}

impl Default for CircuitBreakerConfig {
    fn default() -> Self {
        Self {
            failure_threshold: 10,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        let hours = |hours: u64| Duration::from_secs(hours * 60 * 60);
        Self {
            timeout: Duration::from_secs(10),
            concurrency: 64,
            max_attempts: 12,
            retry: Intervals::default(),
            max_retry_after: hours(1),
            pending_threshold: Duration::from_secs(15 * 60),
            circuit_breaker: CircuitBreakerConfig::default(),
            cost_join_timeout: Duration::from_secs(3),
            chat_max_event_age: hours(1),
            retention: hours(14 * 24),
            auto_disable_after: hours(5 * 24),
            allow_subnets: Vec::new(),
            allow_http: false,
            ca_file: PathBuf::new(),
            dns_servers: Vec::new(),
            proxy: ProxyConfig::default(),
            secret_overlap: hours(24),
            max_endpoints_per_user: 20,
            max_in_flight: 2_000,
            secrets_key: None,
            secrets_key_file: PathBuf::new(),
            db: DatabaseConfig::default(),
            endpoints: Vec::new(),
        }
    }
}

/// A fault in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Name or number of the endpoint. Empty for keys of the service.
    pub endpoint: String,
    /// The key at fault.
    pub key: &'static str,
    /// The problem and the remedy.
    pub problem: String,
}

impl Fault {
    /// A fault of a key of the section, or of an endpoint that is named later.
    pub fn new(key: &'static str, problem: impl Into<String>) -> Self {
        Self {
            endpoint: String::new(),
            key,
            problem: problem.into(),
        }
    }

    /// The fault of an error about a key.
    fn of<E: ToString>(key: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::new(key, error.to_string())
    }
}

impl From<(&'static str, String)> for Fault {
    fn from((key, problem): (&'static str, String)) -> Self {
        Self::new(key, problem)
    }
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
    /// Validates the section and builds the endpoints. `read` reads a secret's file.
    ///
    /// # Errors
    /// All faults, not only the first.
    pub fn validate(
        &self,
        read: impl Fn(&Path) -> std::io::Result<String>,
    ) -> Result<Vec<Endpoint>, Vec<Fault>> {
        let mut faults = Vec::new();
        let mut allowed: Vec<IpNet> = Vec::new();
        for text in &self.allow_subnets {
            let subnet = parse_subnet(text).map_err(Fault::of("allow_subnets"));
            allowed.extend(subnet.map_err(|fault| faults.push(fault)));
        }
        let mut require = |holds: bool, key, problem: &str| {
            faults.extend((!holds).then(|| Fault::new(key, problem)));
        };
        let stream_retention = stream_retention();
        let shortest = humantime::format_duration(stream_retention);
        let problem = format!(
            "at least {shortest}, the retention of SLURM_EVENTS: otherwise events could be sent twice"
        );
        let is_long = self.retention >= stream_retention;
        require(is_long, "retention", &problem);
        let is_short = self.cost_join_timeout <= Duration::from_secs(60);
        require(is_short, "cost_join_timeout", "at most 60s");
        let is_within = (1..=100_000).contains(&self.max_in_flight);
        require(is_within, "max_in_flight", "from 1 to 100000");
        let is_stored = self.auto_disable_after <= self.retention;
        let problem = "at most `retention`, and 0s for never: what is older is removed";
        require(is_stored, "auto_disable_after", problem);
        faults.extend(self.location(Path::new("")).err());
        let mut names = BTreeSet::new();
        let mut endpoints = Vec::new();
        for (index, written) in self.endpoints.iter().enumerate() {
            let mut check = Check::new(self, written, &read);
            check.name();
            if !written.name.is_empty() && !names.insert(&written.name) {
                check.fault("name", "used twice; names must be unique");
            }
            let endpoint = check.endpoint(&allowed);
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
    /// Validates an endpoint given to the API.
    ///
    /// # Errors
    /// All faults, including keys that only the operator may set.
    pub fn endpoint(&self, spec: &Value) -> Result<Endpoint, Vec<Fault>> {
        let faults: Vec<Fault> = OPERATORS
            .iter()
            .filter(|key| spec.get(**key).is_some())
            .map(|key| Fault::new(key, "can only be set in mesh.toml"))
            .collect();
        if !faults.is_empty() {
            return Err(faults);
        }
        let written: EndpointConfig = serde_path_to_error::deserialize(spec)
            .map_err(|error| vec![Fault::new("", unread(&error))])?;
        let allowed = self
            .allow_subnets
            .iter()
            .flat_map(|text| parse_subnet(text));
        let allowed: Vec<IpNet> = allowed.collect();
        // Naming a file would let API users read the server's files.
        let refused = "files can only be named in mesh.toml";
        let nothing = |_: &Path| Err(std::io::Error::other(refused));
        let mut check = Check::new(self, &written, &nothing);
        check.name();
        check.name_in_paths();
        match check.endpoint(&allowed) {
            Some(endpoint) if check.faults.is_empty() => Ok(endpoint),
            _ => Err(check.faults),
        }
    }
}

/// Faults in one line.
pub fn one_line(faults: &[Fault]) -> String {
    let faults = faults.iter().map(|fault| match fault.key {
        "" => fault.problem.clone(),
        key => format!("{key}: {}", fault.problem),
    });
    faults.collect::<Vec<_>>().join("; ")
}

/// Describes a deserialization error with its path.
fn unread(error: &serde_path_to_error::Error<serde_json::Error>) -> String {
    match error.path().to_string().as_str() {
        // An error at the root is an unknown field, which the message names.
        "." => error.inner().to_string(),
        path => format!("{path}: {}", error.inner()),
    }
}

impl Config {
    /// Validates the network settings. `read` reads a file, `read_secret` a file that must not be readable by others.
    ///
    /// # Errors
    /// All faults, not only the first.
    pub fn network(
        &self,
        read: impl Fn(&Path) -> std::io::Result<String>,
        read_secret: impl Fn(&Path) -> std::io::Result<String>,
    ) -> Result<Network, Vec<Fault>> {
        let (file, servers) = (&self.ca_file, &self.dns_servers);
        let network = Network::new(file, servers, &self.proxy, read, read_secret);
        network.map_err(|faults| faults.into_iter().map(Fault::from).collect())
    }

    /// Location of the database.
    ///
    /// # Errors
    /// If the URL is none.
    pub fn location(&self, data_dir: &Path) -> Result<Location, Fault> {
        let key = format!("{NAME}.db.url: ");
        let location = self.db.location(NAME, data_dir);
        location.map_err(|fault| Fault::new("db.url", fault.replacen(&key, "", 1)))
    }
}

/// Retention of the event stream.
fn stream_retention() -> Duration {
    STREAMS
        .iter()
        .filter(|stream| stream.name == SLURM_EVENTS)
        .map(|stream| stream.max_age)
        .max()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
