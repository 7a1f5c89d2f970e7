//! Derives facts from observations: compares them with the run store, requests lookups, and stores the result.

use std::collections::{BTreeSet, HashMap};

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::job::v1::ExitCode;
use mesh_events::{EventType, RunKey};

use super::deferred::DeferredObservation;
use super::gaps::{lost, owner_suffix};
use super::open_lookups::OpenLookup;
use super::outbox::{OutboxEvent, PreviousState};
use super::{Collector, CollectorState, FollowUpLookups, TracedObservation};
use crate::adapters::fenced::{BACKOFF, pause};
use crate::adapters::shards::{shard_of, shard_of_record};
use crate::domain::{
    self, Canceller, EndLookup, LookupTarget, Observation, ObservationContext, Record, Resolution,
    observe, payload, run_of,
};
use crate::envelope::{Cause, EventContext, other_run};
use crate::{Error, metrics};

/// An outbox must fit into a bucket value (1 MiB), together with the runs of its shard.
const MAX_OUTBOX_BYTES: usize = 256 * 1_024;
/// Maximum size of all outboxes together while they are in memory only.
const MAX_OUTBOXES_BYTES: usize = 16 << 20;

/// Facts of a batch of observations, before publication.
#[derive(Default)]
struct EventBatch {
    events: Vec<OutboxEvent>,
    /// What is given back if an event that must be stored before publication cannot be.
    before: PreviousState,
    /// Outbox size by shard.
    outbox_bytes: HashMap<u32, usize>,
    /// Total size of all outboxes.
    outboxes_bytes: usize,
    /// Size of the largest outbox.
    fullest_bytes: usize,
}

impl EventBatch {
    /// Whether the batch must be published before more is applied.
    const fn is_full(&self) -> bool {
        self.outboxes_bytes > MAX_OUTBOXES_BYTES || self.fullest_bytes > MAX_OUTBOX_BYTES
    }
}

impl Collector {
    /// Applies observations: decides, publishes, stores. Returns when JetStream has stored all facts.
    ///
    /// # Errors
    /// On shutdown, or if another ingest has taken over.
    pub async fn apply(
        &self,
        cause: &Cause,
        mut readings: Vec<TracedObservation>,
    ) -> Result<FollowUpLookups, Error> {
        let observations = readings.iter().map(|reading| &reading.observation);
        self.look_up_cancellers(observations).await;
        let mut state = self.state.lock().await;
        let observations = readings.iter_mut().map(|reading| &mut reading.observation);
        domain::mark_returned(observations, |leader| {
            let latest = state.run_store.runs_of(leader).next_back();
            latest.and_then(|(run, tracked)| (!tracked.over()).then_some(run.submit_time))
        });
        let now = Utc::now();
        let mut follow_ups = FollowUpLookups::default();
        let mut batch = EventBatch::default();
        let lost_state = state.capture.lost_state.clone();
        let read = observed_jobs(&readings);
        for reading in readings {
            let run = reading.observation.run.clone();
            let deferred = state.waiting.deferred.keys_of_job(&run);
            for earlier in state.take_deferred(&reading.observation) {
                batch.before.deferred.push(earlier.clone());
                let DeferredObservation { cause, at, reading } = earlier;
                self.apply_one(&mut state, &cause, at, reading, &mut follow_ups, &mut batch);
            }
            self.apply_one(&mut state, cause, now, reading, &mut follow_ups, &mut batch);
            state.store_deferred(&run, &deferred);
            if batch.is_full() {
                let full = std::mem::take(&mut batch);
                let not_stored = self.publish(&mut state, full.events, full.before).await?;
                follow_ups.not_stored.extend(not_stored);
            }
        }
        metrics::unproven(state.lookups.len() + state.task_lookups.len());
        let not_stored = self.publish(&mut state, batch.events, batch.before).await?;
        follow_ups.not_stored.extend(not_stored);
        if !follow_ups.not_stored.is_empty() {
            // Nothing else repeats these.
            state.capture.lost_state = lost_state;
        }
        if !state.waiting.unstored.is_empty() {
            // Before their doorbells are acknowledged.
            state.flush().await?;
            let unstored = state.waiting.unstored.intersection(&read);
            follow_ups.not_stored.extend(unstored);
        }
        Ok(follow_ups)
    }

    /// Looks up the names of users who cancelled jobs of others, so that events have them.
    pub async fn look_up_cancellers(&self, observations: impl IntoIterator<Item = &Observation>) {
        let other = |observation: &Observation| match &observation.cancelled_by {
            Some(by @ Canceller::Uid(uid)) if !by.is(&observation.owner) => Some(*uid),
            _ => None,
        };
        let uids: BTreeSet<u32> = observations.into_iter().filter_map(other).collect();
        for uid in uids {
            self.identities.actors().look_up(uid).await;
        }
    }

