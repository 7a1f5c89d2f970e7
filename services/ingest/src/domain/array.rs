//! Tasks of an array that have not become jobs of their own.
//!
//! Cancelling single pending tasks (`scancel 5_3`) leaves no record (seen on 22.05, 24.11 and 26.05): only the range in the array's record
//! shrinks. Tasks that left the range and do not turn up as jobs were cancelled. For tasks that left before the record was first seen,
//! accounting has the submission: in its row, which changes seconds later, or in the submitting command line.

use mesh_events::{EventType, RunKey, Slot};
use slurm_client::ArraySubmission;
use slurm_types::TaskSet;

use super::fact::{Emitter, Fact};
use super::observation::Observation;
use super::run_state::{End, RunState};
use super::run_store::RunStore;

/// Records which tasks left the array's record since the last observation.
pub(super) fn store_departed_tasks(next: &mut RunState, observation: &Observation) {
    let Some(tasks) = observation.tasks.as_ref().filter(|tasks| !tasks.truncated) else {
        return;
    };
    if let Some(before) = next.remaining_tasks() {
        let departing = before.difference(tasks);
        record_departed(next, departing);
    }
    tasks_reappeared(next, tasks);
    next.rare.remaining = Some(TaskSet::new(tasks.iter()).to_string());
}

/// Records that these tasks are in the array's record, or were published with its end, so they have not left it. A controller that had lost
/// its state, or failed over to a backup with an older one, may have shown no record for a while.
pub(super) fn tasks_reappeared(next: &mut RunState, tasks: &TaskSet) {
    if let Some(left) = next.left_tasks() {
        let left = left.difference(tasks);
        next.rare.left = (!left.is_empty()).then(|| left.to_string());
    }
}

/// Returns the tasks with which an array ended according to accounting, whose row lists `listed`. 22.05 still lists tasks that already ran, so
/// the last known range is better. If the record was gone before, the tasks are among those that left it, with others that left it earlier.
pub(super) fn tasks_at_end(tracked: &mut RunState, listed: Option<&TaskSet>) -> Option<String> {
    if tracked.rare.remaining.is_none() {
        let left = tracked.left_tasks();
        let both = left.as_ref().zip(listed.filter(|listed| !listed.truncated));
        let both = both.map(|(left, listed)| left.intersection(listed));
        let both = both.filter(|tasks| !tasks.is_empty());
        let tasks = both.as_ref().or(listed).or(left.as_ref());
        tracked.rare.remaining = tasks.map(TaskSet::to_string);
    }
    tracked.rare.remaining.clone()
}

/// Records that these tasks are no longer in the array's record.
fn record_departed(next: &mut RunState, departing: TaskSet) {
    let left = next.left_tasks().unwrap_or_default();
    let all = TaskSet::new(left.iter().chain(departing.iter()));
    next.rare.left = (!all.is_empty()).then(|| all.to_string());
}

/// Determines from accounting which tasks left the array's record before it was first seen. `None` if the record has to be read first.
pub fn compare_submitted(
    run_store: &RunStore,
    array: &RunKey,
    submitted: &ArraySubmission,
    is_last: bool,
) -> Option<RunState> {
    let mut next = run_store.get(array)?.clone();
    let remaining = match next.remaining_tasks() {
        Some(remaining) => remaining,
        // Published with its end, as accounting has it.
        None if next.over() => submitted.rest.clone(),
        None if submitted.rest.is_empty() || is_last => TaskSet::default(),
        None => return None,
    };
    let jobs = TaskSet::new(seen(run_store, array).iter().chain(submitted.jobs.iter()));
    // A command line that lacks known tasks was changed afterwards, for example by job_submit.lua.
    let ordered = submitted.ordered.as_ref().filter(|ordered| {
        [&remaining, &jobs]
            .iter()
            .all(|known| known.difference(ordered).is_empty())
    });
    let ordered = ordered.into_iter().flat_map(TaskSet::iter);
    let all = TaskSet::new(submitted.rest.iter().chain(ordered));
    let departed = all
        .difference(&remaining)
        .difference(&jobs)
        .difference(&next.cancelled_tasks());
    record_departed(&mut next, departed);
    next.rare.cancelled = None;
    next.rare.waited_for_accounting = 0;
    next.ask_submitted = false;
    Some(next)
}

/// Returns the tasks that became jobs.
fn seen(run_store: &RunStore, array: &RunKey) -> TaskSet {
    TaskSet::new(
        run_store
            .tasks_of(array)
            .filter(|(run, _)| run.submit_time >= array.submit_time)
            .filter_map(|(run, _)| run.task_id),
    )
}

/// State of the tasks that left an array's record.
#[derive(Debug, PartialEq, Eq)]
pub enum DepartedTasks {
    /// All tasks have turned up.
    Settled(Box<RunState>),
    /// Some tasks have not turned up yet; the array must be looked up.
    Missing(Box<RunState>),
    /// Some tasks did not turn up in time: they were cancelled.
    Cancelled(Box<RunState>, Box<Fact>),
}

