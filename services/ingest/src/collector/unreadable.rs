//! Stored state that could not be read: foreign bytes in a key of the bucket. The key is written again, and capture goes on.
//!
//! The bus still has the events of the last days. The states of the lost runs are rebuilt from them, with their counters, so that no id is
//! used for another fact. The rest is a gap.

use std::time::Duration;

use chrono::{DateTime, Utc};
use mesh_bus::{Bus, StoredMessages};
use mesh_events::catalogue::SLURM_EVENTS;
use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::{Event, subject, unreadable_state};
use mesh_runtime::{Condition, error_chain};
use tokio_util::sync::CancellationToken;

use super::capture::note_absence;
use crate::Error;
use crate::adapters::capture_state::CaptureState;
use crate::adapters::fenced::{BACKOFF, pause};
use crate::adapters::shards::{SHARDS, shard_of_record};
use crate::adapters::store::UnreadableValues;
use crate::domain::{RunStore, rebuild};

/// What no bus shows of lost runs.
const LOST_OF_RUNS: &str = "facts about these jobs that were stored but not published yet, changes of their hold, reason or tasks at that time, and the end of those that no record of Slurm has any more";
/// What no bus shows of the cluster entry.
const LOST_OF_CLUSTER: &str = "jobs that began and ended before the newest known job time and were not read yet, and ids that still had to be looked up";

/// Restores what was lost from the bus.
pub(super) struct Rebuilder<'a> {
    pub(super) bus: &'a Bus,
    pub(super) cluster: &'a str,
    pub(super) unreadable: &'a UnreadableValues,
    pub(super) retention: Duration,
    pub(super) condition: &'a Condition,
    pub(super) shutdown: &'a CancellationToken,
}

impl Rebuilder<'_> {
    /// Rebuilds the lost runs, and the cluster entry if that is lost, which is returned. Retries until success: a number that was used would
    /// be used again.
    ///
    /// # Errors
    /// On shutdown.
    pub(super) async fn rebuild(
        &self,
        run_store: &mut RunStore,
        recovered: &mut u64,
    ) -> Result<Option<CaptureState>, Error> {
        let mut backoff = BACKOFF;
        loop {
            let rebuilt = async {
                self.runs(run_store, recovered).await?;
                self.capture_state(run_store).await
            };
            let error = match rebuilt.await {
                Ok(capture) => {
                    self.condition.ok();
                    return Ok(capture);
                }
                Err(error) => error_chain(&error),
            };
            tracing::warn!(error, "published events not read, retrying");
            self.condition
                .fail(format!("state is rebuilt from published events: {error}"));
            pause(self.shutdown, &mut backoff).await?;
        }
    }

    fn stored(&self, category: &str) -> StoredMessages {
        let subject = format!("slurm.{}.{category}.>", subject::token(self.cluster));
        self.bus.stored_messages(SLURM_EVENTS, subject)
    }

    async fn runs(
        &self,
        run_store: &mut RunStore,
        recovered: &mut u64,
    ) -> Result<(), mesh_bus::Error> {
        if self.unreadable.shards.is_empty() {
            return Ok(());
        }
        let retention = i64::try_from(self.retention.as_secs()).unwrap_or(i64::MAX);
        let oldest = Utc::now().timestamp().saturating_sub(retention);
        let is_lost = |event: &Event| {
            let shard = event.job().map(|job| shard_of_record(job.job_id));
            shard.is_some_and(|shard| self.unreadable.shards.contains(&shard))
        };
        let mut stored = self.stored("job");
        loop {
            let messages = stored.next().await?;
            if messages.is_empty() {
                return Ok(());
            }
            for message in messages {
                let Ok(event) = Event::from_bytes(&message.body) else {
                    continue;
                };
                if !is_lost(&event) {
                    continue;
                }
                let published = message.published.timestamp();
                if let Some((run, state)) = rebuild(run_store, &event, published) {
                    *recovered += 1;
                    // As if it had never been lost.
                    match state.closed() && published < oldest {
                        true => drop(run_store.remove(&run)),
                        false => run_store.put(run, state),
                    }
                }
            }
        }
    }

    async fn capture_state(
        &self,
        run_store: &RunStore,
    ) -> Result<Option<CaptureState>, mesh_bus::Error> {
        if !self.unreadable.capture_state {
            return Ok(None);
        }
        let now = Utc::now().timestamp();
        let newest = run_store.newest_time(now).unwrap_or(now);
        let candidates = run_store
            .iter()
            .filter_map(|(_, run)| run.candidate.as_ref());
        let oldest = run_store.iter().map(|(run, _)| run.submit_time).min();
        let mut capture = CaptureState {
            capture_since: oldest.unwrap_or(now),
            watermark: newest,
            poll: candidates.map(|seen| seen.poll).max().unwrap_or(0),
            baseline_done: true,
            counts_from: u64::try_from(now).unwrap_or_default(),
            ..CaptureState::default()
        };
        let mut stored = self.stored("capture");
        loop {
            let messages = stored.next().await?;
            if messages.is_empty() {
                return Ok(Some(capture));
            }
            for message in messages {
                if let Ok(event) = Event::from_bytes(&message.body)
                    && let Ok(kind) = event.kind()
                    && let Some(Payload::Capture(capture_event)) = &event.payload
                {
                    note_absence(&mut capture, kind, capture_event);
                }
            }
        }
    }
}

impl UnreadableValues {
    /// Whether everything could be read.
    pub fn is_empty(&self) -> bool {
        self.shards.is_empty() && !self.capture_state
    }

    /// Describes what was lost of the jobs.
    pub(super) fn gap(&self, since: i64, recovered: u64) -> CaptureEvent {
        let shards = self.shards.len();
        let mut parts = Vec::new();
        if shards > 0 {
            parts.push((
                format!("of jobs ({shards} of {} keys)", SHARDS),
                LOST_OF_RUNS,
            ));
        }
        if self.capture_state {
            parts.push(("of the cluster".to_owned(), LOST_OF_CLUSTER));
        }
        let (parts, lost): (Vec<String>, Vec<&str>) = parts.into_iter().unzip();
        unreadable_state(
            &parts.join(" and "),
            &lost.join("; "),
            DateTime::from_timestamp(since, 0),
            Utc::now(),
            recovered,
        )
    }
}
