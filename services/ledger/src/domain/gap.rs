//! Gaps: messages lost from a stream before the ledger received them, and the events that report them.

use std::collections::BTreeSet;

use chrono::{DateTime, SecondsFormat, Utc};
use mesh_events::catalogue::SLURM_EVENTS;
use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use mesh_events::proto::mesh::event::v1::{Correlation, IdSource};
use mesh_events::{Event, EventId, EventType, capture_event, timestamp};

/// A stored gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Number of the gap, from 1.
    pub number: i64,
    /// Name of the stream.
    pub stream: String,
    /// Creation time of the stream, in microseconds since 1970.
    pub created_at: i64,
    /// Sequence of the first lost message.
    pub first_sequence: i64,
    /// Sequence of the last lost message. It is smaller than the first if the number is unknown
    /// because the stream was recreated.
    pub last_sequence: i64,
    /// Lower bound of the time at which the stream stored the lost messages, in microseconds
    /// since 1970.
    pub from_at: i64,
    /// Upper bound of that time, in microseconds since 1970.
    pub to_at: i64,
    /// Time of detection, in microseconds since 1970.
    pub found_at: i64,
}

impl Gap {
    fn id(&self, cluster: &str) -> EventId {
        let (key, n) = self.counted();
        EventId::sampled(cluster, &key, EventType::CaptureGapOpened, n)
    }

    /// Returns scope and number of the gap.
    fn counted(&self) -> (String, u64) {
        let key = format!("capture/stream/{}/{}", self.stream, self.created_at);
        (key, self.first_sequence.unsigned_abs())
    }

    /// Returns the deterministic ids of the opening and the closing event.
    pub fn event_ids(&self, cluster: &str) -> [String; 2] {
        let opened = self.id(cluster);
        let closed = EventId::derived(opened, EventType::CaptureGapClosed, 0);
        [opened, closed].map(|id| id.to_string())
    }

    /// True if ingest can recover the events from Slurm's accounting.
    pub fn is_recoverable(&self) -> bool {
        self.stream == SLURM_EVENTS
    }

    /// Returns the number of lost messages, or `None` if unknown.
    pub fn messages(&self) -> Option<u64> {
        let count = self.last_sequence - self.first_sequence + 1;
        u64::try_from(count).ok().filter(|count| *count > 0)
    }

    /// Describes an open gap for the operator.
    pub fn still_open(&self, clusters: &BTreeSet<String>) -> String {
        let clusters: Vec<&str> = clusters.iter().map(String::as_str).collect();
        let time = |micros| {
            DateTime::from_timestamp_micros(micros)
                .map_or_else(String::new, |time: DateTime<Utc>| {
                    time.to_rfc3339_opts(SecondsFormat::Secs, true)
                })
        };
        let resolver = match self.is_recoverable() {
            true => "ingest to republish what Slurm has recorded",
            false => "the ledger to record the loss",
        };
        format!(
            "{} of the stream {}, stored between {} and {}, are missing since {}; waiting for {resolver} (capture.gap_closed) of {}",
            self.count(),
            self.stream,
            time(self.from_at),
            time(self.to_at),
            time(self.found_at),
            clusters.join(", ")
        )
    }

    fn count(&self) -> String {
        match self.messages() {
            Some(count) => format!(
                "{count} messages ({} to {})",
                self.first_sequence, self.last_sequence
            ),
            None => format!("messages from {} on", self.first_sequence),
        }
    }

    /// Returns the event `capture.gap_opened` of a cluster.
    pub fn opened(&self, cluster: &str) -> Event {
        let message = format!(
            "{} of the stream {} were deleted before the ledger stored them",
            self.count(),
            self.stream
        );
        self.event(
            cluster,
            EventType::CaptureGapOpened,
            CaptureEvent {
                message,
                ..self.payload()
            },
        )
    }

    /// Returns the event `capture.gap_closed` of an unrecoverable gap.
    pub fn given_up(&self, cluster: &str) -> Event {
        let message = format!("{} of the stream {} are lost", self.count(), self.stream);
        let event = self.event(
            cluster,
            EventType::CaptureGapClosed,
            CaptureEvent {
                message,
                not_recoverable: "audit entries: deliveries, reads, keys, retention".to_owned(),
                ..self.payload()
            },
        );
        let [opened, closed] = self.event_ids(cluster);
        Event {
            id_source: IdSource::derived(&opened, 0),
            id: closed,
            correlation: Some(Correlation {
                event_ids: vec![opened],
                entities: Vec::new(),
            }),
            ..event
        }
    }

    fn payload(&self) -> CaptureEvent {
        let time = |micros| DateTime::from_timestamp_micros(micros).map(timestamp);
        CaptureEvent {
            source: "stream".to_owned(),
            from: time(self.from_at),
            to: time(self.to_at),
            ..CaptureEvent::default()
        }
    }

    fn event(&self, cluster: &str, kind: EventType, payload: CaptureEvent) -> Event {
        let found_at = DateTime::from_timestamp_micros(self.found_at).unwrap_or_default();
        let (counted, n) = self.counted();
        Event {
            id: self.id(cluster).to_string(),
            id_source: IdSource::sampled_for(&counted, n),
            source_detail: "ledger".to_owned(),
            ..capture_event(cluster, kind, "capture/stream", found_at, payload)
        }
    }
}

#[cfg(test)]
mod tests {
    use mesh_events::proto::mesh::event::v1::event::Payload;

    use super::*;

    #[test]
    fn event_ids_of_a_gap_are_deterministic() {
        let gap = Gap {
            number: 1,
            stream: SLURM_EVENTS.to_owned(),
            created_at: 1_763_760_000_000_000,
            first_sequence: 11,
            last_sequence: 20,
            from_at: 1_763_760_000_000_000,
            to_at: 1_763_760_060_000_000,
            found_at: 1_763_760_070_000_000,
        };
        let [opened, closed] = gap.event_ids("c");
        assert_eq!(gap.opened("c").id, opened);
        assert_eq!(gap.given_up("c").id, closed);
        assert_ne!(opened, gap.opened("d").id);
        let Some(Payload::Capture(capture_event)) = gap.opened("c").payload else {
            panic!("an event of capture")
        };
        assert_eq!(
            capture_event.message,
            "10 messages (11 to 20) of the stream SLURM_EVENTS were deleted before the ledger stored them"
        );
        let unknown = Gap {
            last_sequence: 10,
            ..gap
        };
        assert!(unknown.count().contains("from 11 on"));
    }
}
