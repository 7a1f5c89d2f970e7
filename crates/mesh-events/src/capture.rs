//! The envelope of events about capture itself.

use chrono::{DateTime, Utc};

use crate::proto::mesh::capture::v1::CaptureEvent;
use crate::proto::mesh::event::v1::{Confidence, Entity, IdSource, Source, event::Payload};
use crate::{Event, EventId, EventType, SCHEMA_VERSION, timestamp};

/// Builds an event about capture, which occurred when it was observed. `entity` is its entity key, such as `capture/slurmctld`. It has no id
/// yet, see [`sampled_capture_event`].
pub fn capture_event(
    cluster: &str,
    kind: EventType,
    entity: &str,
    at: DateTime<Utc>,
    payload: CaptureEvent,
) -> Event {
    Event {
        cluster: cluster.to_owned(),
        r#type: kind.to_string(),
        occurred_at: Some(timestamp(at)),
        observed_at: Some(timestamp(at)),
        source: Source::Derived.into(),
        confidence: Confidence::Observed.into(),
        entity: Some(Entity {
            kind: "cluster".to_owned(),
            key: entity.to_owned(),
        }),
        schema_version: SCHEMA_VERSION,
        payload: Some(Payload::Capture(payload)),
        ..Event::default()
    }
}

/// Builds such an event with the id of the `n`th event of its type and entity.
pub fn sampled_capture_event(
    cluster: &str,
    kind: EventType,
    entity: &str,
    n: u64,
    at: DateTime<Utc>,
    payload: CaptureEvent,
) -> Event {
    Event {
        id: EventId::sampled(cluster, entity, kind, n).to_string(),
        id_source: IdSource::sampled(n),
        run_seq: n,
        ..capture_event(cluster, kind, entity, at, payload)
    }
}
