//! Client of the API over a Unix socket (the caller is identified by uid) or TCP (with a token).
//!
//! [`Client`] checks the ledger before its first answer, [`UnguardedClient`] does not.

mod address;
mod event_stream;
mod unguarded;

use std::sync::Arc;

use reqwest::Method;
use serde_json::Value;
use tokio::sync::OnceCell;

use self::event_stream::ENTRY_STREAM;
use crate::error::Error;
use crate::known_ledgers;

pub use address::ApiAddress;
pub use event_stream::Entries;
pub use unguarded::{Download, Query, Readiness, UnguardedClient};

/// Client of the API. Before its first answer of the ledger it checks that the ledger continues what it showed before ([`known_ledgers::guard`]).
#[derive(Clone, Debug)]
pub struct Client {
    unguarded: UnguardedClient,
    /// Set once the ledger was checked.
    checked: Arc<OnceCell<()>>,
}

/// Paths of the ledger's API: events and what is computed of them, proofs, replays.
const OF_LEDGER: [&str; 6] = [
    "/v1/events",
    "/v1/jobs",
    "/v1/nodes",
    "/v1/kpis",
    "/v1/ledger",
    "/v1/replays",
];

/// True for requests that show or publish what the ledger has. A key can be rotated, a ledger resumed and a replay cancelled whatever it is.
fn reads_ledger(method: &Method, path: &str) -> bool {
    let is_below = |folder: &str| {
        let rest = path.strip_prefix(folder);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    match *method {
        Method::GET => OF_LEDGER.iter().any(|folder| is_below(folder)),
        Method::POST => path == "/v1/replays",
        _ => false,
    }
}

impl Client {
    /// Creates a client for an address. Connects with the first request.
    ///
    /// # Errors
    /// If the file of certificate authorities cannot be read.
    pub fn new(address: ApiAddress) -> Result<Self, Error> {
        Ok(Self {
            unguarded: UnguardedClient::new(address)?,
            checked: Arc::default(),
        })
    }

    /// The same client, which takes any answer of the ledger.
    #[must_use]
    pub fn unguarded(&self) -> UnguardedClient {
        self.unguarded.clone()
    }

    /// Gets a JSON document.
    ///
    /// # Errors
    /// As [`UnguardedClient::get`], or if the ledger contradicts what it showed before.
    pub async fn get(&self, path: &str, query: &Query) -> Result<Value, Error> {
        let client = self.guarded(&Method::GET, path).await?;
        client.get(path, query).await
    }

    /// Sends a POST without a body.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn post(&self, path: &str) -> Result<Value, Error> {
        self.send_json(Method::POST, path, None, &[]).await
    }

    /// Sends an optional JSON document with additional headers.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn send_json(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
        headers: &[(&'static str, String)],
    ) -> Result<Value, Error> {
        let client = self.guarded(&method, path).await?;
        client.send_json(method, path, body, headers).await
    }

    /// Gets a document of any type, which may be long.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn download(&self, path: &str, query: &Query) -> Result<Download, Error> {
        let client = self.guarded(&Method::GET, path).await?;
        client.download(path, query).await
    }

    /// Follows `/v1/events/stream`: entries after a sequence, as they are appended.
    ///
    /// # Errors
    /// As [`Client::get`]. The stream ends when the connection does.
    pub async fn follow(&self, query: &Query) -> Result<Entries, Error> {
        let download = self.download(ENTRY_STREAM, query).await?;
        Ok(event_stream::entries(download))
    }

    /// The client for a request. Checks the ledger once, before the first request that reads it.
    async fn guarded(&self, method: &Method, path: &str) -> Result<&UnguardedClient, Error> {
        if reads_ledger(method, path) {
            // Boxed: most requests do not need it.
            let check = || Box::pin(known_ledgers::guard(self.unguarded()));
            self.checked.get_or_try_init(check).await?;
        }
        Ok(&self.unguarded)
    }
}

/// Encodes a path segment that may hold any byte, such as the `+` of `123+1`.
pub fn segment(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests;
