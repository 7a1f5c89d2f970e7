//! Secrets among the settings of a format.

use std::io;
use std::path::{Path, PathBuf};

use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize, Serializer};

/// What is shown instead of a secret.
const MASK: &str = "…";

/// A secret: written as text, or as `{ file = "…" }` that has it. It is never shown: as JSON it is `…`.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Secret {
    /// The secret.
    Value(SecretString),
    /// Where it is.
    File {
        /// The file; blanks around the secret do not count.
        file: PathBuf,
    },
}

impl Secret {
    /// The secret; empty as long as its file was not read.
    pub fn expose(&self) -> &str {
        match self {
            Self::Value(secret) => secret.expose_secret(),
            Self::File { .. } => "",
        }
    }

    /// The file it is in. An API must refuse that: it would read files of the server for strangers.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::Value(_) => None,
            Self::File { file } => Some(file),
        }
    }

    /// Reads its file, if it is in one.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn read(&mut self, read: impl Fn(&Path) -> io::Result<String>) -> Result<(), String> {
        if let Self::File { file } = self {
            let text = read(file).map_err(|error| format!("read {}: {error}", file.display()))?;
            *self = Self::from(text.trim());
        }
        Ok(())
    }

    /// What is wrong with a secret that goes into a header or a field.
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
