//! Deterministic ids of facts.
//!
//! Every id is a UUIDv8 (RFC 9562 §5.8) made of the first 128 bits of a SHA-256 over *fields*. A field is its length as four bytes, big
//! endian, followed by its UTF-8 bytes; numbers are written in decimal. So no two lists of fields have the same bytes.
//!
//! | fact | fields |
//! | --- | --- |
//! | recorded | `slurm-mesh/recorded/1`, cluster, job id, task id or empty, submit time, attempt, slot |
//! | sampled | `slurm-mesh/sampled/1`, cluster, entity key, event type, n |
//! | derived | `slurm-mesh/derived/1`, id of the cause (an event, or the doorbell of a login), event type, n |
//!
//! Recorded facts need no state: any observer, in any order, after any restart, computes the same id. Sampled facts are numbered by a
//! counter n, which the leader stores. `docs/reference/events.md` is the specification and `docs/reference/vectors.json` has test vectors.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};
use uuid::{Uuid, Variant};

use crate::proto::mesh::event::v1::IdSource;
use crate::{Event, EventType};

/// Id of a fact: a UUIDv8.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId(Uuid);

impl EventId {
    /// Id of a fact that has a time in Slurm's record of a run.
    pub fn recorded(run: &RunKey, slot: Slot) -> Self {
        Self::of_run(run, &slot.to_string())
    }

    fn of_run(run: &RunKey, slot: &str) -> Self {
        let task = run.task_id.map(|task| task.to_string()).unwrap_or_default();
        Self::of(&[
            "slurm-mesh/recorded/1",
            &run.cluster,
            &run.job_id.to_string(),
            &task,
            &run.submit_time.to_string(),
            &run.attempt.to_string(),
            slot,
        ])
    }

    /// Id of the `n`th fact of a type about an entity, for facts without a time of Slurm.
    pub fn sampled(cluster: &str, entity: &str, kind: EventType, n: u64) -> Self {
        Self::of(&[
            "slurm-mesh/sampled/1",
            cluster,
            entity,
            &kind.to_string(),
            &n.to_string(),
        ])
    }

    /// Id of the `n`th fact of a type computed from another fact.
    pub fn derived(cause: Self, kind: EventType, n: u64) -> Self {
        Self::of(&[
            "slurm-mesh/derived/1",
            &cause.to_string(),
            &kind.to_string(),
            &n.to_string(),
        ])
    }

    /// Id of a fact that is known from a doorbell alone, without a record of Slurm. A doorbell that arrives twice is one fact. `None` if
    /// the doorbell's id is not a UUID.
    pub fn of_doorbell(doorbell: &str, kind: EventType) -> Option<Self> {
        let cause = doorbell_id(doorbell)?;
        let fields = ["slurm-mesh/derived/1", &cause, &kind.to_string(), "0"];
        Some(Self::of(&fields))
    }

    /// Recomputes the id of an event from its contents. `None` if they do not suffice.
    pub fn recomputed(event: &Event) -> Option<Self> {
        let kind = event.kind().ok()?;
        let nothing = IdSource::default();
        let IdSource {
            slot,
            n,
            cause,
            entity,
        } = event.id_source.as_ref().unwrap_or(&nothing);
        let key = match entity.as_str() {
            "" => event.entity_key(),
            entity => entity,
        };
        if !cause.is_empty() {
            let (kind, n) = (kind.to_string(), n.to_string());
            return Some(Self::of(&["slurm-mesh/derived/1", cause, &kind, &n]));
        }
        if *n > 0 {
            return Some(Self::sampled(&event.cluster, key, kind, *n));
        }
        let run = RunKey::parse(&event.cluster, key).ok()?;
        let of_type = Slot::of_type(kind).map(|slot| slot.to_string());
        let slot = (!slot.is_empty()).then(|| slot.clone()).or(of_type)?;
        Some(Self::of_run(&run, &slot))
    }

