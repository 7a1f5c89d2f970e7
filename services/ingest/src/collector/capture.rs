//! Publishes events about capture itself. They are sampled, so they are counted and stored before publication.

use std::collections::BTreeSet;

use chrono::Utc;
use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::{Event, EventType, sampled_capture_event};
use tracing::Span;

use super::{BLOCKING_WRITE_TIMEOUT, Collector, CollectorState};
use crate::adapters::capture_state::{CaptureState, LostState};
use crate::adapters::fenced::{BACKOFF, pause};
use crate::{Error, metrics};

impl Collector {
    /// Publishes an event about capture itself, and retries until it is stored. Releases the lock between attempts, so that an end reported
    /// by a hook need not wait.
    ///
    /// # Errors
    /// On shutdown, or if another ingest has taken over.
    pub async fn capture(&self, kind: EventType, capture_event: CaptureEvent) -> Result<(), Error> {
        let mut backoff = BACKOFF;
        loop {
            let mut state = self.state.lock().await;
            if self
                .capture_locked(&mut state, kind, capture_event.clone(), None)
                .await?
            {
                return Ok(());
            }
            drop(state);
            pause(&self.shutdown, &mut backoff).await?;
        }
    }

    /// Tries once to publish such an event, for a caller that holds the lock. With `shard`, the event is stored in one write with the runs
    /// of that shard. Returns whether it was published: an event that cannot be stored is not.
    pub(super) async fn capture_locked(
        &self,
        state: &mut CollectorState,
        kind: EventType,
        capture_event: CaptureEvent,
        shard: Option<u32>,
    ) -> Result<bool, Error> {
        state.must_not_be_ahead()?;
        state.ahead = true;
        let before = state.capture.clone();
        note_absence(&mut state.capture, kind, &capture_event);
        let event = self.counted(state, kind, capture_event);
        let capture = &state.capture_to_store();
        let CollectorState {
            store,
            run_store,
            waiting,
            dirty,
            ..
        } = &mut *state;
        let stored = if let Some(shard) = shard {
            let outbox = [(shard, event.clone())];
            let shards = BTreeSet::from([shard]);
            // The next write empties its outbox.
            dirty.insert(shard);
            store
                .write(
                    run_store,
                    |shard| waiting.of_shard(shard),
                    &shards,
                    &outbox,
                    BLOCKING_WRITE_TIMEOUT,
                )
                .await?
                && store
                    .write_capture_state(capture, &[], BLOCKING_WRITE_TIMEOUT)
                    .await?
        } else {
            let outbox = std::slice::from_ref(&event);
            store
                .write_capture_state(capture, outbox, BLOCKING_WRITE_TIMEOUT)
                .await?
        };
        if stored {
            metrics::fact(kind);
            let span = span(&event);
            self.bus
                .publish_all_traced(vec![(event, span)], &self.shutdown)
                .await?;
        } else {
            state.capture = before;
        }
        state.ahead = false;
        Ok(stored)
    }

    /// Builds an event about capture with the next number of its type and source.
    pub(super) fn counted(
        &self,
        state: &mut CollectorState,
        kind: EventType,
        capture_event: CaptureEvent,
    ) -> Event {
        let key = format!("capture/{}", capture_event.source);
        let from = state.capture.counts_from;
        let count = state
            .capture
            .counts
            .entry(counted_as(&kind.to_string(), &capture_event))
            .or_insert(from);
        *count += 1;
        let n = *count;
        sampled_capture_event(&self.cluster, kind, &key, n, Utc::now(), capture_event)
    }
}

