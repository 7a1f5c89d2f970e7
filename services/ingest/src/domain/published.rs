//! Restores run states from published events that a crash kept from being stored.

use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{Confidence, Source};
use mesh_events::proto::mesh::job::v1::JobEvent;
use mesh_events::{Event, EventType, RunKey};
use slurm_types::JobBaseState;

use super::run_state::{End, RunState};
use super::run_store::RunStore;

/// Returns the state of an event's run with the submission, start or end that it publishes; `None` if the run store has that.
///
/// `now` is in Unix seconds, as is `oldest`: what happened earlier to an unknown run was published again for a ledger, after the run was
/// removed. An event that is only late, after an outage or with a clock ahead, is restored. Facts that are stored before they are published
/// need none of this, nor do facts with a counted id.
pub fn restore(
    run_store: &RunStore,
    event: &Event,
    now: i64,
    oldest: i64,
) -> Option<(RunKey, RunState)> {
    let Some(Payload::Job(payload)) = &event.payload else {
        return None;
    };
    let kind = event.kind().ok()?;
    if event.id_source.is_some() {
        return None;
    }
    let run = RunKey::parse(&event.cluster, event.entity_key()).ok()?;
    let known = run_store.get(&run);
    let is_stored = |known: &RunState| known.over() || known.seq >= event.run_seq;
    let was_removed = || occurred_at(event) < oldest;
    if known.map_or_else(was_removed, is_stored) {
        return None;
    }
    let mut state = known.cloned().unwrap_or_else(|| new(&run, event, payload));
    state.seq = event.run_seq;
    state.last_seen = now;
    match kind {
        EventType::JobSubmitted => state.waits = true,
        EventType::JobStarted => start(&mut state, event, payload)?,
        kind if kind.is_end() => end(&mut state, kind, event, payload),
        _ => return None,
    }
    Some((run, state))
}

pub(super) fn occurred_at(event: &Event) -> i64 {
    event.occurred_at.as_ref().map_or(0, |at| at.seconds)
}

pub(super) fn new(run: &RunKey, event: &Event, payload: &JobEvent) -> RunState {
    let job = payload.job.clone().unwrap_or_default();
    let is_array = event
        .entity
        .as_ref()
        .is_some_and(|entity| entity.kind == "array");
    let is_task = run.task_id.is_some();
    RunState {
        raw_id: job.job_id,
        is_array,
        is_task,
        submitted: true,
        // The array's own submission covers the first run of a task.
        waits: !is_task,
        ask_submitted: is_array,
        state: JobBaseState::Pending.into(),
        restart_count: job.restarts,
        restarts: job.restarts,
        ..RunState::default()
    }
}

pub(super) fn start(state: &mut RunState, event: &Event, payload: &JobEvent) -> Option<()> {
    let job = payload.job.as_ref()?;
    let at = job.start_time.as_ref()?.seconds;
    if state.started.is_none() {
        state.started = Some(at);
        // A start that a record shows has its state; one that was inferred has that of the end.
        state.rare.start_is_inferred =
            event.confidence() == Confidence::Inferred && job.state != JobBaseState::Running.name();
    }
    state.state = JobBaseState::Running.into();
    // Flags such as CONFIGURING say that the start may still move.
    state.start_is_final = event.confidence() == Confidence::Observed
        && job.state == JobBaseState::Running.name()
        && job.state_flags.is_empty();
    Some(())
}

pub(super) fn end(state: &mut RunState, kind: EventType, event: &Event, payload: &JobEvent) {
    let job = payload.job.clone().unwrap_or_default();
    let inferred = event.confidence() == Confidence::Inferred;
    let from_accounting = event.source() == Source::Accounting;
    state.end = Some(End {
        event: Some(kind),
        at: occurred_at(event),
        inferred,
    });
    // A run with nodes has started, also if that was published before `oldest`.
    if state.started.is_none() && !job.alloc_tres.is_empty() {
        state.started = job.start_time.as_ref().map(|at| at.seconds);
    }
    state.usage_pending = state.started.is_some() || from_accounting && !job.alloc_tres.is_empty();
    let code = job.exit_code.map(|code| (code.code, code.signal));
    state.exit_code = code.filter(|_| state.usage_pending && !inferred);
    // What accounting infers is the end of the batch step.
    state.ended_by_hook = match event.source() {
        Source::Hook => true,
        Source::Accounting => inferred,
        _ => false,
    };
    state.canceller_pending =
        kind == EventType::JobCancelled && event.actor.is_none() && !from_accounting;
    state.lookup = None;
    if let Ok(tasks) = payload.array_tasks.parse()
        && state.is_array
    {
        state.rare.remaining = Some(payload.array_tasks.clone());
        super::array::tasks_reappeared(state, &tasks);
    }
}

#[cfg(test)]
mod tests {
    use mesh_events::proto::mesh::event::v1::{Entity, IdSource};
    use mesh_events::proto::mesh::job::v1::Job;
    use pbjson_types::Timestamp;