    fn of(fields: &[&str]) -> Self {
        let mut hash = Sha256::new();
        for field in fields {
            hash.update(length(field.len()));
            hash.update(field.as_bytes());
        }
        let digest = hash.finalize();
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        Self(uuid::Builder::from_custom_bytes(bytes).into_uuid())
    }
}

/// Canonical form of a doorbell's id; `None` if it is not a UUID.
fn doorbell_id(text: &str) -> Option<String> {
    let id = Uuid::try_parse(text).ok()?;
    Some(id.as_hyphenated().to_string())
}

/// The length prefix of a field.
fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes)
        .expect("fields of events are far below 4 GiB: NATS refuses larger messages")
        .to_be_bytes()
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_hyphenated().fmt(f)
    }
}

impl fmt::Debug for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is not an event id.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not an event id (a lower-case UUIDv8)")]
pub struct InvalidEventId(String);

impl FromStr for EventId {
    type Err = InvalidEventId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let id = Uuid::try_parse(text).map_err(|_| InvalidEventId(text.to_owned()))?;
        let canonical = id.get_version_num() == 8
            && id.get_variant() == Variant::RFC4122
            && id.hyphenated().encode_lower(&mut Uuid::encode_buffer()) == text;
        if canonical {
            Ok(Self(id))
        } else {
            Err(InvalidEventId(text.to_owned()))
        }
    }
}

/// One execution attempt of a job: Slurm's unique accounting key, and an ordinal for the rare attempts that share it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunKey {
    /// Slurm's ClusterName.
    pub cluster: String,
    /// Job id; for tasks of an array the array's id.
    pub job_id: u32,
    /// Index of the array task. `None` for ordinary jobs and for the array itself.
    pub task_id: Option<u32>,
    /// Submit time in Unix seconds; Slurm resets it at a requeue.
    pub submit_time: i64,
    /// Counts attempts that share a submit time, from 0 (seen on Slurm 22.05 when a job is requeued in its first second).
    pub attempt: u32,
}

impl RunKey {
    /// Entity key: `job/123/1763760000`, `job/123_4/1763760000`, with `/<attempt>` appended if that is not 0.
    pub fn entity_key(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for RunKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job/{}", self.job_id)?;
        if let Some(task) = self.task_id {
            write!(f, "_{task}")?;
        }
        write!(f, "/{}", self.submit_time)?;
        if self.attempt > 0 {
            write!(f, "/{}", self.attempt)?;
        }
        Ok(())
    }
}

/// A fact about a run that occurs at most once, or at most once per time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Slot {
    /// The run existed when capture started.
    Baseline,
    /// Entered the queue.
    Submitted,
    /// Got its allocation.
    Started,
    /// Ended: one slot for all ends, whatever the event type.
    End,
    /// Suspended at this time (Unix seconds).
    Suspended(i64),
    /// Resumed at this time (Unix seconds).
    Resumed(i64),
    /// Resized at this time (Unix seconds).
    Resized(i64),
    /// Part of an array's remainder was cancelled at this time (Unix seconds).
    TasksCancelled(i64),
    /// Accounting's usage became final.
    Updated,
    /// First cost estimate.
    CostEstimated,
    /// Final cost.
    CostFinalized,
}

impl Slot {
    /// The slot of events of a type; `None` if the slot has a time, or the type is not of a recorded fact.
    pub fn of_type(kind: EventType) -> Option<Self> {
        match kind {
            EventType::JobBaseline => Some(Self::Baseline),
            EventType::JobSubmitted => Some(Self::Submitted),
            EventType::JobStarted => Some(Self::Started),
            EventType::JobRequeued => Some(Self::End),
            EventType::JobUpdated => Some(Self::Updated),
            EventType::CostEstimated => Some(Self::CostEstimated),
            EventType::CostFinalized => Some(Self::CostFinalized),
            end if end.is_end() => Some(Self::End),
            _ => None,
        }
    }
}

