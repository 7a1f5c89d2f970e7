//! Fills gaps of a ledger: messages that were gone from the public bus before the ledger read them. What Slurm has recorded of that time is
//! republished.
//!
//! The ledger's `capture.gap_opened` is acknowledged only after everything is stored again, so the next leader repeats the work if this one
//! dies. Event ids stay the same, and the ledger stores the events it lacks. Message ids differ, because JetStream discards duplicates of a
//! message id for ten minutes, even if it has lost the first message.

use chrono::{DateTime, Utc};
use mesh_bus::{Bus, Disposition, Handler, Message};
use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{Correlation, IdSource};
use mesh_events::{Event, EventId, EventType, RunKey, capture_event};

use crate::Error;
use crate::accounting::catch_up::{CatchUp, MAX_IDS_PER_LOOKUP, MAX_ROWS_PER_BATCH};
use crate::collector::{RepublishWindow, names, without_usage};
use crate::domain::{Owner, RunStore, fold, parts_of_jobs, usages};

/// Seconds between a fact and its latest publication that a gap considers. Facts published later are not searched for.
const PUBLISH_MARGIN_SECS: i64 = 3_600;
/// Delay after an error.
const RETRY_DELAY: std::time::Duration = std::time::Duration::from_secs(10);

/// Delay while accounting has not yet recorded all runs that have just ended.
const SHORT_RETRY_DELAY: std::time::Duration = std::time::Duration::from_secs(2);

/// Result of one attempt to fill a gap.
enum GapFillOutcome {
    Done,
    /// Accounting lacks ends that were published.
    NotYet,
}

/// Handles the ledger's `capture.gap_opened` events.
pub struct GapFiller {
    /// Reads accounting; holds the run store.
    pub catch_up: CatchUp,
    /// Bus on which the facts are republished.
    pub bus: Bus,
}

impl Handler for GapFiller {
    async fn handle(&self, message: &Message) -> Disposition {
        let event = match message.event() {
            Ok(event) => event,
            Err(error) => {
                return Disposition::DeadLetter {
                    reason: error.to_string(),
                };
            }
        };
        let (Some(Payload::Capture(gap_event)), Ok(opened)) = (&event.payload, event.id.parse())
        else {
            return Disposition::DeadLetter {
                reason: "not a gap event".to_owned(),
            };
        };
        match self.fill(&event, gap_event, opened).await {
            Ok(GapFillOutcome::Done) => Disposition::Ack,
            Ok(GapFillOutcome::NotYet) => Disposition::Nak {
                after: SHORT_RETRY_DELAY,
            },
            Err(error) => {
                if !error.is_shutdown() {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        event.id = event.id,
                        "gap fill failed, retrying"
                    );
                }
                Disposition::Nak { after: RETRY_DELAY }
            }
        }
    }
}

