//! The connection to NATS.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use async_nats::connection::State;
use async_nats::jetstream;
use async_nats::{Client, Event, ServerAddr};
use mesh_events::catalogue;
use tokio::sync::{Mutex, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::removals::snapshot::Removals;
use crate::repair::plan::Consumers;
use crate::state::former::FormerStates;
use crate::status::Status;
use crate::{Backoff, BoxError, Config, Error, authentication, innermost, metrics};

/// Oldest version (major, minor) of nats-server with the features that the mesh needs: atomic batches and the strict API.
pub const MIN_SERVER_VERSION: (u32, u32) = (2, 12);
/// How long a completed declaration counts as current.
const DECLARATION_TTL: Duration = Duration::from_secs(10);
/// Timeout of one connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between two diagnoses of a missing connection.
const REASON_INTERVAL: Duration = Duration::from_secs(10);
/// Limit of consumers that are declared or opened at the same time. The server handles them one after the other, and each has to be done
/// before its request times out.
const MAX_CONCURRENT_DECLARATIONS: usize = 32;

/// A connection to NATS in one role. Cheap to clone.
#[derive(Clone)]
pub struct Bus {
    pub(crate) client: Client,
    pub(crate) jetstream: jetstream::Context,
    pub(crate) role: Arc<str>,
    pub(crate) config: Arc<Config>,
    /// Time and connection of the last complete declaration. Locked while declaring.
    declared: Arc<Mutex<Option<(Instant, u64)>>>,
    pub(crate) declaring: Arc<Semaphore>,
    pub(crate) consumers: Arc<Consumers>,
    pub(crate) removals: Arc<Removals>,
    pub(crate) status: Arc<Status>,
    pub(crate) former: Arc<FormerStates>,
}

impl Bus {
    /// Connects as a role of the catalogue. Returns at once, also while NATS is unavailable, and keeps trying to connect.
    ///
    /// # Errors
    /// If the configuration cannot be used: a broken address, an unreadable file.
    pub async fn connect(config: &Config, role: &str) -> Result<Self, Error> {
        metrics::describe();
        let connect_error = |source: BoxError| Error::Connect {
            url: config.redacted_url(),
            source,
        };
        let addresses = config
            .url
            .split(',')
            .map(|url| url.trim().parse::<ServerAddr>())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|source| connect_error(source.into()))?;
        if addresses.iter().any(|address| address.host().is_empty()) {
            return Err(connect_error("the address has no host".into()));
        }
        let options = authentication::options(config)?;
        let status = Arc::new(Status::default());
        let name = role.to_owned();
        let reason = Arc::new(Reason {
            config: config.clone(),
            addresses: addresses.clone(),
            status: Arc::clone(&status),
            finding: Mutex::default(),
        });
        let client = options
            .name(role)
            .custom_inbox_prefix(catalogue::inbox_prefix(role))
            .retry_on_initial_connect()
            .connection_timeout(CONNECT_TIMEOUT)
            .ping_interval(Duration::from_secs(10))
            .reconnect_delay_callback(|attempts| {
                Duration::from_millis((50 * attempts as u64).min(2_000))
            })
            .event_callback(move |event| {
                let (role, reason) = (name.clone(), Arc::clone(&reason));
                async move {
                    log_event(&role, &event);
                    reason.note(&event);
                }
            })
            .connect(addresses)
            .await
            .map_err(|source| connect_error(source.into()))?;
        let jetstream = jetstream::ContextBuilder::new()
            .timeout(Duration::from_secs(5))
            .ack_timeout(Duration::from_secs(10))
            .build(client.clone());
        Ok(Self {
            client,
            jetstream,
            role: role.into(),
            config: Arc::new(config.clone()),
            declared: Arc::default(),
            declaring: Arc::new(Semaphore::new(MAX_CONCURRENT_DECLARATIONS)),
            consumers: Arc::default(),
            removals: Arc::default(),
            former: Arc::default(),
            status,
        })
    }

    /// True while connected.
    pub fn connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    /// The role this connection was made for.
    pub fn role(&self) -> &str {
        &self.role
    }

    /// Waits until NATS answers and the public bus exists. Declares streams, consumers and buckets if `provision` is set. Concurrent
    /// callers share one declaration.
    ///
    /// # Errors
    /// [`Error::Cancelled`] when `shutdown` is cancelled.
    pub async fn ready(&self, shutdown: &CancellationToken) -> Result<(), Error> {
        // No warning during the first moments of a connection.
        let patience = Instant::now() + Duration::from_secs(2);
        let mut warned = false;
        let mut backoff = Backoff::fixed(Duration::from_millis(50));
        loop {
            let ready = shutdown.run_until_cancelled(self.try_ready()).await;
            match ready.ok_or(Error::Cancelled)? {
                Ok(()) => return Ok(()),
                Err(error) if !warned && Instant::now() > patience => {
                    warned = true;
                    tracing::warn!(error = &error as &dyn std::error::Error, nats.url = %self.config.redacted_url(), "waiting for NATS");
                }
                Err(_) => {}
            }
            if !backoff.wait(shutdown).await {
                return Err(Error::Cancelled);
            }
        }
    }

    async fn try_ready(&self) -> Result<(), Error> {
        if !self.connected() {
            return Err(Error::JetStream {
                action: "connect to",
                name: "NATS".into(),
                source: "not connected".into(),
            });
        }
        if !self.is_at_least(MIN_SERVER_VERSION) {
            let (major, minor) = MIN_SERVER_VERSION;
            let version = self.client.server_info().version;
            return Err(Error::JetStream {
                action: "use",
                name: "NATS".into(),
                source: format!(
                    "nats-server {major}.{minor} or newer is required, the version is {version}"
                )
                .into(),
            });
        }
        if self.config.provision {
            return self.declare_all().await;
        }
        Ok(())
    }

    /// Declares the whole catalogue, unless that was just done. A server that comes back may have lost everything, so every new connection
    /// declares again.
    async fn declare_all(&self) -> Result<(), Error> {
        let mut declared = self.declared.lock().await;
        let connection = self.client.statistics().connects.load(Ordering::Relaxed);
        let is_fresh =
            |(at, over): (Instant, u64)| over == connection && at.elapsed() < DECLARATION_TTL;
        if !declared.is_some_and(is_fresh) {
            // On the heap: the future is large and would be part of the future of every caller.
            Box::pin(self.provision()).await?;
            *declared = Some((Instant::now(), connection));
        }
        Ok(())
    }

    /// True if the server has this version or a newer one. [`crate::ClusterState`] requires 2.12.
    pub(crate) fn is_at_least(&self, version: (u32, u32)) -> bool {
        is_at_least(&self.client.server_info().version, version)
    }

    /// Present problems, if any: no connection and its cause, streams that do not store, consumers that cannot be read.
    pub fn problem(&self) -> Option<String> {
        if self.connected() {
            self.status.problem(Instant::now())
        } else {
            Some(self.status.disconnection())
        }
    }

    /// Drops failures of publishes and writes that nobody will repeat, such as those of a term of leadership that is over. They would be
    /// problems for another two minutes.
    pub fn drop_publish_failures(&self) {
        self.status.drop_failures();
    }

    /// Streams, buckets and consumers that were found changed or deleted within the last hour, and repaired; messages that were found removed.
    pub fn repairs(&self) -> Vec<String> {
        self.status.repairs()
    }

    /// Sends what is buffered and closes the connection.
    pub async fn close(&self) {
        if let Err(error) = tokio::time::timeout(Duration::from_secs(2), self.client.drain()).await
        {
            tracing::debug!(%error, "drain NATS connection");
        }
    }
}