/// Starts the trace of an event about capture.
pub(super) fn span(event: &Event) -> Span {
    tracing::info_span!(parent: None, "ingest.fact", event.id = event.id, event.r#type = event.r#type)
}

/// Records when a source became unavailable, in the same write as the event: the next leader publishes its return.
pub(super) fn note_absence(
    capture: &mut CaptureState,
    kind: EventType,
    capture_event: &CaptureEvent,
) {
    match (kind, &capture_event.from) {
        (EventType::CaptureSourceDown, Some(from)) => {
            capture
                .down_since
                .insert(capture_event.source.clone(), from.seconds);
        }
        (EventType::CaptureSourceUp, _) => {
            capture.down_since.remove(&capture_event.source);
        }
        _ => {}
    }
}

/// Updates the counts from outbox events that were stored with their run only: no other event may get their ids. A gap that was opened
/// with its run is closed by a later poll.
pub(super) fn count_outbox(capture: &mut CaptureState, outbox: &[Event]) {
    for event in outbox {
        if let Some(Payload::Capture(capture_event)) = &event.payload {
            if event.r#type == EventType::CaptureGapOpened.to_string() {
                let from = capture_event.from.as_ref().map_or(0, |from| from.seconds);
                let poll = capture.poll + 1;
                capture
                    .lost_state
                    .get_or_insert_with(|| LostState::first(from, poll));
            }
            let count = capture
                .counts
                .entry(counted_as(&event.r#type, capture_event))
                .or_insert(capture.counts_from);
            *count = event.run_seq.max(*count);
        }
    }
}

fn counted_as(kind: &str, capture_event: &CaptureEvent) -> String {
    format!("{kind} {}", capture_event.source)
}

#[cfg(test)]
mod tests {
    use mesh_events::timestamp;

    use super::*;

    #[test]
    fn an_event_on_its_way_is_counted_once() {
        let capture_event = CaptureEvent {
            source: "slurmctld".to_owned(),
            ..CaptureEvent::default()
        };
        let event = Event {
            r#type: EventType::CaptureGapClosed.to_string(),
            run_seq: 3,
            payload: Some(Payload::Capture(capture_event)),
            ..Event::default()
        };
        let key = "capture.gap_closed slurmctld";
        for (before, after) in [(None, 3), (Some(2), 3), (Some(3), 3), (Some(5), 5)] {
            let mut capture = CaptureState::default();
            capture.counts.extend(before.map(|n| (key.to_owned(), n)));
            count_outbox(&mut capture, std::slice::from_ref(&event));
            assert_eq!(capture.counts[key], after);
        }
    }

    #[test]
    fn a_gap_that_was_opened_with_its_run_is_closed() {
        let opened = Event {
            r#type: EventType::CaptureGapOpened.to_string(),
            payload: Some(Payload::Capture(CaptureEvent {
                source: "slurmctld".to_owned(),
                from: Some(timestamp(chrono::DateTime::UNIX_EPOCH)),
                ..CaptureEvent::default()
            })),
            ..Event::default()
        };
        let mut capture = CaptureState {
            poll: 7,
            ..CaptureState::default()
        };
        count_outbox(&mut capture, &[opened]);
        assert_eq!(capture.lost_state, Some(LostState::first(0, 8)));
    }

    #[test]
    fn an_absence_is_stored_until_its_end_is_published() {
        let mut capture = CaptureState::default();
        let of = |source: &str| CaptureEvent {
            source: source.to_owned(),
            from: Some(timestamp(chrono::DateTime::UNIX_EPOCH)),
            ..CaptureEvent::default()
        };
        note_absence(&mut capture, EventType::CaptureSourceDown, &of("slurmctld"));
        note_absence(&mut capture, EventType::CaptureSourceDown, &of("slurmdbd"));
        note_absence(&mut capture, EventType::CaptureGapClosed, &of("slurmctld"));
        let stored = serde_json::to_vec(&capture).unwrap();
        let mut capture: CaptureState = serde_json::from_slice(&stored).unwrap();
        assert_eq!(capture.down_since.len(), 2);
        note_absence(&mut capture, EventType::CaptureSourceUp, &of("slurmctld"));
        assert_eq!(capture.down_since.keys().collect::<Vec<_>>(), ["slurmdbd"]);
    }
}
