//! Derives the new facts of one run from its stored state and an observation.
//!
//! Facts of one observation have a fixed order: submitted, released, started, suspended, resumed, resized, end. A late or repeated
//! observation adds nothing, because its facts are already published.

use mesh_events::proto::mesh::event::v1::IdSource;
use mesh_events::{EventId, EventType, RunKey, Slot};
use slurm_types::JobBaseState;

use super::observation::{AllocationPart, EntityKind, Observation, Record};
use super::observe::ObservationContext;
use super::pending_reason;
use super::run_state::{End, RunState};
use super::running::{correct_start, resizes, start};
use super::suspensions::{late_suspensions, suspensions};

/// How the id of a fact is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FactId {
    /// From the time in Slurm's record.
    Recorded(Slot),
    /// From a counter of its type within the run.
    Sampled(u64),
    /// From the corrected fact and a counter.
    Correction(EventId, u64),
}

/// The run that another one continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Continuation {
    /// Key of the earlier run.
    pub run: RunKey,
    /// Event name of its end.
    pub cause: String,
}

/// A fact to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Run of the fact.
    pub run: RunKey,
    /// Event type.
    pub kind: EventType,
    /// Identity.
    pub id: FactId,
    /// Slurm's time of the fact, in Unix seconds; `None` if Slurm records none.
    pub at: Option<i64>,
    /// Sequence number within the run.
    pub seq: u64,
    /// Whether no record of Slurm supports it.
    pub inferred: bool,
    /// Base state before the fact.
    pub previous_state: String,
    /// Number of requeues before this run, if known.
    pub restart_count: Option<u32>,
    /// Earlier run that this one continues; for `submitted` only.
    pub continues: Option<Continuation>,
    /// Cancelled tasks of an array; for `cancelled` only.
    pub array_tasks: String,
    /// What the run held at that time, if its payload is of a later time.
    pub allocation: Option<AllocationPart>,
}

impl Fact {
    /// A fact of this type, for tests.
    #[cfg(test)]
    pub fn sample(kind: EventType) -> Self {
        Self {
            run: RunKey {
                cluster: "c".to_owned(),
                job_id: 1,
                task_id: None,
                submit_time: 100,
                attempt: 0,
            },
            kind,
            id: FactId::Recorded(Slot::of_type(kind).unwrap_or(Slot::End)),
            at: None,
            seq: 1,
            inferred: false,
            previous_state: String::new(),
            restart_count: None,
            continues: None,
            array_tasks: String::new(),
            allocation: None,
        }
    }

    /// Computes the id of the event.
    pub fn event_id(&self) -> EventId {
        match self.id {
            FactId::Recorded(slot) => EventId::recorded(&self.run, slot),
            FactId::Sampled(n) => {
                EventId::sampled(&self.run.cluster, &self.run.entity_key(), self.kind, n)
            }
            FactId::Correction(first, n) => EventId::derived(first, EventType::JobCorrected, n),
        }
    }

    /// Returns the source from which the id was computed.
    pub fn id_source(&self) -> Option<IdSource> {
        match self.id {
            FactId::Recorded(slot) => IdSource::recorded(self.kind, slot),
            FactId::Sampled(n) => IdSource::sampled(n),
            FactId::Correction(first, n) => IdSource::derived(first, n),
        }
    }
}

/// Collects the facts of one run.
pub(super) struct Emitter<'a> {
    pub run: &'a RunKey,
    pub next: &'a mut RunState,
    pub facts: &'a mut Vec<Fact>,
    pub inferred: bool,
}

impl Emitter<'_> {
    pub(super) fn emit(&mut self, kind: EventType, id: FactId, at: Option<i64>) -> &mut Fact {
        self.next.seq += 1;
        self.facts.push(Fact {
            run: self.run.clone(),
            kind,
            id,
            at,
            seq: self.next.seq,
            inferred: self.inferred,
            previous_state: self.next.state.as_str().to_owned(),
            restart_count: self.next.restart_count,
            continues: None,
            array_tasks: String::new(),
            allocation: None,
        });
        let last = self.facts.len() - 1;
        &mut self.facts[last]
    }

    pub(super) fn recorded(&mut self, kind: EventType, slot: Slot, at: Option<i64>) -> &mut Fact {
        self.emit(kind, FactId::Recorded(slot), at)
    }
}

