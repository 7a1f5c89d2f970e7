//! Sources of events from outside: who sends, how that is proven, and in which form.

use std::collections::BTreeSet;
use std::path::PathBuf;

/// Source of what people publish.
pub const PUBLISHED: &str = "publish";

/// A source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its name, in paths, subjects and rules.
    pub name: String,
    /// How its events come.
    pub transport: Transport,
    /// The form of its messages.
    pub format: Format,
    /// Users of whom rules by API may select its events; `*` is everybody.
    pub users: BTreeSet<String>,
}

impl Source {
    /// True if a user may make rules on its events.
    pub fn is_open_to(&self, user: &str) -> bool {
        self.users.contains("*") || self.users.contains(user)
    }
}

/// How the events of a source come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// By HTTP, each request signed.
    Http {
        /// How.
        signature: Signature,
        /// The secret, or several, one per line, while they are exchanged.
        secret_file: PathBuf,
    },
    /// On `mesh.<cluster>.raw.<name>`, by whom NATS lets publish there.
    Nats,
}

/// How a request proves its sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Signature {
    /// Standard Webhooks; also GitLab's signing token.
    Standard,
    /// `X-Hub-Signature-256`
    Github,
    /// `X-Gitlab-Token`
    Gitlab,
    /// HMAC-SHA256 of the body in a header.
    Hmac {
        /// Name of the header.
        header: String,
    },
    /// `Authorization: Bearer`
    Bearer,
}

/// The form of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Any JSON.
    Json,
    /// CloudEvents, structured.
    CloudEvents,
    /// Notifications of S3, MinIO and EventBridge.
    S3,
}