impl GapFiller {
    async fn fill(
        &self,
        event: &Event,
        gap_event: &CaptureEvent,
        opened: EventId,
    ) -> Result<GapFillOutcome, Error> {
        let seconds =
            |time: &Option<pbjson_types::Timestamp>| time.as_ref().map(|time| time.seconds);
        let now = Utc::now();
        let from = seconds(&gap_event.from).unwrap_or_default() - PUBLISH_MARGIN_SECS;
        let window = RepublishWindow {
            from: from.max(self.catch_up.collector.state().await.capture.capture_since),
            // The gap may end within this second.
            to: seconds(&gap_event.to).unwrap_or(now.timestamp()) + 1,
        };
        let max_wait = self.catch_up.collector.config.resolution_timeout;
        let max_wait = i64::try_from(max_wait.as_secs()).unwrap_or(i64::MAX / 2);
        let gap = event.id.as_str();
        let (mut filled, mut unknown_ends) = (0, Vec::new());
        let accounting = self.catch_up.collector.config.accounting;
        if accounting {
            let mut run_store = RunStore::default();
            let mut parts = self.catch_up.parts(window.from, window.to);
            let collector = &self.catch_up.collector;
            while let Some(rows) = parts.next().await? {
                for some in parts_of_jobs(&rows, MAX_ROWS_PER_BATCH) {
                    let runs = fold(&collector.cluster, some);
                    let runs = self.catch_up.with_codes(runs, true).await?;
                    collector.look_up_cancellers(&runs).await;
                    let found = collector.republish_recorded(&mut run_store, &runs, window);
                    let found = found.await;
                    filled += self.republish(&found.events, gap).await?;
                    unknown_ends.extend(found.unknown_ends);
                }
            }
            let mut ids = collector.ended_but_not_in(&run_store, window).await;
            ids.extend(collector.alive_but_not_in(&run_store, window).await);
            for some in ids.chunks(MAX_IDS_PER_LOOKUP) {
                let rows = self.catch_up.rows_of(some).await?;
                let runs = fold(&collector.cluster, &rows);
                let runs = self.catch_up.with_codes(runs, true).await?;
                collector.look_up_cancellers(&runs).await;
                let found = collector.republish_recorded(&mut run_store, &runs, window);
                let found = found.await;
                filled += self.republish(&found.events, gap).await?;
                unknown_ends.extend(found.unknown_ends);
            }
            let missing = collector.ended_but_not_in(&run_store, window).await.len();
            if missing > 0 && now.timestamp() < window.to + max_wait {
                return Ok(GapFillOutcome::NotYet);
            }
            for some in without_usage(&run_store, window).chunks(MAX_IDS_PER_LOOKUP) {
                let used = usages(&collector.cluster, &self.catch_up.usage_of(some).await?);
                let runs = collector.without_published(used).await;
                let found = collector.republish_recorded(&mut run_store, &runs, window);
                let found = found.await;
                filled += self.republish(&found.events, gap).await?;
                unknown_ends.extend(found.unknown_ends);
            }
        }
        let living = self.catch_up.collector.republish_running(window).await;
        filled += self.republish(&living, gap).await?;
        tracing::info!(filled, event.id = gap, "gap filled");
        let lost = lost(accounting, &unknown_ends);
        let closed = closed(event, gap_event, opened, filled, lost, now);
        self.bus.publish(&closed).await?;
        Ok(GapFillOutcome::Done)
    }

    async fn republish(&self, events: &[Event], gap: &str) -> Result<u64, Error> {
        for event in events {
            if self.catch_up.shutdown.is_cancelled() {
                return Err(Error::Stopped);
            }
            self.bus.republish(event, gap).await?;
        }
        Ok(events.len() as u64)
    }
}

/// Describes what is not republished.
fn lost(accounting: bool, unknown_ends: &[(RunKey, Owner)]) -> String {
    let lost = "facts that Slurm does not record (reasons, holds, limits, suspensions, nodes, access, logins), facts published more than an hour after they happened, and events derived by other services (costs, explanations)";
    if !accounting {
        return format!(
            "events of jobs that ended or were not read since ingest started, because accounting is disabled (ingest.accounting); {lost}"
        );
    }
    if unknown_ends.is_empty() {
        return lost.to_owned();
    }
    format!(
        "how {} ended, which a requeue has overwritten in accounting; {lost}",
        names(unknown_ends)
    )
}

/// Builds `capture.gap_closed`. Its id is derived from that of the opening event, so publishing it twice has no effect.
fn closed(
    event: &Event,
    gap_event: &CaptureEvent,
    opened: EventId,
    filled: u64,
    not_recoverable: String,
    now: DateTime<Utc>,
) -> Event {
    let gap_closed = CaptureEvent {
        message: format!(
            "republished what Slurm has recorded: {filled} facts; those that were lost are stored now"
        ),
        recovered: filled,
        not_recoverable,
        ..gap_event.clone()
    };
    let kind = EventType::CaptureGapClosed;
    let closed = capture_event(&event.cluster, kind, "capture/stream", now, gap_closed);
    Event {
        id: EventId::derived(opened, kind, 0).to_string(),
        id_source: IdSource::derived(opened, 0),
        correlation: Some(Correlation {
            event_ids: vec![event.id.clone()],
            entities: Vec::new(),
        }),
        entity: event.entity.clone().or(closed.entity),
        ..closed
    }
}