/// Origin of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Origin {
    /// Earlier run that it continues.
    pub continues: Option<Continuation>,
    /// Whether this is the first run of an array task, which the array's `submitted` covers.
    pub covered_by_array: bool,
}

/// Returns the next state of a run and its new facts.
pub(super) fn derive(
    run: &RunKey,
    previous: Option<&RunState>,
    observation: &Observation,
    origin: Origin,
    context: &ObservationContext,
    inferred: bool,
) -> (RunState, Vec<Fact>) {
    let is_first_observation = previous.is_none();
    let mut next = previous
        .cloned()
        .unwrap_or_else(|| RunState::new(observation));
    let mut facts = Vec::new();
    // Accounting keeps ended runs for years, so its rows do not show how long slurmctld will keep a run.
    let seen = match observation.record {
        Record::Accounting => observation.end.filter(|_| observation.end_kind().is_some()),
        Record::Controller | Record::JobComp => None,
    };
    count_restarts(&mut next, observation);
    next.last_seen = next.last_seen.max(seen.unwrap_or(context.now));
    if next.over() {
        correct(run, &mut next, observation, inferred, &mut facts);
        if !inferred {
            correct_start(run, &mut next, observation, &mut facts);
        }
        // Accounting has the time of every resize, the controller only of the last one. Only the controller has the time of a resume. Its
        // record may be read after accounting has shown the end.
        let mut emitter = Emitter {
            run,
            next: &mut next,
            facts: &mut facts,
            inferred,
        };
        late_suspensions(&mut emitter, observation);
        resizes(&mut emitter, observation);
        usage(run, &mut next, observation, &mut facts);
        canceller(run, &mut next, observation, &mut facts);
        if !next.accounting_pending() && !next.ask_submitted {
            next.rare.waited_for_accounting = 0;
        }
        return (next, facts);
    }
    if is_first_observation {
        next.hook_only = inferred && observation.record == Record::JobComp;
        next.waits = !origin.covered_by_array;
        next.ask_submitted = next.is_array && !context.first_start && !inferred;
        if context.first_start {
            baseline(run, &mut next, observation, &mut facts);
            record_observation(&mut next, observation);
            return (next, facts);
        }
    }
    let mut emitter = Emitter {
        run,
        next: &mut next,
        facts: &mut facts,
        inferred,
    };
    if !emitter.next.submitted {
        emitter.next.submitted = true;
        if !origin.covered_by_array {
            emitter
                .recorded(
                    EventType::JobSubmitted,
                    Slot::Submitted,
                    Some(run.submit_time),
                )
                .continues = origin.continues;
        }
    }
    pending_reason::emit(&mut emitter, observation, context, is_first_observation);
    start(&mut emitter, observation);
    suspensions(&mut emitter, observation);
    resizes(&mut emitter, observation);
    end(&mut emitter, observation, context);
    record_observation(&mut next, observation);
    usage(run, &mut next, observation, &mut facts);
    (next, facts)
}

/// Stores the number of requeues before this run; once known, it does not change. Only the controller counts. While a requeued run is
/// cleaned up, its record already has the next run's count (22.05); the record of a finished run has its own.
fn count_restarts(next: &mut RunState, observation: &Observation) {
    let is_own = observation
        .base
        .is_some_and(|base| !observation.completing || base.finished());
    if is_own && !next.over() {
        next.restart_count = next.restart_count.or(observation.restarts);
    }
}

