//! One configuration file: defaults, then `mesh.toml`, then the environment.

mod renamed;
mod secrets;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use figment::Figment;
use figment::providers::{Env, Format as _, Toml};
use figment::value::Value;
use ipnet::IpNet;
use secret_file::FileStamp;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};

use crate::Service;
use crate::api::{OidcConfig, TokenConfig};

pub use renamed::RenamedKeys;
use secrets::{mask, secret_keys};

/// Defaults of `[mesh]`, every key with its comment.
pub(crate) const DEFAULTS: &str = include_str!("../config/default.toml");

/// Longest allowed timeout.
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);

/// The `[mesh]` section.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeshConfig {
    /// Slurm's ClusterName.
    pub cluster: String,
    /// Folder for state.
    pub data_dir: PathBuf,
    /// Time until the process has ended after SIGTERM.
    #[serde(with = "humantime_serde")]
    pub drain_deadline: Duration,
    /// TOML file that maps Unix users to OIDC identities.
    #[serde(default)]
    pub identity_map: Option<PathBuf>,
    /// Connection to NATS.
    pub nats: mesh_bus::Config,
    /// Logs and traces.
    pub telemetry: TelemetryConfig,
    /// Server and access control of the API.
    pub api: ApiConfig,
}

impl MeshConfig {
    /// Time for the services' work after SIGTERM. What follows it, up to the end of the process, has the rest of `drain_deadline`.
    pub fn work_deadline(&self) -> Duration {
        self.drain_deadline.mul_f64(0.8)
    }

    /// Time for API connections to close after the work.
    pub(crate) fn connections_deadline(&self) -> Duration {
        self.drain_deadline.mul_f64(0.05)
    }

    /// Time to send the last spans.
    pub fn spans_deadline(&self) -> Duration {
        self.drain_deadline.mul_f64(0.1)
    }

    /// All paths that are set. An empty path counts as absent.
    pub(crate) fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        [
            Some(&mut self.data_dir),
            self.identity_map.as_mut(),
            self.nats.password_file.as_mut(),
            self.nats.credentials_file.as_mut(),
            self.nats.nkey_file.as_mut(),
            self.nats.ca_file.as_mut(),
            self.nats.cert_file.as_mut(),
            self.nats.key_file.as_mut(),
            Some(&mut self.api.socket),
            Some(&mut self.api.token_file),
            Some(&mut self.api.cert_file),
            Some(&mut self.api.key_file),
        ]
        .into_iter()
        .flatten()
        .chain(self.api.tokens.iter_mut().map(|token| &mut token.file))
        .filter(|path| !path.as_os_str().is_empty())
    }
}

/// The `[mesh.telemetry]` section.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TelemetryConfig {
    /// Format of log lines.
    pub log_format: LogFormat,
    /// Log filter in the syntax of RUST_LOG.
    pub log_filter: String,
    /// OTLP endpoint (gRPC). Empty: no traces are exported.
    pub otlp_endpoint: String,
    /// Fraction of new traces that are exported, 0 to 1.
    pub sample_ratio: f64,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text for people.
    Human,
    /// One JSON object per line.
    Json,
}

/// The `[mesh.api]` section.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiConfig {
    /// Path of the Unix socket. Empty: `<data_dir>/<service>.sock`.
    pub socket: PathBuf,
    /// File mode of the socket, in octal.
    pub socket_mode: String,
    /// TCP address. Empty: the API does not listen on TCP.
    pub listen: String,
    /// Certificate chain of the TCP address. Empty: no TLS.
    pub cert_file: PathBuf,
    /// Private key of `cert_file`.
    pub key_file: PathBuf,
    /// Maximum number of connections, separately for the socket and for TCP.
    pub max_connections: usize,
    /// Maximum number of connections of one client.
    pub max_connections_per_client: usize,
    /// Deadline for the headers of a request.
    #[serde(with = "humantime_serde")]
    pub header_timeout: Duration,
    /// How long an idle connection stays open.
    #[serde(with = "humantime_serde")]
    pub idle_timeout: Duration,
    /// How long a client may stall while it sends a request body or receives a response.
    #[serde(with = "humantime_serde")]
    pub stall_timeout: Duration,
    /// Proxies whose `X-Forwarded-For` is trusted.
    #[serde(deserialize_with = "networks")]
    pub trusted_proxies: Vec<IpNet>,
    /// File with the bearer token of an administrator.
    pub token_file: PathBuf,
    /// Unix users who may see and do everything.
    pub admins: Vec<String>,
    /// Unix users who may see everything and change nothing.
    pub auditors: Vec<String>,
    /// Tokens of programs.
    #[serde(default)]
    pub tokens: Vec<TokenConfig>,
    /// OIDC issuers whose tokens are accepted.
    #[serde(default)]
    pub oidc: Vec<OidcConfig>,
}

