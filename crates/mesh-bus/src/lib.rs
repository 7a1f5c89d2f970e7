//! JetStream for the mesh: connect, declare, publish, consume, acknowledge, dead-letter.
//!
//! The only crate that names `async_nats`. Everything it declares comes from [`mesh_events::catalogue`]. Its guarantees:
//!
//! - A publish returns after JetStream has acknowledged it. It carries the event's id, so repeating it is harmless.
//! - A message is acknowledged after its handler has finished. A dropped message is redelivered; one that cannot be processed is parked as
//!   a dead letter with its reason.
//! - NATS may be unavailable at any time: connections are restored, consumers resume, publishers wait.
//!
//! Modules by duty:
//!
//! - connect: `config`, `authentication`, `connection`, `status` (readiness), `retry`, `trace`, `metrics`;
//! - declare: `provision` (streams, consumers and buckets), `repair` (consumers that others changed), `redeclare` (what others deleted),
//!   `legacy_consumers` (of former versions);
//! - publish: `publish`, `batch` (many messages for two syncs of the disk);
//! - read: `consume` (durable consumers, acknowledged), `ordered` (without acknowledgements, the reader stores its position), `follow` (for
//!   the event streams of the API and for wake-ups), `direct` (without any consumer, by direct gets), `stream` (single messages, and the
//!   state of a stream);
//! - key-value: `bucket`, `state` (a service's state in shards), `lease` (who leads), `chunks`
//!   (snapshots in several values), `webhooks` (names of endpoints);
//! - back up: `snapshot` (streams and positions of consumers); `probe` tells whether streams store.

mod authentication;
mod batch;
mod bucket;
mod chunks;
mod config;
mod connection;
mod consume;
mod direct;
mod follow;
mod lease;
mod legacy_consumers;
mod message;
mod metrics;
mod ordered;
mod probe;
mod provision;
mod publish;
mod redeclare;
mod removals;
mod repair;
mod retry;
mod snapshot;
mod state;
mod status;
mod stream;
pub mod trace;
mod webhooks;

pub use batch::RawMessage;
pub use bucket::{Bucket, BucketEntry, PutError, is_newer_format};
pub use chunks::{ChunkWriter, StoredChunks};
pub use config::Config;
pub use connection::{Bus, MIN_SERVER_VERSION};
pub use consume::{BatchHandler, Disposition, Handler};
pub use direct::StoredMessages;
pub use follow::StartPosition;
pub use lease::{Candidate, LeadershipState, Lease};
pub use legacy_consumers::LegacyConsumer;
pub use message::Message;
pub use probe::StorageState;
pub use publish::{PublishAck, ReplayedEvent};
pub use retry::Backoff;
pub use snapshot::{ConsumerPosition, StreamSnapshot};
pub use state::ClusterState;
pub use stream::{ConsumerProgress, StoredMessage, StreamState};
pub use webhooks::WebhookNames;

/// An operation on the bus that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The NATS address or credentials cannot be used.
    #[error("connect to NATS at {url}")]
    Connect {
        /// Address from the configuration.
        url: String,
        /// Cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A file with credentials or certificates cannot be used.
    #[error("mesh.nats.{key} {}", path.display())]
    File {
        /// Its key in `[mesh.nats]`.
        key: &'static str,
        /// The file.
        path: std::path::PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// The event itself cannot be published, now or later.
    #[error("publish event {id}: {reason}")]
    Invalid {
        /// Id of the event.
        id: String,
        /// Why the event is invalid.
        reason: String,
    },
    /// JetStream did not acknowledge; a retry may succeed.
    #[error("publish to {subject}")]
    Publish {
        /// The subject.
        subject: String,
        /// Cause.
        #[source]
        source: async_nats::jetstream::context::PublishError,
    },
    /// A stream, consumer or bucket cannot be declared, read or written.
    #[error("{action} {name}")]
    JetStream {
        /// The operation, e.g. `open bucket`.
        action: &'static str,
        /// Stream, consumer or bucket.
        name: String,
        /// Cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Cancelled by shutdown before it was done.
    #[error("stopped before completion")]
    Cancelled,
}

impl Error {
    /// Text of the innermost cause.
    pub(crate) fn cause(&self) -> String {
        innermost(self).to_string()
    }

    pub(crate) fn jetstream(
        action: &'static str,
        name: &str,
    ) -> impl FnOnce(BoxError) -> Self + use<> {
        let name = name.to_owned();
        move |source| Self::JetStream {
            action,
            name,
            source,
        }
    }
}

pub(crate) fn innermost<'a>(
    mut error: &'a (dyn std::error::Error + 'static),
) -> &'a (dyn std::error::Error + 'static) {
    while let Some(source) = error.source() {
        error = source;
    }
    error
}

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