/// Publishes a run that is alive at the first start as a baseline, once, without any other fact.
fn baseline(run: &RunKey, next: &mut RunState, observation: &Observation, facts: &mut Vec<Fact>) {
    next.submitted = true;
    if observation.started() {
        next.started = observation.start;
    }
    if let Some(kind) = observation.end_kind() {
        next.end = Some(End {
            event: Some(kind),
            at: observation.end.unwrap_or_default(),
            inferred: false,
        });
        return;
    }
    next.rare.suspended = (observation.base == Some(JobBaseState::Suspended))
        .then_some(observation.suspend_time)
        .flatten();
    next.rare.resumed = if next.rare.suspended.is_none() {
        observation.suspend_time
    } else {
        None
    };
    next.rare.ran = observation.pre_suspend;
    pending_reason::accept(next, observation);
    let mut emitter = Emitter {
        run,
        next,
        facts,
        inferred: false,
    };
    emitter.recorded(EventType::JobBaseline, Slot::Baseline, None);
}

fn end(emitter: &mut Emitter<'_>, observation: &Observation, context: &ObservationContext) {
    let Some(kind) = observation.end_kind() else {
        return;
    };
    let inferred = emitter.inferred;
    emitter.next.end = Some(End {
        event: Some(kind),
        at: observation.end.unwrap_or(context.now),
        inferred: inferred || observation.end_is_inferred,
    });
    emitter.next.usage_pending = emitter.next.started.is_some();
    let code = observation
        .job
        .exit_code
        .map(|code| (code.code, code.signal));
    emitter.next.exit_code = code.filter(|_| emitter.next.usage_pending && !inferred);
    emitter.next.ended_by_hook = observation.ended_by_hook && !inferred;
    emitter.next.canceller_pending = kind == EventType::JobCancelled
        && observation.cancelled_by.is_none()
        && observation.record != Record::Accounting;
    let tasks = cancelled_tasks(emitter.next, observation);
    if let Some(previous) = tasks.as_deref().and_then(|tasks| tasks.parse().ok()) {
        super::array::tasks_reappeared(emitter.next, &previous);
    }
    let fact = emitter.recorded(kind, Slot::End, observation.end);
    fact.array_tasks = tasks.unwrap_or_default();
    fact.inferred |= observation.end_is_inferred;
}

/// Returns the tasks that an array still had at its end. The controller's record may lose them with the end.
fn cancelled_tasks(tracked: &mut RunState, observation: &Observation) -> Option<String> {
    if observation.entity != EntityKind::Array {
        return None;
    }
    let listed = observation.tasks.as_ref();
    match observation.record {
        Record::Accounting => super::array::tasks_at_end(tracked, listed),
        _ => listed
            .map(slurm_types::TaskSet::to_string)
            .or_else(|| tracked.rare.remaining.clone()),
    }
}

/// Corrects an end that was inferred or reported by a hook, if a record contradicts it. A doorbell corrects only what was inferred, and only
/// if the records confirm it. After a gap, any end is published. Nothing else about an ended run is news.
fn correct(
    run: &RunKey,
    next: &mut RunState,
    observation: &Observation,
    inferred: bool,
    facts: &mut Vec<Fact>,
) {
    let Some(End {
        event,
        at,
        inferred: was_inferred,
    }) = next.end.clone()
    else {
        return;
    };
    let Some(kind) = observation.end_kind() else {
        return;
    };
    let is_inferred = inferred || observation.end_is_inferred;
    let is_confirmed = !inferred && (!observation.ended_by_hook || was_inferred && !is_inferred);
    if event.is_some() && !is_confirmed {
        return;
    }
    next.hook_only &= inferred;
    // 22.05 and 24.11 overwrite the row of a finished run that is requeued.
    let was_overwritten = kind == EventType::JobRequeued && observation.end > Some(at);
    let has_own_end = observation
        .own_end
        .is_some_and(|own| own.is_before_requeue(observation));
    if was_overwritten && (next.ended_by_hook || has_own_end) {
        return;
    }
    let is_by_hook = observation.ended_by_hook && !inferred;
    let was_ended_by_hook = std::mem::replace(&mut next.ended_by_hook, is_by_hook);
    if !was_inferred && !was_ended_by_hook {
        return;
    }
    // The row of a requeue does not show whether the run had ended before it.
    let is_still_inferred = was_inferred && kind == EventType::JobRequeued && event == Some(kind);
    let end = End {
        event: Some(kind),
        at: observation.end.unwrap_or_default(),
        inferred: is_inferred || is_still_inferred,
    };
    // Then the start was inferred, too.
    let has_same_time = was_inferred && next.started == Some(at);
    let is_other_start =
        has_same_time && observation.started() && observation.start != next.started;
    let shows_start = next.started.is_none()
        && (observation.started() || observation.end_of_lost_start().is_some());
    let first = next.end.replace(end.clone());
    if event.is_some() && first.as_ref() != Some(&end) && next.rare.first_end.is_none() {
        next.rare.first_end = first;
    }
    if event.is_none() {
        // The end was resolved as a gap, so it was never published.
        let mut emitter = Emitter {
            run,
            next,
            facts,
            inferred,
        };
        start(&mut emitter, observation);
        emitter.next.usage_pending = emitter.next.started.is_some();
        let tasks = cancelled_tasks(emitter.next, observation);
        let fact = emitter.recorded(kind, Slot::End, observation.end);
        fact.array_tasks = tasks.unwrap_or_default();
        fact.inferred |= is_inferred;
    } else if event != Some(kind) || shows_start || is_other_start {
        next.rare.corrections += 1;
        let (first, n) = (EventId::recorded(run, Slot::End), next.rare.corrections);
        let mut emitter = Emitter {
            run,
            next,
            facts,
            inferred: false,
        };
        if is_other_start {
            emitter.next.started = observation.start;
        } else if emitter.next.started.is_none() {
            // Until now no record had shown that it ran at all.
            start(&mut emitter, observation);
            emitter.next.usage_pending = emitter.next.started.is_some();
        }
        emitter.emit(
            EventType::JobCorrected,
            FactId::Correction(first, n),
            observation.end,
        );
    }
}

