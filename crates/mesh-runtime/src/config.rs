//! One configuration file: defaults, then `mesh.toml`, then the environment.

use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use figment::Figment;
use figment::providers::{Env, Format as _, Toml};
use ipnet::IpNet;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};

use crate::api::{OidcConfig, TokenConfig};

/// Defaults of `[mesh]`, every key with its comment.
pub(crate) const DEFAULTS: &str = include_str!("../config/default.toml");

/// Longer ones are none.
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);

/// The `[mesh]` section.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeshConfig {
    /// Slurm's ClusterName.
    pub cluster: String,
    /// Where state is kept.
    pub data_dir: PathBuf,
    /// How long a service may take to finish what it holds after SIGTERM.
    #[serde(with = "humantime_serde")]
    pub drain_deadline: Duration,
    /// File that links Unix users to OIDC identities.
    #[serde(default)]
    pub identity_map: Option<PathBuf>,
    /// NATS.
    pub nats: mesh_bus::Config,
    /// Logs and traces.
    pub telemetry: TelemetryConfig,
    /// The API.
    pub api: ApiConfig,
}

impl MeshConfig {
    /// Every path that is set. An empty one says that there is none.
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
    /// How logs are written.
    pub log_format: LogFormat,
    /// Which logs are written, as RUST_LOG.
    pub log_filter: String,
    /// OTLP endpoint (gRPC). Empty: no traces are exported.
    pub otlp_endpoint: String,
    /// Share of new traces that is exported.
    pub sample_ratio: f64,
}

/// How logs are written.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Human,
    /// One JSON object a line.
    Json,
}

/// The `[mesh.api]` section.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiConfig {
    /// Unix socket. Empty: `<data_dir>/<service>.sock`.
    pub socket: PathBuf,
    /// Its mode, octal.
    pub socket_mode: String,
    /// TCP address. Empty: no TCP.
    pub listen: String,
    /// How many connections the socket, and TCP, may have.
    pub max_connections: usize,
    /// How many of them one client may have.
    pub max_connections_per_client: usize,
    /// How long the head of a request may take.
    #[serde(with = "humantime_serde")]
    pub header_timeout: Duration,
    /// How long a connection is kept without a request.
    #[serde(with = "humantime_serde")]
    pub idle_timeout: Duration,
    /// How long the rest of a request may take, and how long nothing of an answer may be taken.
    #[serde(with = "humantime_serde")]
    pub stall_timeout: Duration,
    /// Proxies whose `X-Forwarded-For` is believed.
    #[serde(deserialize_with = "networks")]
    pub trusted_proxies: Vec<IpNet>,
    /// File with the token of an administrator.
    pub token_file: PathBuf,
    /// Unix users who may see and do everything.
    pub admins: Vec<String>,
    /// Unix users who may see everything.
    pub auditors: Vec<String>,
    /// Tokens of programs.
    #[serde(default)]
    pub tokens: Vec<TokenConfig>,
    /// Issuers whose tokens are believed.
    #[serde(default)]
    pub oidc: Vec<OidcConfig>,
}

impl ApiConfig {
    /// Every fault, by key.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if u32::from_str_radix(&self.socket_mode, 8).is_err() {
            faults.push("mesh.api.socket_mode: an octal mode such as \"0660\"".to_owned());
        }
        let nobody = self.token_file.as_os_str().is_empty()
            && self.tokens.is_empty()
            && self.oidc.is_empty();
        if !self.listen.is_empty() && nobody {
            faults.push(
                "mesh.api.token_file: needed with mesh.api.listen, or mesh.api.tokens or mesh.api.oidc; TCP callers show a token"
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
                "{text:?} is no address or network such as 10.0.0.0/8"
            ))
        })
    };
    texts.iter().map(network).collect()
}

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file is not there.
    #[error("no configuration at {path}; `smesh init` writes one, or name it with --config", path = path.display())]
    NotFound {
        /// The file.
        path: PathBuf,
    },
    /// A key is unknown, missing or wrong.
    #[error("configuration {file}: {faults}")]
    Invalid {
        /// The file, or where else the value came from.
        file: String,
        /// Every fault with its key.
        faults: String,
    },
}

impl ConfigError {
    /// Faults that a service's own `validate()` found, each naming its key.
    pub fn faults(file: impl Into<String>, faults: &[String]) -> Self {
        Self::Invalid {
            file: file.into(),
            faults: faults.join("; "),
        }
    }
}

