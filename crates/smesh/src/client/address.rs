//! Where the API is.

use std::path::{Path, PathBuf};

use secrecy::SecretString;
use url::Url;

use crate::error::Error;

/// Address of the API.
#[derive(Clone, Debug)]
pub enum ApiAddress {
    /// A Unix socket.
    Unix(PathBuf),
    /// TCP, with a token.
    Tcp {
        /// `http://` or `https://`, host and port.
        url: Url,
        /// Bearer token.
        token: SecretString,
        /// PEM file with certificate authorities that are trusted beside those of the system.
        ca_file: Option<PathBuf>,
    },
}

impl ApiAddress {
    /// Parses an `http://` or `https://` address.
    ///
    /// # Errors
    /// If it is not one.
    pub fn tcp(url: &str, token: &str, ca_file: Option<&Path>) -> Result<Self, Error> {
        let parsed = Url::parse(url)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        let url = parsed.ok_or_else(|| {
            Error::Usage(format!("{url}: not an address such as https://login1:8686"))
        })?;
        Ok(Self::Tcp {
            url,
            token: token.into(),
            ca_file: ca_file.map(Path::to_owned),
        })
    }
}

impl std::fmt::Display for ApiAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Tcp { url, .. } => write!(f, "{}", url.as_str().trim_end_matches('/')),
        }
    }
}