/// Resolves the tasks that left an array's record. `record_absent`: the array has no record of its own any more. `given_up`: the tasks whose
/// wait is over.
pub fn resolve_departed_tasks(
    run_store: &RunStore,
    array: &RunKey,
    record_absent: bool,
    given_up: Option<&TaskSet>,
    now: i64,
) -> Option<DepartedTasks> {
    let before = run_store.get(array).filter(|tracked| tracked.is_array)?;
    let mut next = before.clone();
    // Tasks that remained at the array's end were published with it.
    if record_absent
        && !next.over()
        && let Some(rest) = next.remaining_tasks()
    {
        next.rare.remaining = None;
        record_departed(&mut next, rest);
    }
    let left = next.left_tasks()?;
    let missing = left.difference(&seen(run_store, array));
    if missing.is_empty() {
        next.rare.left = None;
        return Some(DepartedTasks::Settled(Box::new(next)));
    }
    next.rare.left = Some(missing.to_string());
    // The record was gone, has come back and was not read yet: it may still have the tasks.
    let is_unread = !record_absent && !next.over() && next.rare.remaining.is_none();
    let given_up = given_up.filter(|_| !is_unread);
    let waiting = given_up.map_or_else(|| missing.clone(), |tasks| missing.difference(tasks));
    let cancelled = missing.difference(&waiting);
    if cancelled.is_empty() {
        return Some(DepartedTasks::Missing(Box::new(next)));
    }
    next.rare.left = (!waiting.is_empty()).then(|| waiting.to_string());
    if next.ask_submitted {
        let all = TaskSet::new(next.cancelled_tasks().iter().chain(cancelled.iter()));
        next.rare.cancelled = Some(all.to_string());
    }
    // A record that comes later must not repeat what the array ended with. Its last task has the array's id, and then the array has none.
    let is_end = record_absent
        && !before.over()
        && waiting.is_empty()
        && !run_store.tasks_of(array).any(|(run, task)| {
            run.submit_time >= array.submit_time && task.raw_id == before.raw_id
        });
    let slot = if is_end {
        next.rare.remaining = Some(cancelled.to_string());
        next.end = Some(End {
            event: Some(EventType::JobCancelled),
            at: now,
            inferred: true,
        });
        next.canceller_pending = true;
        Slot::End
    } else {
        let after = next.rare.cancelled_at.map_or(now, |last| last + 1);
        let at = now.max(after);
        next.rare.cancelled_at = Some(at);
        Slot::TasksCancelled(at)
    };
    let mut facts = Vec::new();
    let mut emitter = Emitter {
        run: array,
        next: &mut next,
        facts: &mut facts,
        inferred: true,
    };
    emitter
        .recorded(EventType::JobCancelled, slot, None)
        .array_tasks = cancelled.to_string();
    let fact = facts.pop()?;
    Some(DepartedTasks::Cancelled(Box::new(next), Box::new(fact)))
}

#[cfg(test)]
mod tests {
    use slurm_types::{JobId, UnixTime};

    use super::*;
    use crate::domain::run_state::{RareFields, RareFieldsBox};

    fn tasks(text: &str) -> TaskSet {
        text.parse().unwrap()
    }

    /// Accounting lists a task that was cancelled alone as submitted, even if its cancellation was published long ago.
    #[test]
    fn a_task_that_was_published_as_cancelled_is_not_published_again() {
        let array = RunKey {
            cluster: "c".to_owned(),
            job_id: 7,
            task_id: None,
            submit_time: 1_000,
            attempt: 0,
        };
        let mut run_store = RunStore::default();
        run_store.put(
            array.clone(),
            RunState {
                raw_id: 7,
                is_array: true,
                ask_submitted: true,
                rare: RareFieldsBox::from(RareFields {
                    remaining: Some("1-2,4".to_owned()),
                    left: Some("3".to_owned()),
                    ..RareFields::default()
                }),
                ..RunState::default()
            },
        );
        let given_up = tasks("3");
        let resolved = resolve_departed_tasks(&run_store, &array, false, Some(&given_up), 2_000);
        let Some(DepartedTasks::Cancelled(next, fact)) = resolved else {
            panic!("{resolved:?}");
        };
        assert_eq!(fact.array_tasks, "3");
        run_store.put(array.clone(), *next);
        let submitted = ArraySubmission {
            array: JobId::new(7).unwrap(),
            submit: UnixTime::from_secs(1_000),
            jobs: TaskSet::default(),
            rest: tasks("1-4"),
            ordered: Some(tasks("1-5")),
        };
        let next = compare_submitted(&run_store, &array, &submitted, false).unwrap();
        assert_eq!(next.rare.left.as_deref(), Some("5"));
        assert!(!next.ask_submitted && next.rare.cancelled.is_none());
    }
}