/// The layers of the configuration, merged.
#[derive(Clone)]
pub struct ConfigFile {
    figment: Figment,
    path: Option<PathBuf>,
}

impl ConfigFile {
    /// Reads defaults (each with its section's header), a file if one is given, and the environment: `MESH_LEDGER__DATABASE_URL` is key
    /// `database_url` of section `[ledger]`, `MESH_COST_ENGINE__PRICE_BOOK` of `[cost-engine]`, `MESH_MESH__NATS__URL` is `[mesh.nats] url`.
    ///
    /// # Errors
    /// If the file is not there or is not TOML.
    pub fn load(defaults: &[&str], path: Option<&Path>) -> Result<Self, ConfigError> {
        let mut figment = Figment::from(Toml::string(DEFAULTS));
        for text in defaults {
            figment = figment.merge(Toml::string(text));
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
        let config = Self {
            figment: figment.merge(environment),
            path: path.map(Path::to_owned),
        };
        // A file that is not TOML fails at the first look, whatever is looked for.
        match config.figment.find_value("mesh") {
            Ok(_) => Ok(config),
            Err(error) => Err(config.invalid(error)),
        }
    }

    /// Reads a section.
    ///
    /// # Errors
    /// If a key is unknown, missing or wrong; the error names it.
    pub fn section<T: DeserializeOwned>(&self, name: &str) -> Result<T, ConfigError> {
        self.figment.extract_inner(name).map_err(|error| {
            let faults: Vec<String> = error.into_iter().map(|fault| told(fault, name)).collect();
            ConfigError::faults(self.name(), &faults)
        })
    }

    /// A section as it is after merging, with secrets masked; for `--print-config`.
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

    /// A path as it is meant: relative ones count from the folder of the file, whatever the working directory is.
    pub(crate) fn relative(&self, path: &Path) -> PathBuf {
        // Absolute, so that it may be done again.
        let file = self.path().and_then(|file| std::path::absolute(file).ok());
        match file.as_deref().and_then(Path::parent) {
            Some(folder) => folder.join(path),
            None => path.to_owned(),
        }
    }

    /// A fault if others may read the file and it has a secret in it.
    pub(crate) fn exposed_secrets(&self) -> Option<String> {
        let path = self.path()?;
        let mode = std::fs::metadata(path).ok()?.mode() & 0o7777;
        if mode & OTHERS_READ == 0 {
            return None;
        }
        let keys = secret_keys(&std::fs::read_to_string(path).ok()?);
        let key = keys.first()?;
        Some(format!(
            "{key}: a secret in a file that others may read (mode {mode:o}); chmod o= the file and replace the secret, or write it into a file of its own or the environment"
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

/// A fault of a section, with its key as one writes it: `[ledger] db.url`.
fn told(fault: figment::Error, section: &str) -> String {
    let mut path = fault.path;
    // figment names the section last.
    if path.last().is_some_and(|last| last == section) {
        path.pop();
    }
    let from_environment = fault
        .metadata
        .is_some_and(|metadata| metadata.source.is_none() && metadata.name.contains("environment"));
    let place = match path.join(".") {
        key if from_environment => format!("environment, [{section}] {key}"),
        key => format!("[{section}] {key}"),
    };
    format!("{}: {}", place.trim_end(), fault.kind)
}

/// The bit of a file's mode that lets everybody read it. Which group may is left to the operator: root reads it, too, who is in no group of the
/// service.
const OTHERS_READ: u32 = 0o004;
/// What stands for a secret.
const MASK: &str = "********";

/// Keys whose texts are secrets, beside `…_secret`.
const SECRETS: [&str; 7] = [
    "secret",
    "password",
    "token",
    "sha256",
    "secrets_key",
    "routing_key",
    "credentials",
];
/// Formats of webhooks whose address is the secret.
const CHATS: [&str; 3] = ["slack", "teams", "discord"];

/// What a text has of secrets.
enum Sensitive<'a> {
    /// It is one.
    Secret(&'a mut String),
    /// `user:password@` of a URL in it.
    Login(&'a mut String),
}

/// Every text that is a secret or may have one in it, with its key.
fn visit_sensitive(
    value: &mut toml::Value,
    key: &str,
    visit: &mut impl FnMut(&str, Sensitive<'_>),
) {
    match value {
        toml::Value::Table(table) => {
            // Who has the address of a chat's webhook may write to the channel.
            let chat = table.get("format").is_some_and(|format| {
                let named = format.get("type").unwrap_or(format).as_str();
                named.is_some_and(|name| CHATS.contains(&name))
            });
            let in_headers = key.ends_with(".headers");
            for (name, value) in table.iter_mut() {
                let secret = SECRETS.contains(&name.as_str())
                    || name.ends_with("_secret")
                    || chat && name == "url"
                    || in_headers;
                let key = format!("{key}.{name}");
                match value {
                    toml::Value::String(text) if secret && !text.is_empty() => {
                        visit(&key, Sensitive::Secret(text));
                    }
                    value => visit_sensitive(value, &key, visit),
                }
            }
        }
        toml::Value::Array(values) => {
            for (index, value) in values.iter_mut().enumerate() {
                visit_sensitive(value, &format!("{key}[{index}]"), visit);
            }
        }
        toml::Value::String(text) => visit(key, Sensitive::Login(text)),
        _ => {}
    }
}

fn mask(section: &mut toml::Value) {
    visit_sensitive(section, "", &mut |_, sensitive| match sensitive {
        Sensitive::Secret(text) => MASK.clone_into(text),
        Sensitive::Login(text) => *text = without_userinfo(text),
    });
}

/// Keys of a file's text that hold a secret.
fn secret_keys(text: &str) -> Vec<String> {
    let mut keys = Vec::new();
    // What is no TOML has been told by now.
    let table = toml::from_str::<toml::Table>(text).unwrap_or_default();
    for (name, mut section) in table {
        visit_sensitive(&mut section, &name, &mut |key, sensitive| {
            let secret = match sensitive {
                // The hash of a token lets nobody in.
                Sensitive::Secret(_) => !key.ends_with(".sha256"),
                Sensitive::Login(text) => has_password(text),
            };
            if secret {
                keys.push(key.to_owned());
            }
        });
    }
    keys
}

/// Whether a URL in the text has a password or, as NATS and webhooks take it in place of a user, a token. PostgreSQL's user alone is none.
fn has_password(text: &str) -> bool {
    let database = text.starts_with("postgres");
    text.split("://").skip(1).any(|part| {
        let end = part.find(['/', '?', '#', ' ']).unwrap_or(part.len());
        let login = part[..end].rfind('@').map(|at| &part[..at]);
        login.is_some_and(|login| !database || login.contains(':'))
    })
}

/// The text with `user:password@` of every URL in it masked. By hand, as a list of servers is no URL, and what is no URL may be half of one.
fn without_userinfo(text: &str) -> String {
    let mut parts = text.split("://");
    let mut masked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        masked.push_str("://");
        let end = part.find(['/', '?', '#', ' ']).unwrap_or(part.len());
        // In a list the scheme of the next URL is behind the host; a comma may be in a password, too.
        match part[..end].rfind('@') {
            Some(at) => {
                masked.push_str(MASK);
                masked.push_str(&part[at..]);
            }
            None => masked.push_str(part),
        }
    }
    masked
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn load(text: &str) -> (tempfile::NamedTempFile, Result<ConfigFile, ConfigError>) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let config = ConfigFile::load(&[], Some(file.path()));
        (file, config)
    }

    fn mesh(text: &str) -> Result<MeshConfig, String> {
        let (_file, config) = load(text);
        config
            .and_then(|config| config.section("mesh"))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_file_overrides_the_defaults() {
        let mesh = mesh("[mesh]\ncluster = \"c1\"\n[mesh.nats]\nurl = \"nats://h:1\"").unwrap();
        assert_eq!(
            (
                mesh.cluster.as_str(),
                mesh.nats.url.as_str(),
                mesh.nats.replicas
            ),
            ("c1", "nats://h:1", 1)
        );
    }

    #[test]
    fn an_unknown_key_is_named() {
        let error = mesh("[mesh]\nclutser = \"c1\"").unwrap_err();
        assert!(error.contains("[mesh] clutser: unknown"), "{error}");
        let error = mesh("[mesh.api]\nlisten = 5").unwrap_err();
        assert!(error.contains("[mesh] api.listen: invalid type"), "{error}");
    }

    #[test]
    fn limits_of_connections_and_proxies_are_checked() {
        let api = mesh("[mesh.api]\ntrusted_proxies = ['10.0.0.1', '2001:db8::/32']").unwrap();
        assert_eq!(api.api.trusted_proxies.len(), 2);
        assert_eq!(api.api.faults(), [""; 0]);
        let error = mesh("[mesh.api]\ntrusted_proxies = ['proxy']").unwrap_err();
        assert!(error.contains("[mesh] api.trusted_proxies"), "{error}");
        assert!(error.contains("\"proxy\" is no address"), "{error}");
        for (key, value) in [
            ("max_connections", "0"),
            ("max_connections_per_client", "0"),
            ("header_timeout", "'0s'"),
            ("idle_timeout", "'2h'"),
            ("stall_timeout", "'0s'"),
        ] {
            let faults = mesh(&format!("[mesh.api]\n{key} = {value}")).unwrap();
            let faults = faults.api.faults();
            assert!(
                faults[0].starts_with(&format!("mesh.api.{key}:")),
                "{faults:?}"
            );
        }
    }

    #[test]
    fn a_file_that_is_not_toml_is_refused() {
        let (file, config) = load("[mesh\n");
        let error = config.err().unwrap().to_string();
        assert!(error.contains(file.path().to_str().unwrap()), "{error}");
    }

    #[test]
    fn secrets_are_masked() {
        let (_file, config) = load("[mesh.nats]\npassword = \"hunter2\"");
        let text = config.unwrap().print("mesh").unwrap();
        assert!(
            !text.contains("hunter2") && text.contains("********"),
            "{text}"
        );
    }

    #[test]
    fn secrets_inside_addresses_are_masked() {
        let (_file, config) = load(
            r#"
            [mesh.nats]
            url = "nats://mesh:hun,ter1@n1:4222,tls://hunter2@n2:4222"
            [mesh.telemetry]
            otlp_endpoint = "https://me:hun@ter3@otel.example.org/v1?a=b@c"
            [[hooks.endpoints]]
            name = "chat"
            url = "https://hooks.slack.com/services/T0/B0/hunter4"
            format = "slack"
            [[hooks.endpoints]]
            name = "pipeline"
            url = "https://ci:hunter5@ci.example.org/hook"
            secret = "whsec_hunter6"
            headers = { authorization = "Bearer hunter7", other = { file = "other.token" } }
            [[hooks.endpoints]]
            name = "teams"
            url = "https://prod.example.org/workflows/1?sig=hunter8"
            format = { type = "teams" }
            [[hooks.endpoints]]
            name = "pager"
            format = { type = "pagerduty", routing_key = "hunter9" }
            "#,
        );
        let config = config.unwrap();
        let text = config.print("mesh").unwrap() + &config.print("hooks").unwrap();
        assert!(
            !text.contains("hunter") && !text.contains("ter1") && !text.contains("ter3"),
            "{text}"
        );
        for shown in [
            "nats://********@n1:4222,tls://********@n2:4222",
            "https://********@otel.example.org/v1?a=b@c",
            "url = \"********\"",
            "https://********@ci.example.org/hook",
        ] {
            assert!(text.contains(shown), "{shown:?} is not in {text}");
        }
    }

    #[test]
    fn secrets_of_a_file_are_known_by_their_keys() {
        let keys = |text: &str| secret_keys(text).join(" ");
        for (text, expected) in [
            (
                "[ledger.db]\nurl = 'postgres://mesh:s@h/l'",
                "ledger.db.url",
            ),
            ("[ledger.db]\nurl = 'postgres://mesh@h/l'", ""),
            ("[mesh.nats]\nurl = 'nats://token@h:4222'", "mesh.nats.url"),
            ("[mesh.nats]\nurl = 'nats://a:1,nats://b:1'", ""),
            ("[mesh.nats]\npassword = 's'", "mesh.nats.password"),
            ("[[mesh.api.tokens]]\nsha256 = 'abc'", ""),
            (
                "[x]\nheaders = { a = 'b', c = { file = 'd' } }",
                "x.headers.a",
            ),
            ("[[x.e]]\nformat = 'slack'\nurl_file = 'u'", ""),
            (
                "[[x.e]]\nformat = 'slack'\nurl = 'https://s/1'",
                "x.e[0].url",
            ),
            ("[[x.e]]\nurl = 'https://ci.example.org/'", ""),
            (
                "[[x.e]]\nformat = { type = 'pagerduty', routing_key = 'r' }",
                "x.e[0].format.routing_key",
            ),
            ("[x]\nsecrets_key = ''", ""),
        ] {
            assert_eq!(keys(text), expected, "{text}");
        }
    }
}
