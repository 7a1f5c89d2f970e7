//! Section `[slurm]` of `mesh.toml`.

use std::{fmt, num::NonZeroU32, path::PathBuf, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};

/// Access to Slurm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Whether commands or slurmrestd are used.
    pub source: Source,
    /// Path of slurm.conf. Unset: `SLURM_CONF` from the environment, else the default of the commands.
    pub conf: Option<PathBuf>,
    /// Folder of Slurm's commands. Unset: they are found in `PATH`.
    pub bin_dir: Option<PathBuf>,
    /// Deadline of one command or request. A command that exceeds it is killed.
    #[serde(with = "humantime_serde")]
    pub command_timeout: Duration,
    /// Maximum number of commands per second on average, regardless of the number of doorbells.
    pub commands_per_second: NonZeroU32,
    /// Address of slurmrestd.
    pub rest_url: RestUrl,
    /// File with a JSON web token for slurmrestd, bare or as printed by `scontrol token` (`SLURM_JWT=…`). Reloaded when it
    /// changes. Unset: no token is sent, which a Unix socket may allow.
    pub token_file: Option<PathBuf>,
    /// User of the token. Slurm 22.05 requires it with every token.
    pub rest_user: Option<String>,
}

/// A poll runs one command, 16 doorbells at most 17.
const COMMANDS_PER_SECOND: NonZeroU32 = NonZeroU32::new(20).expect("20 is not 0");

impl Default for Config {
    fn default() -> Self {
        Self {
            source: Source::Cli,
            conf: None,
            bin_dir: None,
            command_timeout: Duration::from_secs(10),
            commands_per_second: COMMANDS_PER_SECOND,
            rest_url: RestUrl::default(),
            token_file: None,
            rest_user: None,
        }
    }
}

/// Interface through which Slurm is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Slurm's commands: cheap, complete, and recommended on hosts that have them.
    #[default]
    Cli,
    /// slurmrestd.
    Rest,
}

/// Address of slurmrestd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RestUrl {
    /// `unix:///run/slurmrestd.socket`
    Unix(PathBuf),
    /// `http://host:6820` or `https://proxy/prefix`, without a trailing slash.
    Tcp(String),
}

impl Default for RestUrl {
    /// The default port of slurmrestd.
    fn default() -> Self {
        Self::Tcp("http://localhost:6820".to_owned())
    }
}

/// The text is not an address of slurmrestd.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("read rest_url {text:?}: expected unix:///path or http(s)://host:port")]
pub struct ParseRestUrlError {
    text: String,
}

impl FromStr for RestUrl {
    type Err = ParseRestUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseRestUrlError {
            text: text.to_owned(),
        };
        if let Some(path) = text.strip_prefix("unix://") {
            return match path.len() > 1 && path.starts_with('/') {
                true => Ok(Self::Unix(path.into())),
                false => Err(error()),
            };
        }
        let rest = text
            .strip_prefix("http://")
            .or_else(|| text.strip_prefix("https://"))
            .ok_or_else(error)?;
        let host = rest.split('/').next().unwrap_or_default();
        // A user or password here would end up in messages; a base address has no query.
        let sane = !host.is_empty()
            && !rest.contains(['@', '?', '#', ' '])
            && reqwest::Url::parse(text).is_ok();
        match sane {
            true => Ok(Self::Tcp(text.trim_end_matches('/').to_owned())),
            false => Err(error()),
        }
    }
}

impl TryFrom<String> for RestUrl {
    type Error = ParseRestUrlError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<RestUrl> for String {
    fn from(url: RestUrl) -> Self {
        url.to_string()
    }
}

impl fmt::Display for RestUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp(url) => f.write_str(url),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_slurmrestd() {
        for text in [
            "unix:///run/slurmrestd/slurmrestd.socket",
            "http://localhost:6820",
            "https://proxy.example.org/slurm",
        ] {
            assert_eq!(text.parse::<RestUrl>().unwrap().to_string(), text);
        }
        let url: RestUrl = "http://[::1]:6820/".parse().unwrap();
        assert_eq!(url.to_string(), "http://[::1]:6820");
        for text in [
            "",
            "unix:/run/x",
            "unix:///",
            "localhost:6820",
            "http://",
            "http://host:port",
            "ftp://host",
            "http://me:secret@host",
        ] {
            assert!(text.parse::<RestUrl>().is_err(), "{text}");
        }
    }
}
