//! Runs that were seen and that cannot be published until accounting answers: about the run before them, or about what they held before a
//! resize. slurmctld may purge such a run before that. Each is a question of its own then: accounting is asked until the run is published, or
//! becomes a gap.

mod stored;

use std::collections::BTreeSet;
use std::time::Duration;

use mesh_events::{EventType, RunKey};
use slurm_types::JobId;
use tokio::time::Instant;

use self::stored::UnpublishedRun;
pub(super) use self::stored::UnpublishedRuns;
use super::gaps::{lost, owner_suffix};
use super::open_lookups::WAIT_STORE_INTERVAL;
use super::{Collector, CollectorState};
use crate::Error;
use crate::adapters::shards::shard_of_record;
use crate::config::Config;
use crate::domain::{Observation, is_within_another};

/// Maximum number of gaps that one poll publishes.
const MAX_GAPS_PER_POLL: usize = 100;

impl CollectorState {
    /// Records a run that cannot be published yet.
    pub(super) fn note_unpublished(&mut self, run: &RunKey, observation: &Observation) {
        // A requeued job gets another submit time when its epilogs have run (22.05).
        if observation.in_flux() || self.waiting.unpublished.0.contains_key(run) {
            return;
        }
        let (raw_id, owner) = (observation.raw_id, observation.owner.clone());
        let noted = UnpublishedRun::new(raw_id, owner, Duration::ZERO);
        self.waiting.unpublished.0.insert(run.clone(), noted);
        self.dirty.insert(shard_of_record(raw_id));
    }

    /// Returns the jobs of the runs that are not published yet, by Slurm's job id.
    pub fn unpublished_jobs(&self) -> BTreeSet<u32> {
        let runs = self.waiting.unpublished.0.values();
        runs.map(|run| run.raw_id).collect()
    }

    /// Updates a run after a poll. Returns what is to be done.
    fn next_action(
        &mut self,
        run: &RunKey,
        is_shown: bool,
        within: Duration,
        config: &Config,
    ) -> UnpublishedAction {
        let is_published =
            self.run_store.get(run).is_some() || is_within_another(&self.run_store, run);
        let Some(known) = self.waiting.unpublished.0.get_mut(run) else {
            return UnpublishedAction::Wait;
        };
        let (now, raw_id) = (Instant::now(), known.raw_id);
        if is_published {
            self.waiting.unpublished.0.remove(run);
            self.dirty.insert(shard_of_record(raw_id));
            return UnpublishedAction::Wait;
        }
        if is_shown {
            // Polls publish it once they can.
            if known.wait.has_answered() {
                *known = UnpublishedRun::new(raw_id, known.owner.clone(), Duration::ZERO);
                self.dirty.insert(shard_of_record(raw_id));
            }
            return UnpublishedAction::Wait;
        }
        if known.wait.is_over(within, now, config) {
            return UnpublishedAction::GiveUp;
        }
        let waited = known.wait.waited(now);
        if waited.saturating_sub(known.stored) >= WAIT_STORE_INTERVAL {
            known.stored = waited;
            self.dirty.insert(shard_of_record(raw_id));
        }
        UnpublishedAction::Ask(raw_id)
    }
}

/// What is to be done about a run.
enum UnpublishedAction {
    Wait,
    /// Ask accounting about this job.
    Ask(u32),
    GiveUp,
}

impl Collector {
    /// Handles the runs that are not published yet after a poll that has shown these of their jobs, by Slurm's job id and submit time. Returns
    /// the jobs that accounting is to be asked about.
    ///
    /// # Errors
    /// On shutdown, or if another ingest has taken over.
    pub async fn unpublished(
        &self,
        shown: &BTreeSet<(u32, i64)>,
    ) -> Result<BTreeSet<JobId>, Error> {
        let mut state = self.state.lock().await;
        state.must_not_be_ahead()?;
        // Longer than the lookup of the run before, which may make it possible to publish this one.
        let within = self.config.resolution_timeout + self.config.missing_record_timeout;
        let runs = state.waiting.unpublished.0.iter();
        let runs: Vec<(RunKey, u32)> = runs.map(|(run, one)| (run.clone(), one.raw_id)).collect();
        let (mut ask, mut gaps) = (BTreeSet::new(), 0);
        for (run, raw_id) in runs {
            let is_shown = shown.contains(&(raw_id, run.submit_time));
            match state.next_action(&run, is_shown, within, &self.config) {
                UnpublishedAction::Wait => {}
                UnpublishedAction::Ask(raw_id) => ask.extend(JobId::new(raw_id)),
                UnpublishedAction::GiveUp if gaps >= MAX_GAPS_PER_POLL => {}
                UnpublishedAction::GiveUp => {
                    match self.give_up_unpublished(&mut state, &run).await? {
                        true => gaps += 1,
                        // Each attempt may take its time limit.
                        false => gaps = MAX_GAPS_PER_POLL,
                    }
                }
            }
        }
        Ok(ask)
    }

    /// Publishes that a run is lost. Returns whether that was stored.
    async fn give_up_unpublished(
        &self,
        state: &mut CollectorState,
        run: &RunKey,
    ) -> Result<bool, Error> {
        let Some(known) = state.waiting.unpublished.0.remove(run) else {
            return Ok(true);
        };
        let accounting = match self.config.accounting {
            true => "accounting does not have its end",
            false => "accounting is disabled (ingest.accounting)",
        };
        let message = format!(
            "slurmctld no longer has {}{}, which could not be published until accounting answered, and {accounting}",
            run.entity_key(),
            owner_suffix(&known.owner)
        );
        let (gap, shard) = (lost(run, message), shard_of_record(known.raw_id));
        // In one write with what waits.
        let kind = EventType::CaptureGapClosed;
        let is_stored = self.capture_locked(state, kind, gap, Some(shard)).await?;
        if !is_stored {
            state.waiting.unpublished.0.insert(run.clone(), known);
        }
        Ok(is_stored)
    }
}