impl IdSource {
    /// Source of a recorded fact's id. `None` where the event type determines the slot.
    pub fn recorded(kind: EventType, slot: Slot) -> Option<Self> {
        (Slot::of_type(kind) != Some(slot)).then(|| Self {
            slot: slot.to_string(),
            ..Self::default()
        })
    }

    /// Source of the id of the `n`th fact about the event's entity.
    pub fn sampled(n: u64) -> Option<Self> {
        Some(Self {
            n,
            ..Self::default()
        })
    }

    /// Source of the id of the `n`th fact that is counted for another entity than the event's.
    pub fn sampled_for(entity: &str, n: u64) -> Option<Self> {
        Some(Self {
            n,
            entity: entity.to_owned(),
            ..Self::default()
        })
    }

    /// Source of the id of a fact known from a doorbell alone.
    pub fn of_doorbell(doorbell: &str) -> Option<Self> {
        Self::derived(doorbell_id(doorbell)?, 0)
    }

    /// Source of the id of the `n`th fact computed from an event or a doorbell.
    pub fn derived(cause: impl fmt::Display, n: u64) -> Option<Self> {
        Some(Self {
            n,
            cause: cause.to_string(),
            ..Self::default()
        })
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Baseline => f.write_str("baseline"),
            Self::Submitted => f.write_str("submitted"),
            Self::Started => f.write_str("started"),
            Self::End => f.write_str("end"),
            Self::Suspended(at) => write!(f, "suspended@{at}"),
            Self::Resumed(at) => write!(f, "resumed@{at}"),
            Self::Resized(at) => write!(f, "resized@{at}"),
            Self::TasksCancelled(at) => write!(f, "tasks-cancelled@{at}"),
            Self::Updated => f.write_str("updated"),
            Self::CostEstimated => f.write_str("cost.estimated"),
            Self::CostFinalized => f.write_str("cost.finalized"),
        }
    }
}

/// A text that is not the entity key of a run.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a run (job/<job id>[_<task id>]/<submit time>[/<attempt>])")]
pub struct InvalidRunKey(String);

