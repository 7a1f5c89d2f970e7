//! `hook.toml`: NATS servers, spool and lines.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use crate::gpus::GpuMap;

/// Path of the configuration without `--config`.
pub const DEFAULT_PATH: &str = "/etc/slurm-mesh/hook.toml";

/// Time after which the process ends in any case. This limit is the promise to Slurm.
pub const HARD_STOP: Duration = Duration::from_millis(250);

/// Upper limit of `nats.timeout_ms`. The rest of the time until [`HARD_STOP`] is for the spool.
const MAX_TIMEOUT_MS: u64 = 200;

/// Renamed keys, old and new. An old key is refused with an error that names the new one.
const RENAMED_KEYS: &[(&str, &str)] = &[("deadline_ms", "nats.timeout_ms")];

/// Content of `hook.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Slurm's ClusterName.
    pub cluster: String,
    /// Connection to NATS.
    pub nats: Nats,
    /// Folder of doorbells while NATS is unavailable. Must be on a local disk: a hanging network file system would hang the hook.
    pub spool: PathBuf,
    /// Folder of the lines appended by job_submit.lua and cli_filter.lua. `None` without such a plugin.
    #[serde(default)]
    pub lines: Option<PathBuf>,
    /// Folder on a tmpfs that counts the calls under way. Where it cannot be used, and by default, one of [`crate::slots::defaults`].
    #[serde(default)]
    pub slots: Option<PathBuf>,
    /// Uid of nats-server. The password is sent to an address of this machine only if the socket there belongs to this user. Not
    /// checked if `None`.
    #[serde(default)]
    pub server_uid: Option<u32>,
    /// Size limit of the spool in bytes. When it is full, new doorbells are dropped, and ingest finds those jobs in its next poll.
    #[serde(default = "default_max_spool_bytes")]
    pub max_spool_bytes: u64,
    /// `dcgm:` and a folder in which the node's Prolog and Epilog write the jobs of each GPU for dcgm-exporter. `None`: nothing is written.
    #[serde(default)]
    pub gpu_map: Option<String>,
    /// GPUs whose index in Slurm is not that of NVML: `0:1,1:0`. With MIG the right side is the GPU and its instance: `0:0.7`.
    #[serde(default)]
    pub gpu_order: String,
    /// True where jobs share GPUs by shards. Then a job does not replace the others of its GPUs.
    #[serde(default)]
    pub gpu_shared: bool,
}

/// Connection to NATS.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nats {
    /// `nats://host:port`. Several, separated by commas, are tried in turn. Prefer an IP address, because a name must be looked up
    /// first.
    pub url: String,
    /// User.
    #[serde(default)]
    pub user: Option<String>,
    /// Password. The file must not be readable by other users.
    #[serde(default)]
    pub password: Option<SecretString>,
    /// File with the password, instead of `password`.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
    /// Time limit in milliseconds, including connecting.
    #[serde(default = "default_timeout_ms")]
    pub timeout_ms: u64,
}

const fn default_timeout_ms() -> u64 {
    MAX_TIMEOUT_MS
}

const fn default_max_spool_bytes() -> u64 {
    64 << 20
}

/// Errors of the configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("read {path}: {source}")]
    Read {
        /// File.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The file is not a valid hook.toml.
    #[error("{path}: {message}")]
    Parse {
        /// File.
        path: PathBuf,
        /// The parser's message, on one line.
        message: String,
    },
    /// A value is invalid.
    #[error("{path}: {key}: {problem}")]
    Value {
        /// File.
        path: PathBuf,
        /// Key.
        key: &'static str,
        /// The fault, and the value to write instead.
        problem: String,
    },
}