impl ApiConfig {
    /// All faults, each with its key.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if u32::from_str_radix(&self.socket_mode, 8).is_err() {
            faults.push("mesh.api.socket_mode: an octal mode such as \"0660\"".to_owned());
        }
        if self.cert_file.as_os_str().is_empty() != self.key_file.as_os_str().is_empty() {
            faults.push("mesh.api.cert_file, mesh.api.key_file: set both".to_owned());
        }
        if self.listen.is_empty() && !self.cert_file.as_os_str().is_empty() {
            faults.push("mesh.api.cert_file: it is for mesh.api.listen, which is empty".to_owned());
        }
        let no_tcp_callers = self.token_file.as_os_str().is_empty()
            && self.tokens.is_empty()
            && self.oidc.is_empty();
        if !self.listen.is_empty() && no_tcp_callers {
            faults.push(
                "mesh.api.token_file: required with mesh.api.listen, unless mesh.api.tokens or mesh.api.oidc is set; TCP callers need a token"
                    .to_owned(),
            );
        }
        for (key, limit) in [
            ("max_connections", self.max_connections),
            (
                "max_connections_per_client",
                self.max_connections_per_client,
            ),
        ] {
            if limit == 0 {
                faults.push(format!("mesh.api.{key}: at least 1"));
            }
        }
        for (key, timeout) in [
            ("header_timeout", self.header_timeout),
            ("idle_timeout", self.idle_timeout),
            ("stall_timeout", self.stall_timeout),
        ] {
            if timeout < Duration::from_secs(1) || timeout > MAX_TIMEOUT {
                faults.push(format!("mesh.api.{key}: between \"1s\" and \"1h\""));
            }
        }
        let tokens = self.tokens.iter();
        faults.extend(tokens.flat_map(|token| token.faults(&self.tokens)));
        let issuers = self.oidc.iter();
        faults.extend(issuers.flat_map(|issuer| issuer.faults(&self.oidc)));
        faults.dedup();
        faults
    }
}

/// Networks (`10.0.0.0/8`) or addresses (`10.0.0.1`).
fn networks<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpNet>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    let network = |text: &String| {
        let address = || text.parse::<IpAddr>().map(IpNet::from);
        text.parse::<IpNet>().or_else(|_| address()).map_err(|_| {
            D::Error::custom(format!(
                "{text:?} is not an address or network such as 10.0.0.0/8"
            ))
        })
    };
    texts.iter().map(network).collect()
}

/// An invalid or missing configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file does not exist.
    #[error("no configuration at {path}; create one with `smesh init`, or pass its path with --config", path = path.display())]
    NotFound {
        /// The file.
        path: PathBuf,
    },
    /// A key is unknown, missing or invalid.
    #[error("configuration {file}: {faults}")]
    Invalid {
        /// The file, or another source of the value.
        file: String,
        /// Every fault with its key.
        faults: String,
    },
}

impl ConfigError {
    /// Faults found by a service's `validate()`. Each names its key.
    pub fn faults(file: impl Into<String>, faults: &[String]) -> Self {
        Self::Invalid {
            file: file.into(),
            faults: faults.join("; "),
        }
    }
}

/// The section of a service.
#[derive(Clone, Copy, Debug)]
pub struct ServiceSection {
    /// Name of the section.
    pub name: &'static str,
    /// [`Service::DEFAULTS`].
    pub defaults: &'static str,
    /// [`Service::RENAMED_KEYS`].
    pub renamed_keys: RenamedKeys,
    /// [`Service::LIVE_KEYS`].
    pub live_keys: &'static [&'static str],
}

