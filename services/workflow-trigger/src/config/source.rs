//! `[[workflow-trigger.sources]]`: senders of events from outside.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::domain::source::{Format, PUBLISHED, Signature, Source, Transport};

const DEFAULT_SIGNATURE_HEADER: &str = "x-signature";

/// A source as written.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SourceConfig {
    name: String,
    #[serde(default)]
    kind: Kind,
    signature: Option<SignatureKind>,
    #[serde(default)]
    signature_header: String,
    #[serde(default)]
    secret_file: PathBuf,
    #[serde(default)]
    format: FormatName,
    #[serde(default)]
    users: BTreeSet<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    #[default]
    Http,
    Nats,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum SignatureKind {
    Standard,
    Github,
    Gitlab,
    Hmac,
    Bearer,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum FormatName {
    #[default]
    Json,
    CloudEvents,
    S3,
}

impl SourceConfig {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The checked source. `relative` resolves paths.
    ///
    /// # Errors
    /// All faults, each with its key.
    pub fn source(&self, relative: impl Fn(&Path) -> PathBuf) -> Result<Source, Vec<String>> {
        let mut faults = Vec::new();
        let mut fault = |key: &str, problem: &str| {
            faults.push(format!("source {:?}: {key}: {problem}", self.name));
        };
        let is_valid = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        if !(1..=64).contains(&self.name.len()) || !self.name.chars().all(is_valid) {
            fault("name", "1 to 64 letters, digits, `_` and `-`");
        }
        if self.name == PUBLISHED {
            fault("name", "the source of what people publish");
        }
        let has_secret = !self.secret_file.as_os_str().is_empty();
        if !self.signature_header.is_empty() && self.signature != Some(SignatureKind::Hmac) {
            fault("signature_header", "only with signature = \"hmac\"");
        }
        let transport = match (self.kind, self.signature) {
            (Kind::Nats, None) if !has_secret => Some(Transport::Nats),
            (Kind::Nats, _) => {
                fault(
                    "signature",
                    "not with kind = \"nats\", where NATS knows the sender",
                );
                None
            }
            (Kind::Http, None) => {
                fault("signature", "one of standard, github, gitlab, hmac, bearer");
                None
            }
            (Kind::Http, Some(_)) if !has_secret => {
                fault("secret_file", "missing: the file with the secret");
                None
            }
            (Kind::Http, Some(kind)) => {
                let secret_file = relative(&self.secret_file);
                match secrets(&secret_file) {
                    Ok(secrets) if secrets.is_empty() => fault("secret_file", "empty"),
                    Ok(_) => {}
                    Err(error) => fault("secret_file", &error.to_string()),
                }
                Some(Transport::Http {
                    signature: self.signature(kind),
                    secret_file,
                })
            }
        };
        match transport {
            Some(transport) if faults.is_empty() => Ok(Source {
                name: self.name.clone(),
                transport,
                format: match self.format {
                    FormatName::Json => Format::Json,
                    FormatName::CloudEvents => Format::CloudEvents,
                    FormatName::S3 => Format::S3,
                },
                users: self.users.clone(),
            }),
            _ => Err(faults),
        }
    }

    fn signature(&self, kind: SignatureKind) -> Signature {
        match kind {
            SignatureKind::Standard => Signature::Standard,
            SignatureKind::Github => Signature::Github,
            SignatureKind::Gitlab => Signature::Gitlab,
            SignatureKind::Bearer => Signature::Bearer,
            SignatureKind::Hmac => Signature::Hmac {
                header: match self.signature_header.as_str() {
                    "" => DEFAULT_SIGNATURE_HEADER.to_owned(),
                    header => header.to_ascii_lowercase(),
                },
            },
        }
    }
}

/// The secrets of a file, one per line.
pub(crate) fn secrets(file: &Path) -> std::io::Result<Vec<String>> {
    let text = secret_file::read(file)?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    Ok(lines.map(str::to_owned).collect())
}
