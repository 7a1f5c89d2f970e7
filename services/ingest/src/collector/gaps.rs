//! Publishes facts that no source knows as `capture.gap_closed`, so that nothing is dropped silently.

use std::collections::BTreeSet;

use chrono::Utc;
use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use mesh_events::{EventType, RunKey, timestamp};

use super::open_lookups::OpenLookup;
use super::outbox::PreviousRunStates;
use super::{Collector, CollectorState};
use crate::adapters::shards::shard_of;
use crate::domain::{End, EndLookup, Owner, Resolution};
use crate::{Error, metrics};

/// Maximum number of runs named in a message.
const MAX_NAMED_RUNS: usize = 5;
/// Maximum number of owners of further runs named in a message.
const MAX_NAMED_USERS: usize = 20;

/// State of a job that slurmctld does not have any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MissingJob {
    /// It must be looked up in accounting.
    Open,
    /// What became of its runs is published.
    Closed,
    /// What became of them cannot be stored now, and is published later.
    NotStored,
}

impl Collector {
    /// Handles a job that slurmctld does not have, or does not list. It is looked up until it is resolved as a gap.
    ///
    /// # Errors
    /// On shutdown, or if another ingest has taken over.
    pub async fn missing(&self, raw_id: u32) -> Result<MissingJob, Error> {
        let mut state = self.state.lock().await;
        state.must_not_be_ahead()?;
        let open = state.lookups.entry(raw_id).or_insert_with(OpenLookup::now);
        open.is_missing = true;
        if let Resolution::Open { .. } = self.settled(EndLookup::End, Some(open)) {
            state.store_lookup(raw_id);
            return Ok(MissingJob::Open);
        }
        let accounting = self.accounting_result(Some(open));
        let now = Utc::now().timestamp();
        for run in state.run_store.by_raw_id(raw_id) {
            let owner = state.known_owner(&run).unwrap_or_default();
            let Some(tracked) = state
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
            if !self.gap(&mut state, &run, gap, before).await? {
                return Ok(MissingJob::NotStored);
            }
            note_lost(&run);
            state.last.remove(&run);
        }
        state.close_lookup(raw_id);
        Ok(MissingJob::Closed)
    }

    /// Publishes a gap in one write with the state of the run. Returns whether it was published; otherwise the state is rolled back.
    pub(super) async fn gap(
        &self,
        state: &mut CollectorState,
        run: &RunKey,
        gap: CaptureEvent,
        before: PreviousRunStates,
    ) -> Result<bool, Error> {
        let shard = state.run_store.get(run).map(shard_of);
        let emitted = self
            .capture_locked(state, EventType::CaptureGapClosed, gap, shard)
            .await?;
        if !emitted {
            let runs: BTreeSet<RunKey> = before.keys().cloned().collect();
            let runs = runs.iter().collect();
            state.roll_back(&runs, &BTreeSet::new(), before.into(), &self.config);
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

/// Names some runs with their owners, and the owners of the others.
pub(crate) fn names(runs: &[(RunKey, Owner)]) -> String {
    let named = runs.iter().take(MAX_NAMED_RUNS);
    let named = named.map(|(run, owner)| run.entity_key() + &owner_suffix(owner));
    let others = runs.iter().skip(MAX_NAMED_RUNS);
    let users: BTreeSet<&str> = others
        .map(|(_, owner)| owner.user.as_str())
        .filter(|user| !user.is_empty())
        .collect();
    let more = more(runs).map(|more| more + &of_users(&users));
    named.chain(more).collect::<Vec<_>>().join(", ")
}

/// Names some runs.
pub(super) fn keys(runs: &[(RunKey, Owner)]) -> String {
    let named = runs.iter().take(MAX_NAMED_RUNS);
    let named = named.map(|(run, _)| run.entity_key());
    named.chain(more(runs)).collect::<Vec<_>>().join(", ")
}

fn more(runs: &[(RunKey, Owner)]) -> Option<String> {
    let others = runs.len().saturating_sub(MAX_NAMED_RUNS);
    (others > 0).then(|| format!("{others} more"))
}

/// ` of alice, bob and 3 other users`.
fn of_users(users: &BTreeSet<&str>) -> String {
    let named: Vec<&str> = users.iter().copied().take(MAX_NAMED_USERS).collect();
    match users.len() - named.len() {
        _ if named.is_empty() => String::new(),
        0 => format!(" of {}", named.join(", ")),
        others => format!(" of {} and {others} other users", named.join(", ")),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_names_few_runs_and_the_owners_of_the_others() {
        let runs = |users: &[&str]| -> Vec<(RunKey, Owner)> {
            let runs = (1..).zip(users).map(|(job_id, user)| {
                let run = RunKey {
                    cluster: "c".to_owned(),
                    job_id,
                    task_id: None,
                    submit_time: 100,
                    attempt: 0,
                };
                let owner = Owner {
                    user: (*user).to_owned(),
                    ..Owner::default()
                };
                (run, owner)
            });
            runs.collect()
        };
        let few = runs(&["alice", ""]);
        let key = |n: usize| few[n].0.entity_key();
        assert_eq!(names(&few), format!("{} of alice, {}", key(0), key(1)));
        assert_eq!(keys(&few), format!("{}, {}", key(0), key(1)));
        let more = runs(&[
            "alice", "bob", "bob", "bob", "bob", "dave", "carol", "dave", "",
        ]);
        assert!(names(&more).ends_with(" of bob, 4 more of carol, dave"));
        assert!(keys(&more).ends_with(", 4 more"));
        let users: Vec<String> = (100..130).map(|n| format!("u{n}")).collect();
        let many = runs(&users.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(names(&many).ends_with(", u124 and 5 other users"));
    }
}