impl ServiceSection {
    /// The section of a service type.
    pub const fn of<S: Service>() -> Self {
        Self {
            name: S::NAME,
            defaults: S::DEFAULTS,
            renamed_keys: S::RENAMED_KEYS,
            live_keys: S::LIVE_KEYS,
        }
    }
}

/// The layers of the configuration, merged.
#[derive(Clone)]
pub struct ConfigFile {
    figment: Arc<Figment>,
    path: Option<PathBuf>,
    /// The file before it was read.
    stamp: Option<FileStamp>,
    services: Vec<ServiceSection>,
    /// Sections in which old keys are set, with a fault for each.
    renamed: Vec<(&'static str, Vec<String>)>,
}

impl ConfigFile {
    /// Reads the services' defaults, a file if one is given, and the environment: `MESH_LEDGER__DB__URL` is `[ledger.db] url`,
    /// `MESH_COST_ENGINE__PRICE_BOOK` is key `price_book` of `[cost-engine]`, `MESH_MESH__NATS__URL` is `[mesh.nats] url`.
    ///
    /// # Errors
    /// If the file does not exist or is not TOML.
    pub fn load(services: &[ServiceSection], path: Option<&Path>) -> Result<Self, ConfigError> {
        let all = services.to_vec();
        let stamp = path.and_then(FileStamp::of);
        let mut figment = Figment::from(Toml::string(DEFAULTS));
        for service in services {
            figment = figment.merge(Toml::string(service.defaults));
        }
        if let Some(path) = path {
            if !path.is_file() {
                return Err(ConfigError::NotFound {
                    path: path.to_owned(),
                });
            }
            figment = figment.merge(Toml::file_exact(path));
        }
        let environment = Env::prefixed("MESH_")
            .filter(|key| key.as_str().contains("__"))
            .map(|key| {
                let key = key.as_str().to_ascii_lowercase();
                let (section, rest) = key.split_once("__").unwrap_or((&key, ""));
                format!("{}.{}", section.replace('_', "-"), rest.replace("__", ".")).into()
            });
        let figment = figment.merge(environment);
        let mesh = ("mesh", renamed::MESH);
        let services = services.iter();
        let sections = services.map(|service| (service.name, service.renamed_keys));
        let renamed = sections
            .chain([mesh])
            .map(|(name, keys)| (name, renamed::faults(&figment, name, keys)))
            .filter(|(_, faults)| !faults.is_empty());
        let config = Self {
            renamed: renamed.collect(),
            figment: Arc::new(figment),
            path: path.map(Path::to_owned),
            stamp,
            services: all,
        };
        // Any lookup fails if the file is not TOML.
        match config.figment.find_value("mesh") {
            Ok(_) => Ok(config),
            Err(error) => Err(config.invalid(error)),
        }
    }

    /// Reads the same file and the environment again.
    ///
    /// # Errors
    /// As [`ConfigFile::load`].
    pub fn read_again(&self) -> Result<Self, ConfigError> {
        Self::load(&self.services, self.path())
    }

    /// The stamp of the file, taken before it was read.
    pub const fn stamp(&self) -> Option<FileStamp> {
        self.stamp
    }

    /// Keys whose values differ from another configuration's, such as `mesh.api.listen`.
    pub fn changed_keys(&self, other: &Self) -> Vec<String> {
        let mut changed = Vec::new();
        let sections = self.services.iter().map(|service| service.name);
        for name in sections.chain(["mesh"]) {
            let value = |config: &Self| config.figment.find_value(name).ok();
            differing(name, value(self), value(other), &mut changed);
        }
        changed.sort();
        changed.dedup();
        changed
    }

    /// True if a service takes a change of the key, such as `webhook-dispatcher.endpoints`, without a restart.
    pub(crate) fn is_live(&self, key: &str) -> bool {
        let (section, key) = key.split_once('.').unwrap_or_default();
        let mut services = self.services.iter();
        services.any(|service| service.name == section && service.live_keys.contains(&key))
    }

