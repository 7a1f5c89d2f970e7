//! Secrets among the settings of a format.

use std::io;
use std::path::{Path, PathBuf};

use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize, Serializer};

/// Displayed instead of a secret.
const MASK: &str = "…";

/// A secret, written as text or as `{ file = "…" }`. It is never displayed: as JSON it is `…`.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Secret {
    /// The secret.
    Value(SecretString),
    /// A file that contains it.
    File {
        /// Path of the file. Surrounding whitespace in its content is ignored.
        file: PathBuf,
    },
}

impl Secret {
    /// The secret. Empty until its file is read.
    pub fn expose(&self) -> &str {
        match self {
            Self::Value(secret) => secret.expose_secret(),
            Self::File { .. } => "",
        }
    }

    /// The file that contains it. An API must reject it: users could read files of the server.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::Value(_) => None,
            Self::File { file } => Some(file),
        }
    }

    /// Replaces a file reference by the file's content.
    ///
    /// # Errors
    /// Why the file cannot be read.
    pub fn read(&mut self, read: impl Fn(&Path) -> io::Result<String>) -> Result<(), String> {
        if let Self::File { file } = self {
            let text = read(file).map_err(|error| format!("read {}: {error}", file.display()))?;
            *self = Self::from(text.trim());
        }
        Ok(())
    }

    /// The problem of a secret that is sent in a header or field.
    pub(super) fn fault(&self) -> Option<String> {
        let secret = self.expose();
        if secret.is_empty() || secret == MASK {
            Some("missing".to_owned())
        } else if secret.len() > 512 || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
            Some("at most 512 visible ASCII characters".to_owned())
        } else {
            None
        }
    }
}

impl From<&str> for Secret {
    fn from(secret: &str) -> Self {
        Self::Value(SecretString::from(secret))
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.expose() == other.expose() && self.file() == other.file()
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(MASK)
    }
}