/// Publishes who cancelled a run, once, when accounting reports it. Without an actor, accounting's row has none either.
fn canceller(run: &RunKey, next: &mut RunState, observation: &Observation, facts: &mut Vec<Fact>) {
    let is_answer = observation.record == Record::Accounting && observation.end_kind().is_some();
    if !next.canceller_pending || !is_answer {
        return;
    }
    next.canceller_pending = false;
    // A correction of the end already has the actor.
    let is_published = facts
        .iter()
        .any(|fact| fact.kind == EventType::JobCorrected);
    let is_cancelled = observation.end_kind() == Some(EventType::JobCancelled);
    if is_published || !is_cancelled || observation.cancelled_by.is_none() {
        return;
    }
    correct_end(run, next, observation, facts);
}

/// Publishes the record of an end again, as a correction of its event.
pub(super) fn correct_end(
    run: &RunKey,
    next: &mut RunState,
    observation: &Observation,
    facts: &mut Vec<Fact>,
) {
    next.rare.corrections += 1;
    let (first, n) = (EventId::recorded(run, Slot::End), next.rare.corrections);
    Emitter {
        run,
        next,
        facts,
        inferred: false,
    }
    .emit(
        EventType::JobCorrected,
        FactId::Correction(first, n),
        observation.end,
    );
}

/// Publishes the usage of an ended run, once, when accounting has it.
fn usage(run: &RunKey, next: &mut RunState, observation: &Observation, facts: &mut Vec<Fact>) {
    if !next.usage_pending || observation.job.usage.is_none() {
        return;
    }
    (next.usage_pending, next.exit_code) = (false, None);
    let mut emitter = Emitter {
        run,
        next,
        facts,
        inferred: false,
    };
    emitter.recorded(EventType::JobUpdated, Slot::Updated, observation.end);
}

/// Stores what the next observation is compared with.
fn record_observation(next: &mut RunState, observation: &Observation) {
    next.state = observation.state_name();
    // While an old run is cleaned up, its record already counts the next restart (22.05).
    if observation.restarts.is_some() && !observation.completing && observation.base.is_some() {
        next.restarts = observation.restarts;
    }
    next.start_is_final |= observation.record == Record::Controller
        && observation.base == Some(JobBaseState::Running)
        && !observation.completing
        && !observation.configuring
        && next.started.is_some()
        && next.started == observation.start;
    if observation.entity == EntityKind::Array && observation.record == Record::Controller {
        super::array::store_departed_tasks(next, observation);
    }
}