    /// Reads a section.
    ///
    /// # Errors
    /// If a key is unknown, missing or wrong; the error names it. If the section has an old key: the error names those of all sections.
    pub fn section<T: DeserializeOwned>(&self, name: &str) -> Result<T, ConfigError> {
        if self.renamed.iter().any(|(section, _)| *section == name) {
            let all = self.renamed.iter().flat_map(|(_, faults)| faults.clone());
            return Err(ConfigError::faults(self.name(), &all.collect::<Vec<_>>()));
        }
        self.figment.extract_inner(name).map_err(|error| {
            let faults: Vec<String> = error
                .into_iter()
                .map(|fault| describe_fault(fault, name))
                .collect();
            ConfigError::faults(self.name(), &faults)
        })
    }

    /// Renders a section after merging, with secrets masked; for `--print-config`.
    ///
    /// # Errors
    /// If the section cannot be read.
    pub fn print(&self, name: &str) -> Result<String, ConfigError> {
        let mut section: toml::Value = self.section(name)?;
        mask(&mut section);
        let table = toml::Table::from_iter([(name.to_owned(), section)]);
        toml::to_string_pretty(&table)
            .map_err(|error| ConfigError::faults(name, &[error.to_string()]))
    }

    /// The file, if there is one.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Resolves a relative path against the folder of the file, whatever the working directory is.
    pub(crate) fn relative(&self, path: &Path) -> PathBuf {
        // Absolute, so that resolving twice changes nothing.
        let file = self.path().and_then(|file| std::path::absolute(file).ok());
        match file.as_deref().and_then(Path::parent) {
            Some(folder) => folder.join(path),
            None => path.to_owned(),
        }
    }

    /// A fault if others may read the file and it contains a secret.
    pub(crate) fn exposed_secrets(&self) -> Option<String> {
        let path = self.path()?;
        let mode = std::fs::metadata(path).ok()?.mode() & 0o7777;
        if mode & OTHERS_READ == 0 {
            return None;
        }
        let keys = secret_keys(&std::fs::read_to_string(path).ok()?);
        let key = keys.first()?;
        Some(format!(
            "{key}: secret in a file that others may read (mode {mode:o}); chmod o= the file and replace the secret, or move it to a separate file or the environment"
        ))
    }

    /// Name of the file for messages.
    pub fn name(&self) -> String {
        self.path
            .as_ref()
            .map_or_else(|| "defaults".to_owned(), |path| path.display().to_string())
    }

    fn invalid(&self, error: figment::Error) -> ConfigError {
        let faults: Vec<String> = error.into_iter().map(|fault| fault.to_string()).collect();
        ConfigError::faults(self.name(), &faults)
    }
}

/// Names keys with different values. The values may be secrets.
fn differing(key: &str, a: Option<Value>, b: Option<Value>, changed: &mut Vec<String>) {
    match (a, b) {
        (Some(Value::Dict(_, mut a)), Some(Value::Dict(_, mut b))) => {
            let names: BTreeSet<String> = a.keys().chain(b.keys()).cloned().collect();
            for name in names {
                let below = format!("{key}.{name}");
                differing(&below, a.remove(&name), b.remove(&name), changed);
            }
        }
        (a, b) if a != b => changed.push(key.to_owned()),
        _ => {}
    }
}

/// Describes a fault of a section, with its key as in the file: `[ledger] db.url`.
fn describe_fault(fault: figment::Error, section: &str) -> String {
    let mut path = fault.path;
    // figment names the section last.
    if path.last().is_some_and(|last| last == section) {
        path.pop();
    }
    let from_environment = fault
        .metadata
        .is_some_and(|metadata| renamed::is_from_environment(&metadata));
    let place = match path.join(".") {
        key if from_environment => format!("environment, [{section}] {key}"),
        key => format!("[{section}] {key}"),
    };
    format!("{}: {}", place.trim_end(), fault.kind)
}

/// The mode bit that lets everybody read a file. Group access is the operator's choice: it is not compared with the groups of this process,
/// since root, which is in none of the service's groups, reads the file too.
const OTHERS_READ: u32 = 0o004;
#[cfg(test)]
mod tests;