impl Config {
    /// Reads and validates a file.
    ///
    /// # Errors
    /// An [`Error`] that names the file and the key.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let read = |path: &Path| {
            fs::read_to_string(path).map_err(|source| Error::Read {
                path: path.to_owned(),
                source,
            })
        };
        let text = read(path)?;
        let mut config: Self = toml::from_str(&text).map_err(|error| {
            // Only the message: the parser's rendering quotes the line, which may hold the password.
            let line = error.span().map_or(1, |span| {
                text[..span.start.min(text.len())].lines().count().max(1)
            });
            Error::Parse {
                path: path.to_owned(),
                message: old_keys(&text).unwrap_or_else(|| {
                    format!("line {line}: {}", error.message().replace('\n', " "))
                }),
            }
        })?;
        if config.nats.password.is_some() {
            secret_file::read(path).map_err(|source| Error::Value {
                path: path.to_owned(),
                key: "nats.password",
                problem: source.to_string(),
            })?;
        }
        if let Some(file) = &config.nats.password_file {
            if config.nats.password.is_some() {
                return Err(Error::Value {
                    path: path.to_owned(),
                    key: "nats.password_file",
                    problem: "set either this or nats.password, not both".into(),
                });
            }
            let file = path.parent().unwrap_or(Path::new("/")).join(file);
            let password = secret_file::read(&file).map_err(|source| Error::Read {
                path: file.clone(),
                source,
            })?;
            config.nats.password = Some(password.trim_end().into());
        }
        config.check().map_err(|(key, problem)| Error::Value {
            path: path.to_owned(),
            key,
            problem,
        })?;
        Ok(config)
    }

    fn check(&self) -> Result<(), (&'static str, String)> {
        if self.cluster.is_empty() {
            return Err(("cluster", "is empty; write Slurm's ClusterName".into()));
        }
        for (key, path) in [
            ("spool", Some(&self.spool)),
            ("lines", self.lines.as_ref()),
            ("slots", self.slots.as_ref()),
        ] {
            if let Some(path) = path.filter(|path| !path.is_absolute()) {
                return Err((key, format!("{} is not an absolute path", path.display())));
            }
        }
        if !(1..=MAX_TIMEOUT_MS).contains(&self.nats.timeout_ms) {
            return Err((
                "nats.timeout_ms",
                format!(
                    "{} is not between 1 and {MAX_TIMEOUT_MS}",
                    self.nats.timeout_ms
                ),
            ));
        }
        if self.nats.user.is_some() != self.nats.password.is_some() {
            return Err(("nats.user", "set both user and password".into()));
        }
        self.gpu_map()?;
        self.servers()
            .map(|_| ())
            .map_err(|problem| ("nats.url", problem))
    }

    /// Where GPUs are mapped to jobs, if configured.
    ///
    /// # Errors
    /// The key that is wrong, and what to write instead.
    pub fn gpu_map(&self) -> Result<Option<GpuMap>, (&'static str, String)> {
        let Some(map) = &self.gpu_map else {
            return Ok(None);
        };
        let map = GpuMap::parse(map, &self.gpu_order)?;
        Ok(Some(GpuMap {
            shared: self.gpu_shared,
            ..map
        }))
    }

    /// Host and port of each server.
    ///
    /// # Errors
    /// If the URL is invalid; the text names the fault.
    pub fn servers(&self) -> Result<Vec<(String, u16)>, String> {
        self.nats
            .url
            .split(',')
            .map(|url| server(url.trim()))
            .collect()
    }

    /// Time limit for NATS.
    pub const fn deadline(&self) -> Duration {
        Duration::from_millis(self.nats.timeout_ms)
    }

    /// User and password, if both are set.
    pub fn login(&self) -> Option<(&str, &str)> {
        Some((
            self.nats.user.as_deref()?,
            self.nats.password.as_ref()?.expose_secret(),
        ))
    }
}

/// The renamed keys in the file, with their new names. `None` if there are none or the file is not TOML.
fn old_keys(text: &str) -> Option<String> {
    let table: toml::Table = text.parse().ok()?;
    let found: Vec<String> = RENAMED_KEYS
        .iter()
        .filter(|(old, _)| table.contains_key(*old))
        .map(|(old, new)| format!("{old}: renamed to {new}"))
        .collect();
    (!found.is_empty()).then(|| found.join("; "))
}

