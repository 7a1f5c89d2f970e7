//! One issuer: its key set URL and its cached keys.
//!
//! Keys are fetched when a token needs an unknown one, and refreshed after ten minutes when used. Fetches are at least ten seconds apart,
//! so invented key ids cannot flood the issuer. While the issuer does not answer, cached keys are trusted for `keys_max_age`.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use jsonwebtoken::{Algorithm, DecodingKey};
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::config::OidcConfig;
use super::keys::Keys;
use crate::api::metrics;

/// Shortest time between two fetches.
const REFETCH_INTERVAL: Duration = Duration::from_secs(10);
/// Older keys are fetched again, while the old ones stay in use.
const KEYS_TTL: Duration = Duration::from_secs(600);
/// Deadline of a fetch: two requests.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit of a response's length.
const MAX_RESPONSE_BYTES: usize = 512 * 1024;

/// An issuer of the configuration.
pub(super) struct Issuer {
    pub(super) config: OidcConfig,
    http: reqwest::Client,
    known: RwLock<Option<Arc<CachedKeys>>>,
    /// Held while fetching: concurrent callers share one fetch.
    fetching: Mutex<Option<Fetch>>,
}

struct CachedKeys {
    keys: Keys,
    fetched: Instant,
}

struct Fetch {
    began: Instant,
    failed: bool,
}

/// Why there is no key.
#[derive(Debug)]
pub(super) enum KeyError {
    /// The issuer has no such key, as far as we know.
    Unknown,
    /// The issuer could not be reached.
    Unreachable,
}

impl Issuer {
    pub(super) fn new(config: OidcConfig, http: reqwest::Client) -> Self {
        Self {
            config,
            http,
            known: RwLock::default(),
            fetching: Mutex::default(),
        }
    }

    /// The key with an id, for an algorithm.
    pub(super) async fn key(
        self: &Arc<Self>,
        id: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<DecodingKey, KeyError> {
        if let Some(known) = self.known()
            && let Some(key) = known.keys.find(id, algorithm)
        {
            if known.fetched.elapsed() > KEYS_TTL {
                drop(self.refresh());
            }
            return Ok(key.clone());
        }
        let failed = self.refresh().await.unwrap_or(true);
        match self.known() {
            Some(known) => match known.keys.find(id, algorithm) {
                Some(key) => Ok(key.clone()),
                None if failed => Err(KeyError::Unreachable),
                None => Err(KeyError::Unknown),
            },
            None => Err(KeyError::Unreachable),
        }
    }

    /// The cached keys, if they are younger than `keys_max_age`.
    fn known(&self) -> Option<Arc<CachedKeys>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known
            .as_ref()
            .filter(|known| known.fetched.elapsed() < self.config.keys_max_age)
            .map(Arc::clone)
    }

    /// Fetches the keys, unless that was just done. Returns true if the last fetch failed. Runs as a task: a caller that disconnects must
    /// neither cancel it nor cause another fetch.
    pub(super) fn refresh(self: &Arc<Self>) -> JoinHandle<bool> {
        let issuer = Arc::clone(self);
        tokio::spawn(async move { issuer.fetch_once().await })
    }

    async fn fetch_once(&self) -> bool {
        let mut last = self.fetching.lock().await;
        if let Some(fetch) = &*last
            && fetch.began.elapsed() < REFETCH_INTERVAL
        {
            return fetch.failed;
        }
        let began = Instant::now();
        let fetched = timeout(FETCH_TIMEOUT, self.fetch())
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {FETCH_TIMEOUT:?}")));
        let failed = fetched.is_err();
        metrics::keys_fetched(!failed);
        match fetched {
            Ok(keys) => {
                let known = CachedKeys {
                    keys,
                    fetched: Instant::now(),
                };
                *self.known.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(known));
            }
            Err(reason) => {
                tracing::warn!(
                    issuer = self.config.issuer,
                    reason,
                    "keys of the issuer not fetched, using the cached ones"
                );
            }
        }
        *last = Some(Fetch { began, failed });
        failed
    }

    /// OpenID Connect Discovery 1.0 §4, then the keys it names.
    async fn fetch(&self) -> Result<Keys, String> {
        let issuer = self.config.issuer.as_str();
        let address = format!(
            "{}/.well-known/openid-configuration",
            issuer.trim_end_matches('/')
        );
        let discovered = self.get(&address).await?;
        // §4.3: a different `issuer` means a document of another issuer.
        if discovered["issuer"] != issuer {
            return Err(format!("{address} is of another issuer"));
        }
        let keys = discovered["jwks_uri"].as_str().unwrap_or_default();
        self.config
            .allows(keys)
            .map_err(|reason| format!("jwks_uri of {address}: {reason}"))?;
        let set = self.get(keys).await?;
        Keys::read(&set).map_err(|reason| format!("{keys}: {reason}"))
    }

    async fn get(&self, address: &str) -> Result<Value, String> {
        let failed = |error: reqwest::Error| format!("{address}: {}", crate::error_chain(&error));
        let mut answer = self.http.get(address).send().await.map_err(failed)?;
        if !answer.status().is_success() {
            return Err(format!("{address}: HTTP {}", answer.status().as_u16()));
        }
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(failed)? {
            if body.len() + chunk.len() > MAX_RESPONSE_BYTES {
                return Err(format!("{address}: more than {MAX_RESPONSE_BYTES} bytes"));
            }
            body.extend_from_slice(&chunk);
        }
        serde_json::from_slice(&body).map_err(|error| format!("{address}: {error}"))
    }
}
