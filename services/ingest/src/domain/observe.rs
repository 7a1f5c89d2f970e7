//! Interprets an observation with all stored runs of its job: to which run it belongs, and what has to be looked up first.

use mesh_events::{EventType, RunKey, Slot};
use slurm_types::JobBaseState;

use super::attempt::{ended_before, resolve_attempt};
use super::decision::{Decision, LookupTarget, ObservationContext};
use super::derive::{Origin, derive};
use super::fact::{Continuation, Emitter, FactId};
use super::observation::{EntityKind, Observation, Record};
use super::run_state::{End, RunState};
use super::run_store::RunStore;
use super::running::start_before;

/// Decides what follows from an observation.
pub fn observe(
    run_store: &RunStore,
    observation: &Observation,
    context: &ObservationContext,
) -> Decision {
    let requeued_task = requeued_last_task(run_store, observation);
    let observation = requeued_task.as_ref().unwrap_or(observation);
    let mut decision = Decision::default();
    let run = resolve_attempt(run_store, observation, &mut decision, context);
    let known = run_store.get(&run);
    if known.is_some_and(|known| ended_before(known, observation)) {
        return decision;
    }
    let mut origin = Origin::default();
    if known.is_none() {
        if leaves_it_to_the_controller(run_store, &run, observation)
            || is_a_part(run_store, &run, observation)
        {
            return decision;
        }
        match continued_run(run_store, &run, observation, context, &mut decision) {
            Some(continues) => origin.continues = continues,
            None => {
                decision.follow_ups.push(LookupTarget::Accounting);
                return decision;
            }
        }
        if observation.entity == EntityKind::Task {
            origin.covered_by_array = array_of(
                run_store,
                &run,
                observation,
                context,
                &origin,
                &mut decision,
            );
        }
    }
    if start_needs_accounting(known, observation, context) {
        decision.follow_ups.push(LookupTarget::Accounting);
        return decision;
    }
    let (next, facts) = derive(&run, known, observation, origin, context, context.inferred);
    if observation.in_flux() {
        decision.follow_ups.push(LookupTarget::Reread);
        // Accounting has the end of a run while its epilogs run, and also after its job has returned to the queue.
        if context.poll.is_some() || observation.base.is_some() {
            decision.follow_ups.push(LookupTarget::Accounting);
        }
    }
    decision.changes.push((run, next));
    decision.facts.extend(facts);
    decision
}

/// The last task of an array has the array's id. If it was requeued and cancelled while waiting, only the controller's restart count
/// distinguishes it from the array. For other sources, the run store does.
fn requeued_last_task(run_store: &RunStore, observation: &Observation) -> Option<Observation> {
    if observation.entity != EntityKind::Array
        || observation.record == Record::Controller
        || run_store.get(&observation.run).is_some()
    {
        return None;
    }
    let runs = run_store.by_raw_id(observation.raw_id);
    let run = runs
        .into_iter()
        .find(|run| run.task_id.is_some() && run.submit_time == observation.run.submit_time)?;
    let mut task = Observation {
        entity: EntityKind::Task,
        tasks: None,
        run,
        ..observation.clone()
    };
    if let Some(array) = &mut task.job.array {
        array.task_id = task.run.task_id;
        array.tasks.clear();
    }
    Some(task)
}

/// Whether to leave a live run to the controller, which counts restarts. Only the controller can distinguish the next run of a scrontab
/// job, whose last one ended like any other, from a job with a reused id. Accounting cannot (22.05).
fn leaves_it_to_the_controller(
    run_store: &RunStore,
    run: &RunKey,
    observation: &Observation,
) -> bool {
    let has_earlier = || run_store.runs_of(run).any(|(other, _)| other < *run);
    observation.record == Record::Accounting && observation.end_kind().is_none() && has_earlier()
}

/// Whether a run was resized before it was seen running. Accounting has the allocation of its start.
fn start_needs_accounting(
    known: Option<&RunState>,
    observation: &Observation,
    context: &ObservationContext,
) -> bool {
    let is_start = known.is_none_or(|run| run.started.is_none() && !run.over());
    is_start
        && observation.started()
        && observation.hides_first_allocation()
        && !context.first_start
        && !context.given_up
}

/// Whether a row of accounting is only a part of a resized run.
fn is_a_part(run_store: &RunStore, run: &RunKey, observation: &Observation) -> bool {
    observation.record == Record::Accounting && is_within_another(run_store, run)
}

/// Whether a run was submitted while another one of its job ran. A job is not, so it is a part of that one: slurmdbd, which was killed when
/// the job was resized, has lost the link between the rows (seen on 22.05).
pub fn is_within_another(run_store: &RunStore, run: &RunKey) -> bool {
    let is_within = |(other, tracked): (RunKey, &RunState)| {
        other.submit_time < run.submit_time
            && tracked.started.is_some_and(|at| at < run.submit_time)
            && tracked
                .end
                .as_ref()
                .is_some_and(|end| !end.inferred && end.at > run.submit_time)
    };
    run_store.runs_of(run).any(is_within)
}