fn server(url: &str) -> Result<(String, u16), String> {
    let rest = match url.split_once("://") {
        Some(("nats", rest)) => rest,
        Some(("tls", _)) => return Err("tls:// is not supported by the hook; use a server or leaf node on this host with nats://".into()),
        Some((scheme, _)) => return Err(format!("{scheme}:// is unknown; write nats://host:port")),
        None => url,
    };
    let rest = rest.trim_end_matches('/');
    if rest.contains('@') {
        return Err("contains a user; set nats.user and nats.password instead".into());
    }
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, port))
            if !host.ends_with(':') && (!host.contains(':') || host.ends_with(']')) =>
        {
            (
                host,
                port.parse()
                    .map_err(|_| format!("port {port:?} is not a number"))?,
            )
        }
        _ => (rest, 4222),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() || host.contains(['/', ' ']) {
        return Err(format!("{url:?} has no host; write nats://host:port"));
    }
    Ok((host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn load(text: &str) -> Result<Config, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hook.toml");
        fs::write(&path, text).unwrap();
        mesh_testkit::write_private(&folder.path().join("secret"), "from file\n");
        Config::load(&path).map_err(|error| error.to_string())
    }

    const GOOD: &str =
        "cluster = 'c'\nspool = '/var/spool/mesh'\n[nats]\nurl = 'nats://127.0.0.1:4333'\n";

    #[test]
    fn a_small_file_is_enough() {
        let config = load(GOOD).unwrap();
        assert_eq!(config.deadline(), Duration::from_millis(200));
        assert_eq!(config.servers().unwrap(), [("127.0.0.1".to_owned(), 4333)]);
        assert_eq!(config.login(), None);
    }

    #[test]
    fn the_password_may_be_in_a_file_beside_it() {
        let config = load(&format!("{GOOD}user = 'hook'\npassword_file = 'secret'\n")).unwrap();
        assert_eq!(config.login(), Some(("hook", "from file")));
        assert!(!format!("{config:?}").contains("from file"));
    }

    #[test]
    fn a_file_with_a_password_is_not_for_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hook.toml");
        let text = format!("{GOOD}user = 'hook'\npassword = 'hunter2'\n");
        mesh_testkit::write_private(&path, &text);
        let config = Config::load(&path).unwrap();
        assert_eq!(config.login(), Some(("hook", "hunter2")));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let error = Config::load(&path).unwrap_err().to_string();
        assert!(
            error.contains("nats.password: others may read") && !error.contains("hunter2"),
            "{error}"
        );
    }

    #[test]
    fn servers_are_read_in_every_form() {
        for (url, expected) in [
            ("nats://a", ("a", 4222)),
            ("a:1", ("a", 1)),
            ("nats://[::1]:5", ("::1", 5)),
            ("nats://[::1]", ("::1", 4222)),
            ("nats://a:6/", ("a", 6)),
        ] {
            assert_eq!(
                server(url).unwrap(),
                (expected.0.to_owned(), expected.1),
                "{url}"
            );
        }
    }

    #[test]
    fn each_fault_names_its_key() {
        for (text, expected) in [
            (GOOD.replace("cluster", "clutser"), "clutser"),
            (GOOD.replace("'c'", "''"), "cluster"),
            (GOOD.replace("/var", "var"), "spool"),
            (GOOD.replace("nats://", "http://"), "nats.url"),
            (GOOD.replace("nats://", "tls://"), "nats.url"),
            (GOOD.replace("127", "u:p@127"), "nats.url"),
            (GOOD.replace("4333", "x"), "nats.url"),
            (format!("{GOOD}timeout_ms = 900\n"), "nats.timeout_ms"),
            (
                format!("deadline_ms = 100\n{GOOD}"),
                "hook.toml: deadline_ms: renamed to nats.timeout_ms",
            ),
            (format!("gpu_map = '/run/gpu'\n{GOOD}"), "gpu_map"),
            (
                format!("gpu_map = 'dcgm:/run/gpu'\ngpu_order = '1'\n{GOOD}"),
                "gpu_order",
            ),
            (format!("{GOOD}user = 'u'"), "nats.user"),
            (format!("{GOOD}password_file = 'absent'"), "absent"),
        ] {
            let error = load(&text).unwrap_err();
            assert!(error.contains(expected), "{expected}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_fault_on_the_password_line_does_not_print_it() {
        let error = load(&format!("{GOOD}user = 'u'\npassword = 'hunter2' x\n")).unwrap_err();
        assert!(
            error.contains("line 6") && !error.contains("hunter2"),
            "{error}"
        );
    }
}
