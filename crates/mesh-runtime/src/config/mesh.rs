//! The section `[mesh]`.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use secret_file::LoginUrl;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::api::{OidcConfig, TokenConfig};

/// Longest allowed timeout.
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);

/// The `[mesh]` section.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TelemetryConfig {
    /// Format of log lines.
    pub log_format: LogFormat,
    /// Log filter in the syntax of RUST_LOG.
    pub log_filter: String,
    /// OTLP endpoint (gRPC). Empty: nothing is exported.
    pub otlp_endpoint: LoginUrl,
    /// What is exported.
    pub otlp_signals: BTreeSet<OtlpSignal>,
    /// How often metrics are exported.
    #[serde(with = "humantime_serde")]
    pub otlp_metrics_interval: Duration,
    /// Fraction of new traces that are exported, 0 to 1.
    pub sample_ratio: f64,
}

impl TelemetryConfig {
    /// All faults, each with its key.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.otlp_metrics_interval < Duration::from_secs(1) {
            faults.push("mesh.telemetry.otlp_metrics_interval: at least 1s".to_owned());
        }
        faults
    }
}

/// What can be exported by OTLP.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub enum OtlpSignal {
    /// Spans.
    Traces,
    /// What `/metrics` shows.
    Metrics,
    /// Log lines that pass the log filter.
    Logs,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text for people.
    Human,
    /// One JSON object per line.
    Json,
}

/// The `[mesh.api]` section.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