/// Diagnoses a missing connection. The client's own event reads "IO error" for every cause, from a closed port to an expired certificate. A
/// separate attempt reveals the cause.
struct Reason {
    config: Config,
    addresses: Vec<ServerAddr>,
    status: Arc<Status>,
    finding: Mutex<()>,
}

impl Reason {
    fn note(self: Arc<Self>, event: &Event) {
        match event {
            Event::Connected => self.status.connected(),
            Event::ClientError(_) if self.status.reason_is_older_than(REASON_INTERVAL) => {
                tokio::spawn(self.find());
            }
            _ => {}
        }
    }

    async fn find(self: Arc<Self>) {
        let Ok(_alone) = self.finding.try_lock() else {
            return;
        };
        if let Err(reason) = self.connect_once().await {
            self.status.not_connected(reason);
        }
    }

    async fn connect_once(&self) -> Result<(), String> {
        let options = authentication::options(&self.config)
            .map_err(|error| format!("{error}: {}", error.cause()))?;
        let connecting = options
            .connection_timeout(CONNECT_TIMEOUT)
            .connect(self.addresses.clone());
        let error = connecting.await.err().map(BoxError::from);
        error.map_or(Ok(()), |error| Err(innermost(error.as_ref()).to_string()))
    }
}

/// True if a version of nats-server is at least `required`. An unreadable version counts as new enough.
fn is_at_least(version: &str, required: (u32, u32)) -> bool {
    let mut numbers = version
        .split('.')
        .map_while(|part| part.parse::<u32>().ok());
    let (major, minor) = (numbers.next(), numbers.next());
    major.zip(minor).is_none_or(|version| version >= required)
}

fn log_event(role: &str, event: &Event) {
    match event {
        Event::Connected => tracing::info!(role, "connected to NATS"),
        Event::Disconnected => tracing::warn!(role, "disconnected from NATS, reconnecting"),
        // Permission failures show up only here; the call that caused one just times out.
        Event::ServerError(error) => tracing::error!(role, %error, "NATS refuses"),
        Event::SlowConsumer(_) => tracing::warn!(role, %event, "NATS client"),
        // Client errors repeat with every attempt to connect; the first was reported as a disconnect.
        Event::ClientError(_) | Event::LameDuckMode | Event::Draining | Event::Closed => {
            tracing::debug!(role, %event, "NATS client");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_before_2_12_is_too_old() {
        for version in ["1.4.1", "2.9.25", "2.11.8", "2.11.0-RC.1"] {
            assert!(!is_at_least(version, MIN_SERVER_VERSION), "{version}");
        }
        for version in ["2.12.0", "2.12.1-beta", "2.14.0", "3.0.0", "", "dev"] {
            assert!(is_at_least(version, MIN_SERVER_VERSION), "{version}");
        }
    }
}