impl RunKey {
    /// Parses an entity key.
    ///
    /// # Errors
    /// If the text is not exactly what [`RunKey::entity_key`] writes.
    pub fn parse(cluster: &str, text: &str) -> Result<Self, InvalidRunKey> {
        let invalid = || InvalidRunKey(text.to_owned());
        let mut parts = text.split('/');
        if parts.next() != Some("job") {
            return Err(invalid());
        }
        let id = parts.next().ok_or_else(invalid)?;
        let (job, task) = match id.split_once('_') {
            Some((job, task)) => (job, Some(task.parse().map_err(|_| invalid())?)),
            None => (id, None),
        };
        let run = Self {
            cluster: cluster.to_owned(),
            job_id: job.parse().map_err(|_| invalid())?,
            task_id: task,
            submit_time: parts
                .next()
                .and_then(|time| time.parse().ok())
                .ok_or_else(invalid)?,
            attempt: parts
                .next()
                .map_or(Ok(0), str::parse)
                .map_err(|_| invalid())?,
        };
        // Leading zeros, signs and trailing parts would give two texts for one run.
        if run.entity_key() == text {
            Ok(run)
        } else {
            Err(invalid())
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::proto::mesh::event::v1::Entity;

    use super::*;

    prop_compose! {
        fn runs()(cluster in "[a-z]{1,8}", job_id: u32, task_id: Option<u32>, submit_time in 0i64..1 << 40, attempt in 0u32..3) -> RunKey {
            RunKey { cluster, job_id, task_id, submit_time, attempt }
        }
    }

    fn slots() -> impl Strategy<Value = Slot> {
        prop_oneof![
            Just(Slot::Baseline),
            Just(Slot::Submitted),
            Just(Slot::Started),
            Just(Slot::End),
            (0i64..1 << 40).prop_map(Slot::Suspended),
            (0i64..1 << 40).prop_map(Slot::Resumed),
            (0i64..1 << 40).prop_map(Slot::Resized),
            Just(Slot::CostEstimated),
        ]
    }

    proptest! {
        #[test]
        fn ids_are_valid_and_parse_back(run in runs(), slot in slots()) {
            let id = EventId::recorded(&run, slot);
            prop_assert_eq!(id.to_string().parse(), Ok(id));
        }

        #[test]
        fn different_facts_have_different_ids(a in runs(), b in runs(), s in slots(), t in slots()) {
            prop_assert_eq!(EventId::recorded(&a, s) == EventId::recorded(&b, t), a == b && s == t);
        }

        #[test]
        fn run_keys_parse_back(run in runs()) {
            prop_assert_eq!(RunKey::parse(&run.cluster, &run.entity_key()), Ok(run));
        }

        #[test]
        fn any_text_is_a_run_key_or_an_error(text in "\\PC{0,30}") {
            if let Ok(run) = RunKey::parse("c", &text) {
                prop_assert_eq!(run.entity_key(), text);
            }
        }
    }

    #[test]
    fn a_doorbell_is_one_fact_however_its_id_is_written() {
        let id = |text: &str| EventId::of_doorbell(text, EventType::UserLogin).unwrap();
        let doorbell = "01961234-5678-7abc-8def-0123456789ab";
        assert_eq!(id(doorbell), id(&doorbell.to_uppercase()));
        assert_eq!(id(doorbell).to_string().parse(), Ok(id(doorbell)));
        assert_ne!(id(doorbell), id("01961234-5678-7abc-8def-0123456789ac"));
    }

    #[test]
    fn counted_facts_differ_by_their_count() {
        let first = EventId::sampled("c", "node/n1", EventType::NodeDown, 1);
        assert_ne!(
            first,
            EventId::sampled("c", "node/n1", EventType::NodeDown, 2)
        );
        assert_ne!(EventId::derived(first, EventType::QueueExplained, 0), first);
    }

    #[test]
    fn an_event_contains_the_inputs_of_its_id() {
        let run = RunKey::parse("c", "job/7_3/1763760000/1").unwrap();
        let entity = |key: String| {
            Some(Entity {
                kind: "job".into(),
                key,
            })
        };
        let of = |kind: EventType, id_source, key| Event {
            cluster: "c".into(),
            r#type: kind.to_string(),
            entity: entity(key),
            id_source,
            ..Event::default()
        };
        for (kind, slot) in [
            (EventType::JobStarted, Slot::Started),
            (EventType::JobRequeued, Slot::End),
            (EventType::JobCancelled, Slot::End),
            (EventType::JobCancelled, Slot::TasksCancelled(9)),
            (EventType::JobSuspended, Slot::Suspended(9)),
            (EventType::CostFinalized, Slot::CostFinalized),
        ] {
            let event = of(kind, IdSource::recorded(kind, slot), run.entity_key());
            assert_eq!(
                EventId::recomputed(&event),
                Some(EventId::recorded(&run, slot))
            );
        }
        let kind = EventType::CaptureGapOpened;
        let event = of(kind, IdSource::sampled(4), "capture/x".into());
        let id = EventId::sampled("c", "capture/x", kind, 4);
        assert_eq!(EventId::recomputed(&event), Some(id));
        let event = of(kind, IdSource::sampled_for("other", 4), "capture/x".into());
        let other = EventId::sampled("c", "other", kind, 4);
        assert_eq!(EventId::recomputed(&event), Some(other));
        // The number of a derived fact may be 0.
        let kind = EventType::CaptureGapClosed;
        let event = of(kind, IdSource::derived(id, 0), "capture/x".into());
        assert_eq!(
            EventId::recomputed(&event),
            Some(EventId::derived(id, kind, 0))
        );
        // Events of an early version have no source.
        let event = of(EventType::NodeDown, None, "node/n1".into());
        assert_eq!(EventId::recomputed(&event), None);
    }
}