    /// Like [`Self::apply`], for observations that no poll repeats: applies them again until everything that follows from them is stored.
    ///
    /// # Errors
    /// On shutdown, or if another ingest has taken over.
    pub async fn apply_until_stored(
        &self,
        cause: &Cause,
        mut readings: Vec<TracedObservation>,
    ) -> Result<(), Error> {
        let mut backoff = BACKOFF;
        loop {
            let not_stored = self.apply(cause, readings.clone()).await?.not_stored;
            readings.retain(|reading| not_stored.contains(&reading.observation.raw_id));
            if readings.is_empty() {
                return Ok(());
            }
            pause(&self.shutdown, &mut backoff).await?;
        }
    }

    /// Context shared by all events of an observation.
    pub(super) fn event_context<'a>(
        &'a self,
        now: DateTime<Utc>,
        cause: &'a Cause,
    ) -> EventContext<'a> {
        EventContext {
            now,
            cause,
            over_rest: self.over_rest,
            late_after: self.late_after(),
            usage_after: self.usage_after(),
            identities: &self.identities,
        }
    }

    fn apply_one(
        &self,
        state: &mut CollectorState,
        cause: &Cause,
        now: DateTime<Utc>,
        reading: TracedObservation,
        follow_ups: &mut FollowUpLookups,
        batch: &mut EventBatch,
    ) {
        let TracedObservation {
            mut observation,
            digest,
            inferred,
            links,
        } = reading;
        let run = run_of(&state.run_store, &observation);
        if let Some((mut last, owner)) = state.last.get(&run) {
            let known = state.run_store.get(&run);
            if known.is_some_and(|known| known.never_started_as(&observation)) {
                payload::clear_allocation(&mut last);
            }
            // The controller's record is complete while the job runs. What other records leave open comes from the last payload.
            if observation.record != Record::Controller {
                payload::fill(&mut observation.job, &last);
                if observation.owner.user.is_empty() {
                    observation.owner = owner;
                }
            } else if observation.completing {
                let known = state.run_store.get(&run);
                let is_new = |at: &i64| known.is_none_or(|known| !known.rare.resized.contains(at));
                let is_outdated = observation.resizes.iter().any(is_new);
                payload::copy_allocation(&mut observation, &last, is_outdated);
            }
        }
        if let Some(tracked) = state.run_store.get(&run)
            && observation.end_kind().is_some()
        {
            // Also if the last payload is not stored any more.
            let code = tracked
                .exit_code
                .map(|(code, signal)| ExitCode { code, signal });
            observation.job.exit_code = observation.job.exit_code.or(code);
        }
        let poll = if let Cause::Poll(number) = cause {
            Some(*number)
        } else {
            None
        };
        if poll.is_some() || observation.record == Record::Accounting {
            state.note_id(&observation, now.timestamp());
        }
        let open = state.lookups.get(&observation.raw_id);
        let accounting = self.accounting_result(open);
        let context = ObservationContext {
            now: now.timestamp(),
            poll,
            // Jobs submitted since then are published in full, even by the very first poll.
            first_start: !state.capture.baseline_done
                && poll.is_some()
                && observation.run.submit_time < state.capture.capture_since,
            given_up: !matches!(
                self.settled(EndLookup::EarlierEnd, open),
                Resolution::Open { .. }
            ),
            inferred,
            restarted: state.waiting.restarted.get(&observation.raw_id)
                == Some(&observation.run.submit_time),
        };
        let decision = observe(&state.run_store, &observation, &context);
        if decision.follow_ups.contains(&LookupTarget::Accounting) {
            follow_ups.accounting.insert(observation.raw_id);
            state
                .lookups
                .entry(observation.raw_id)
                .or_insert_with(OpenLookup::now);
            state.store_lookup(observation.raw_id);
            // The array of a new task may be new, too.
            let is_stored = decision.changes.iter().any(|(changed, _)| *changed == run);
            if !is_stored && state.run_store.get(&run).is_none() {
                state.note_unpublished(&run, &observation);
            }
            if observation.record == Record::Controller && observation.has_run_before() {
                state.note_restarted(observation.raw_id, observation.run.submit_time);
            }
            if observation.record == Record::Controller
                && observation.waiting()
                && decision.changes.is_empty()
            {
                let reading = TracedObservation {
                    observation: observation.clone(),
                    digest,
                    inferred,
                    links: Vec::new(),
                };
                let deferred = DeferredObservation {
                    cause: cause.clone(),
                    at: now,
                    reading,
                };
                state.defer(&run, deferred, &self.config);
            }
        } else if !decision.changes.is_empty() && observation.end_kind().is_none() {
            state.close_lookup(observation.raw_id);
        }
        if decision.follow_ups.contains(&LookupTarget::Reread) {
            follow_ups.reread.insert(observation.raw_id);
        }
        let event_context = self.event_context(now, cause);
        let before = batch.events.len();
        for run in &decision.repeated {
            // In one write with the run.
            if let Some(gap) = self.record_restart(state, run, &observation) {
                batch.events.push(OutboxEvent::capture(run.clone(), gap));
            }
        }
        let started = |fact: &&domain::Fact| fact.kind == EventType::JobStarted;
        follow_ups.starts += decision.facts.iter().filter(started).count();
        for fact in &decision.facts {
            let own = fact.run == observation.run
                || (fact.run.attempt > 0 && fact.run.submit_time == observation.run.submit_time);
            let (job, owner) = if own {
                (observation.job.clone(), observation.owner.clone())
            } else {
                let last = state.last.get(&fact.run);
                last.unwrap_or_else(|| (other_run(fact, &observation), observation.owner.clone()))
            };
            batch.events.push(OutboxEvent::new(
                fact,
                event_context.event(fact, &observation, job, &owner),
                observation.raw_id,
                &links,
            ));
        }
        for run in &decision.lost {
            let message = format!(
                "{}{} has ended, its id was reused by another job, and {accounting}",
                run.entity_key(),
                owner_suffix(&state.known_owner(run).unwrap_or_default())
            );
            // In one write with the run, which has ended according to the run store.
            let gap = self.counted(state, EventType::CaptureGapClosed, lost(run, message));
            batch.events.push(OutboxEvent::capture(run.clone(), gap));
        }
        let new = &batch.events[before..];
        if new.iter().any(OutboxEvent::is_stored_first) {
            let bytes = new.iter().map(OutboxEvent::outbox_bytes).sum::<usize>();
            batch.outboxes_bytes += bytes;
            let shard = shard_of_record(observation.raw_id);
            let in_shard = batch.outbox_bytes.entry(shard).or_default();
            *in_shard += bytes;
            batch.fullest_bytes = batch.fullest_bytes.max(*in_shard);
        }
        for (changed, mut tracked) in decision.changes {
            batch
                .before
                .runs
                .entry(changed.clone())
                .or_insert_with(|| state.run_store.get(&changed).cloned());
            if let Some(digest) = digest.filter(|_| {
                changed.job_id == observation.run.job_id
                    && changed.task_id == observation.run.task_id
            }) {
                tracked.digest = digest;
            }
            tracked.ask_submitted &= self.config.accounting;
            if !tracked.is_array && !state.lookups.contains_key(&tracked.raw_id) {
                tracked.lookup = None;
            }
            if tracked.over() {
                state.close_lookup(tracked.raw_id);
            }
            if tracked.closed() {
                state.last.remove(&changed);
                state.task_lookups.remove(&changed);
            } else if changed == run
                && !tracked.hook_only
                && (tracked.ask_submitted
                    || !is_known_to_accounting_only(state, &run, &observation))
            {
                // Accounting has less detail than the last payload.
                state
                    .last
                    .insert(&changed, &observation.job, &observation.owner);
            }
            if state.waiting.restarted.get(&tracked.raw_id) == Some(&changed.submit_time) {
                state.waiting.restarted.remove(&tracked.raw_id);
            }
            state.dirty.insert(shard_of(&tracked));
            if self.config.accounting {
                state
                    .usage_backlog
                    .note(&changed, &tracked, now.timestamp(), &self.config);
            }
            if self.config.accounting {
                state.array_submission_backlog.note(&changed, &tracked);
            }
            state.run_store.put(changed, tracked);
        }
    }
}

/// Returns the jobs of some observations, by Slurm's job ids.
fn observed_jobs(readings: &[TracedObservation]) -> BTreeSet<u32> {
    let observations = readings.iter().map(|reading| &reading.observation);
    observations.map(|one| one.raw_id).collect()
}

/// Whether accounting has the end of a run of which no payload is stored, so that its usage report loses nothing.
fn is_known_to_accounting_only(
    state: &CollectorState,
    run: &RunKey,
    observation: &Observation,
) -> bool {
    let over = observation.record == Record::Accounting && observation.end_kind().is_some();
    over && !state.last.has(run)
}