/// Name of an end in the run that continues it.
fn end_name(end: &End) -> String {
    end.event
        .map_or_else(String::new, |kind| kind.event().to_owned())
}

/// Returns the run that a newly seen run continues: `Some(None)` if it continues none, `None` if that must be looked up first.
fn continued_run(
    run_store: &RunStore,
    run: &RunKey,
    observation: &Observation,
    context: &ObservationContext,
    decision: &mut Decision,
) -> Option<Option<Continuation>> {
    let is_earlier = |(other, tracked): &(RunKey, &RunState)| other < run && !tracked.hook_only;
    let earlier = run_store.runs_of(run).rev().find(is_earlier);
    let Some((earlier, tracked)) = earlier else {
        let missed = observation.may_have_run_before() && !context.first_start && !context.given_up;
        // Earlier runs were never seen; accounting lists them.
        return (!missed || observation.record != Record::Controller).then_some(None);
    };
    if run.attempt > 0 {
        let end = tracked.end.as_ref().map(end_name);
        return Some(Some(Continuation {
            run: earlier.clone(),
            cause: end.unwrap_or_else(|| EventType::JobRequeued.event().to_owned()),
        }));
    }
    let restarted = match observation.restarts {
        // No restart is counted for a component of a heterogeneous job that got nodes and had to return them (22.05 and 24.11).
        Some(restarts) => restarts > 0 || tracked.end_kind() == Some(EventType::JobRequeued),
        // Accounting of 22.05 does not count restarts. After any other end, a job runs again only if a user requeued it.
        None if context.restarted => true,
        // Only these ends return a job to the queue by themselves.
        None => matches!(
            tracked.end_kind(),
            Some(EventType::JobRequeued | EventType::JobPreempted | EventType::JobNodeFail)
        ),
    };
    // Whole runs in between, which only accounting has.
    let is_next = observation.record != Record::Controller
        || match (tracked.restart_count, observation.restarts) {
            (Some(before), Some(now)) => now <= before + 1,
            _ => true,
        };
    if let Some(end) = &tracked.end
        && (is_next || context.given_up)
    {
        return Some((restarted && end.event.is_some()).then(|| Continuation {
            run: earlier.clone(),
            cause: end_name(end),
        }));
    }
    if !context.given_up {
        return None;
    }
    // Slurm gave the job a new submit time, so the earlier run is over. How it ended could not be determined in time.
    let mut closed = tracked.clone();
    let kind = EventType::JobRequeued;
    closed.end = Some(End {
        event: restarted.then_some(kind),
        at: run.submit_time,
        inferred: true,
    });
    if restarted {
        let mut emitter = Emitter {
            run: &earlier,
            next: &mut closed,
            facts: &mut decision.facts,
            inferred: true,
        };
        start_before(&mut emitter, run.submit_time);
        emitter.emit(kind, FactId::Recorded(Slot::End), Some(run.submit_time));
        closed.usage_pending = closed.started.is_some();
    } else {
        closed.usage_pending = false;
        decision.lost.push(earlier.clone());
    }
    decision.changes.push((earlier.clone(), closed));
    Some(restarted.then(|| Continuation {
        run: earlier.clone(),
        cause: kind.event().to_owned(),
    }))
}

/// Whether the array's own `submitted` covers this task, which is seen for the first time. An array that was not seen yet is derived from
/// the task.
fn array_of(
    run_store: &RunStore,
    run: &RunKey,
    observation: &Observation,
    context: &ObservationContext,
    origin: &Origin,
    decision: &mut Decision,
) -> bool {
    let own = RunKey {
        task_id: None,
        ..run.clone()
    };
    let known = run_store
        .runs_of(&own)
        .rev()
        .find(|(array, _)| array.submit_time <= run.submit_time);
    let first_run = match (observation.restarts, &known) {
        _ if run.attempt > 0 => false,
        (Some(restarts), _) => restarts == 0,
        (None, Some((array, _))) => array.submit_time == run.submit_time,
        (None, None) => origin.continues.is_none(),
    };
    // An inferred observation says nothing about the array.
    if first_run
        && !context.inferred
        && known.is_none_or(|(array, _)| array.submit_time != run.submit_time)
    {
        let mut array = RunState {
            raw_id: own.job_id,
            is_array: true,
            submitted: true,
            waits: true,
            state: JobBaseState::Pending.into(),
            ask_submitted: !context.first_start,
            last_seen: context.now,
            ..RunState::default()
        };
        if !context.first_start {
            let mut emitter = Emitter {
                run: &own,
                next: &mut array,
                facts: &mut decision.facts,
                inferred: false,
            };
            emitter.emit(
                EventType::JobSubmitted,
                FactId::Recorded(Slot::Submitted),
                Some(own.submit_time),
            );
        }
        decision.changes.push((own, array));
    }
    first_run
}
