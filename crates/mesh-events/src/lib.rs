//! The contract of slurm-mesh: what an event is, how it is named, and where it travels.
//!
//! - [`proto`]: the generated protobuf messages of `proto/`.
//! - [`EventType`]: the closed list of events.
//! - [`ids`]: deterministic ids; every observer of a fact computes the same id.
//! - [`subject`]: reversible subject tokens, and the subject of an event.
//! - [`hooks`]: names of hooks, and the consumers of their doorbells.
//! - [`catalogue`]: streams, consumers, key-value buckets and roles as data.
//! - [`cloudevents`]: the one mapping of an event to CloudEvents 1.0 headers and JSON.
//! - [`incoming`]: events from outside of Slurm.
//!
//! Deliberately absent: IO, async, clocks and randomness. `docs/reference/events.md` specifies the bytes.

mod capture;
pub mod catalogue;
pub mod chunks;
pub mod cloudevents;
mod event_type;
pub mod hooks;
pub mod ids;
pub mod incoming;
pub mod subject;
mod timestamp;
mod unreadable_state;
pub mod webhook_name;

/// Generated from `proto/` by `cargo xtask codegen`.
#[allow(missing_docs, clippy::all, clippy::unwrap_used, unused_qualifications)]
#[rustfmt::skip]
#[path = "generated/mod.rs"]
pub mod proto;

pub use capture::{capture_event, sampled_capture_event};
pub use event_type::{Category, EventType, FactKind, UnknownEventType};
pub use ids::{EventId, RunKey, Slot};
pub use incoming::IncomingEvent;
pub use proto::mesh::event::v1::Event;
pub use timestamp::{from_timestamp, timestamp};
pub use unreadable_state::unreadable_state;

use prost::Message as _;

/// True for the value that `#[serde(default)]` reads, for `skip_serializing_if`.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Version of the envelope and its payloads.
pub const SCHEMA_VERSION: u32 = 1;

/// Why bytes are not an event of this contract.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// They are not the protobuf message.
    #[error("decode event")]
    Protobuf(#[from] prost::DecodeError),
    /// The type is not in the catalogue.
    #[error("decode event")]
    Type(#[from] UnknownEventType),
    /// The id is not a UUIDv8.
    #[error("decode event: id {0:?} is not a UUIDv8")]
    Id(String),
    /// A field that every event has is missing.
    #[error("decode event {id}: field {field} is missing")]
    Missing {
        /// Id of the event.
        id: String,
        /// The field.
        field: &'static str,
    },
}

impl Event {
    /// Decodes an event and checks the fields that every consumer relies on: id, type, cluster, times, entity.
    ///
    /// # Errors
    /// A [`DecodeError`] that names the fault.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let event = Self::decode(bytes)?;
        event.kind()?;
        if event.id.parse::<EventId>().is_err() {
            return Err(DecodeError::Id(event.id));
        }
        let missing = [
            (event.cluster.is_empty(), "cluster"),
            (event.occurred_at.is_none(), "occurred_at"),
            (event.observed_at.is_none(), "observed_at"),
            (event.entity.is_none(), "entity"),
            (event.payload.is_none(), "payload"),
        ]
        .into_iter()
        .find_map(|(absent, field)| absent.then_some(field));
        match missing {
            Some(field) => Err(DecodeError::Missing {
                id: event.id,
                field,
            }),
            None => Ok(event),
        }
    }

    /// The event's type.
    ///
    /// # Errors
    /// If the type is not in the catalogue.
    pub fn kind(&self) -> Result<EventType, UnknownEventType> {
        self.r#type.parse()
    }

    /// Key of the entity the event is about; empty if the event has none.
    pub fn entity_key(&self) -> &str {
        self.entity.as_ref().map_or("", |entity| &entity.key)
    }

    /// The job snapshot of the event, if it is about a job.
    pub fn job(&self) -> Option<&proto::mesh::job::v1::Job> {
        use proto::mesh::event::v1::event::Payload;
        match self.payload.as_ref()? {
            Payload::Job(job) => job.job.as_ref(),
            Payload::Cost(cost) => cost.job.as_ref(),
            Payload::Queue(queue) => queue.job.as_ref(),
            Payload::Node(_) | Payload::User(_) | Payload::Capture(_) => None,
        }
    }
}