    use super::*;

    fn at(seconds: i64) -> Option<Timestamp> {
        Some(Timestamp { seconds, nanos: 0 })
    }

    fn event(kind: &str, run_seq: u64) -> Event {
        let job = Job {
            job_id: 7,
            state: "RUNNING".to_owned(),
            start_time: at(101),
            ..Job::default()
        };
        Event {
            cluster: "c".to_owned(),
            r#type: kind.to_owned(),
            occurred_at: at(102),
            confidence: Confidence::Observed.into(),
            entity: Some(Entity {
                kind: "job".to_owned(),
                key: "job/7/100".to_owned(),
            }),
            run_seq,
            payload: Some(Payload::Job(JobEvent {
                job: Some(job),
                ..JobEvent::default()
            })),
            ..Event::default()
        }
    }

    fn restored(events: &[Event]) -> Option<RunState> {
        let mut run_store = RunStore::default();
        for event in events {
            if let Some((run, state)) = restore(&run_store, event, 200, 50) {
                run_store.put(run, state);
            }
        }
        run_store.iter().next().map(|(_, state)| state.clone())
    }

    #[test]
    fn a_run_has_the_start_and_the_end_that_were_published() {
        let mut events = vec![event("job.submitted", 1), event("job.started", 2)];
        let state = restored(&events).unwrap();
        assert_eq!((state.started, state.seq, state.raw_id), (Some(101), 2, 7));
        assert!(state.submitted && state.waits && state.start_is_final && !state.over());
        events.push(event("job.completed", 3));
        let state = restored(&events).unwrap();
        let end = state.end.unwrap();
        assert_eq!(
            (end.event, end.at, end.inferred),
            (Some(EventType::JobCompleted), 102, false)
        );
        assert!(state.usage_pending && !state.canceller_pending);
    }

    #[test]
    fn a_late_event_is_restored_unless_its_run_was_removed() {
        let late = |mut event: Event| {
            event.late = true;
            event
        };
        let (started, ended) = (
            late(event("job.started", 2)),
            late(event("job.completed", 3)),
        );
        // The clock was ahead: both are late, and were not stored.
        let state = restored(&[started, ended.clone()]).unwrap();
        assert!(state.started == Some(101) && state.usage_pending && state.over());
        let mut long_ago = ended;
        long_ago.occurred_at = at(49);
        assert_eq!(restored(std::slice::from_ref(&long_ago)), None);
        assert!(
            restored(&[event("job.started", 2), long_ago])
                .unwrap()
                .over()
        );
    }

    #[test]
    fn an_end_with_nodes_has_a_start() {
        let ended = |nodes: &str| {
            let mut ended = event("job.completed", 3);
            let Some(Payload::Job(payload)) = &mut ended.payload else {
                panic!("a job");
            };
            nodes.clone_into(&mut payload.job.as_mut().unwrap().alloc_tres);
            restored(&[ended]).unwrap()
        };
        assert!(!ended("").usage_pending);
        let state = ended("cpu=1");
        assert!(state.started == Some(101) && state.usage_pending);
    }

    #[test]
    fn what_is_stored_is_not_changed() {
        let mut moved = event("job.started", 2);
        let Some(Payload::Job(payload)) = &mut moved.payload else {
            panic!("a job");
        };
        payload.job.as_mut().unwrap().start_time = at(150);
        let state = restored(&[event("job.started", 2), moved]).unwrap();
        assert_eq!(state.started, Some(101));
    }

    #[test]
    fn a_start_while_nodes_boot_may_still_move() {
        let mut configuring = event("job.started", 2);
        let Some(Payload::Job(payload)) = &mut configuring.payload else {
            panic!("a job");
        };
        payload.job.as_mut().unwrap().state_flags = vec!["CONFIGURING".to_owned()];
        assert!(!restored(&[configuring]).unwrap().start_is_final);
    }

    #[test]
    fn a_whole_array_that_was_cancelled_has_ended_with_its_tasks() {
        let mut cancelled = event("job.cancelled", 2);
        cancelled.entity.as_mut().unwrap().kind = "array".to_owned();
        let Some(Payload::Job(payload)) = &mut cancelled.payload else {
            panic!("a job");
        };
        payload.array_tasks = "1-3".to_owned();
        let state = restored(&[cancelled]).unwrap();
        assert!(state.is_array && state.over() && state.canceller_pending && !state.usage_pending);
        assert_eq!(state.remaining_tasks().unwrap().to_string(), "1-3");
    }

    #[test]
    fn facts_that_are_stored_first_are_left_alone() {
        let mut tasks = event("job.cancelled", 2);
        tasks.id_source = Some(IdSource {
            slot: "tasks_cancelled/102".to_owned(),
            ..IdSource::default()
        });
        assert_eq!(restored(&[tasks, event("job.pending", 3)]), None);
    }
}
