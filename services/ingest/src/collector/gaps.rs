//! Publishes facts that no source knows as `capture.gap_closed`, so that nothing is dropped silently.

use std::collections::BTreeSet;

use chrono::Utc;
use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use mesh_events::{EventType, RunKey, timestamp};

use super::open_lookups::OpenLookup;
use super::outbox::PreviousRunStates;
use super::{Collector, Core};
use crate::adapters::store::Store;
use crate::domain::{End, EndLookup, Owner, Resolution};
use crate::{Error, metrics};

/// State of a job that slurmctld does not have any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingJob {
    /// It must be looked up in accounting.
    Open,
    /// What became of its runs is published.
    Closed,
}

impl Collector {
    /// Handles a job that slurmctld does not have, or does not list. It is looked up until it is resolved as a gap.
    ///
    /// # Errors
    /// On shutdown, or if another ingest has taken over.
    pub async fn missing(&self, raw_id: u32) -> Result<MissingJob, Error> {
        let mut core = self.core.lock().await;
        core.must_not_be_ahead()?;
        let open = core.lookups.entry(raw_id).or_insert_with(OpenLookup::now);
        open.is_missing = true;
        if let Resolution::Open { .. } = self.settled(EndLookup::End, Some(open)) {
            core.store_question(raw_id);
            return Ok(MissingJob::Open);
        }
        let accounting = self.accounting_result(Some(open));
        let now = Utc::now().timestamp();
        for run in core.run_store.by_raw_id(raw_id) {
            let owner = core.owner_then(&run).unwrap_or_default();
            let Some(tracked) = core
                .run_store
                .get_mut(&run)
                .filter(|tracked| !tracked.over() && !tracked.is_array)
            else {
                continue;
            };
            let before = PreviousRunStates::from([(run.clone(), Some(tracked.clone()))]);
            tracked.end = Some(End {
                event: None,
                at: now,
                inferred: true,
            });
            tracked.lookup = None;
            let owner_suffix = owner_suffix(&owner);
            let run_key = run.entity_key();
            let message =
                format!("slurmctld no longer has {run_key}{owner_suffix}, and {accounting}");
            let gap = gap_event(message, how_it_ended(&run));
            if !self.gap(&mut core, &run, gap, before).await? {
                return Ok(MissingJob::Open);
            }
            note_lost(&run);
            core.last.remove(&run);
        }
        core.close_lookup(raw_id);
        Ok(MissingJob::Closed)
    }

    /// Publishes a gap in one write with the state of the run. Returns whether it was published; otherwise the state is rolled back.
    pub(super) async fn gap(
        &self,
        core: &mut Core,
        run: &RunKey,
        gap: CaptureEvent,
        before: PreviousRunStates,
    ) -> Result<bool, Error> {
        let shard = core.run_store.get(run).map(Store::shard_of);
        let emitted = self
            .capture_locked(core, EventType::CaptureGapClosed, gap, shard)
            .await?;
        if !emitted {
            let runs: BTreeSet<RunKey> = before.keys().cloned().collect();
            let runs = runs.iter().collect();
            core.take_back(&runs, &BTreeSet::new(), before.into(), &self.config);
        }
        Ok(emitted)
    }
}

/// Describes a fact that Slurm's records should have shown.
pub(super) fn gap_event(message: String, not_recoverable: String) -> CaptureEvent {
    CaptureEvent {
        source: "slurmctld".to_owned(),
        message,
        to: Some(timestamp(Utc::now())),
        not_recoverable,
        ..CaptureEvent::default()
    }
}

/// Describes a run that has ended without any record of its end.
pub(super) fn lost(run: &RunKey, message: String) -> CaptureEvent {
    note_lost(run);
    gap_event(message, how_it_ended(run))
}

/// ` of alice`, if the user is known.
pub(super) fn owner_suffix(owner: &Owner) -> String {
    if owner.user.is_empty() {
        String::new()
    } else {
        format!(" of {}", owner.user)
    }
}

fn note_lost(run: &RunKey) {
    metrics::lost();
    tracing::warn!(
        run = run.entity_key(),
        "run end unknown: not in any Slurm record"
    );
}

fn how_it_ended(run: &RunKey) -> String {
    format!("how and when {} ended", run.entity_key())
}
