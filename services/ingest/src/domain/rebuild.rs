//! Rebuilds the states of runs from their events, after the stored states were lost.

use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{Confidence, Source};
use mesh_events::proto::mesh::job::v1::{Job, JobEvent};
use mesh_events::{Event, EventType, RunKey};
use slurm_types::{ReasonClass, TaskSet};

use super::published::{end, new, occurred_at, start};
use super::run_state::{End, RunState};
use super::run_store::RunStore;

/// Returns the state of an event's run after that event, for events in the order of their publication; `None` if it changes nothing.
///
/// `published` is the time of publication in Unix seconds. What no event shows is missing: candidates of sampled changes, open lookups, the
/// tasks that an array still has.
pub fn rebuild(run_store: &RunStore, event: &Event, published: i64) -> Option<(RunKey, RunState)> {
    let Some(Payload::Job(payload)) = &event.payload else {
        return None;
    };
    let kind = event.kind().ok()?;
    let run = RunKey::parse(&event.cluster, event.entity_key()).ok()?;
    let known = run_store.get(&run);
    if known.is_some_and(|known| known.seq >= event.run_seq) {
        return None;
    }
    let is_hook_only = event.confidence() == Confidence::Inferred && event.source() == Source::Hook;
    let mut state = known.cloned().unwrap_or_else(|| RunState {
        hook_only: is_hook_only,
        ..new(&run, event, payload)
    });
    state.seq = event.run_seq;
    state.last_seen = published;
    apply(&mut state, kind, event, payload);
    Some((run, state))
}

fn apply(state: &mut RunState, kind: EventType, event: &Event, payload: &JobEvent) {
    let job = payload.job.as_ref();
    let at = occurred_at(event);
    let n = event.id_source.as_ref().map_or(0, |source| source.n);
    let count = u32::try_from(n).unwrap_or(u32::MAX);
    match kind {
        EventType::JobBaseline => {
            state.ask_submitted = false;
            state.class = job.and_then(class);
            state.held = state.class == Some(ReasonClass::Held);
            start(state, event, payload);
        }
        EventType::JobSubmitted => state.waits = true,
        EventType::JobHeld => {
            (state.held, state.class) = (true, Some(ReasonClass::Held));
            state.counts[0] = count;
        }
        EventType::JobReleased => {
            (state.held, state.class) = (false, None);
            state.counts[1] = count;
        }
        EventType::JobPending => {
            state.class = job.and_then(class);
            state.counts[2] = count;
        }
        EventType::JobStarted => {
            start(state, event, payload);
        }
        EventType::JobSuspended => state.rare.suspended = Some(at),
        EventType::JobResumed => state.rare.resumed = Some(at),
        EventType::JobResized => state.rare.resized.push(at),
        EventType::JobUpdated => (state.usage_pending, state.exit_code) = (false, None),
        EventType::JobCorrected => correct(state, event, n, job),
        // Single tasks of an array, which goes on.
        EventType::JobCancelled if event.id_source.is_some() => cancel(state, event, payload),
        kind if kind.is_end() => end(state, kind, event, payload),
        _ => {}
    }
}

fn class(job: &Job) -> Option<ReasonClass> {
    let has_name = |class: &ReasonClass| class.as_str() == job.reason_class;
    ReasonClass::ALL.into_iter().find(has_name)
}

fn correct(state: &mut RunState, event: &Event, n: u64, job: Option<&Job>) {
    state.rare.corrections = n;
    state.canceller_pending &= event.actor.is_none();
    let name = job.map(|job| job.state.to_lowercase()).unwrap_or_default();
    let Ok(kind) = format!("job.{name}").parse::<EventType>() else {
        return;
    };
    let corrected = End {
        event: Some(kind),
        at: occurred_at(event),
        inferred: false,
    };
    if kind.is_end() && state.end.as_ref() != Some(&corrected) {
        let first = state.end.replace(corrected);
        state.rare.first_end = state.rare.first_end.take().or(first);
        state.ended_by_hook = false;
    }
}

fn cancel(state: &mut RunState, event: &Event, payload: &JobEvent) {
    let at = event.observed_at.as_ref().map(|at| at.seconds);
    state.rare.cancelled_at = state.rare.cancelled_at.max(at);
    if let Ok(tasks) = payload.array_tasks.parse::<TaskSet>() {
        let all = TaskSet::new(state.cancelled_tasks().iter().chain(tasks.iter()));
        state.rare.cancelled = Some(all.to_string());
    }
}

#[cfg(test)]
mod tests {
    use mesh_events::proto::mesh::event::v1::{Entity, IdSource};
    use pbjson_types::Timestamp;

    use super::*;

    fn event(kind: &str, run_seq: u64, change: impl FnOnce(&mut Event, &mut Job)) -> Event {
        let at = |seconds| Some(Timestamp { seconds, nanos: 0 });
        let mut job = Job {
            job_id: 7,
            state: "RUNNING".to_owned(),
            start_time: at(101),
            ..Job::default()
        };
        let mut event = Event {
            cluster: "c".to_owned(),
            r#type: kind.to_owned(),
            occurred_at: at(100 + i64::try_from(run_seq).unwrap()),
            confidence: Confidence::Observed.into(),
            entity: Some(Entity {
                kind: "job".to_owned(),
                key: "job/7/100".to_owned(),
            }),
            run_seq,
            ..Event::default()
        };
        change(&mut event, &mut job);
        event.payload = Some(Payload::Job(JobEvent {
            job: Some(job),
            ..JobEvent::default()
        }));
        event
    }

    fn sampled(kind: &str, run_seq: u64, n: u64, class: &str) -> Event {
        event(kind, run_seq, |event, job| {
            event.id_source = IdSource::sampled(n);
            class.clone_into(&mut job.reason_class);
        })
    }

    fn rebuilt(events: &[Event]) -> RunState {
        let mut run_store = RunStore::default();
        for event in events {
            if let Some((run, state)) = rebuild(&run_store, event, 500) {
                run_store.put(run, state);
            }
        }
        run_store.iter().next().unwrap().1.clone()
    }

    #[test]
    fn counts_and_the_pending_state_continue() {
        let submitted = event("job.submitted", 1, |_, _| {});
        let held = sampled("job.held", 2, 4, "");
        let state = rebuilt(&[submitted.clone(), held.clone()]);
        assert!(state.submitted && state.waits && state.held);
        assert_eq!((state.seq, state.counts), (2, [4, 0, 0]));
        let released = sampled("job.released", 3, 2, "");
        let pending = sampled("job.pending", 4, 9, "limit");
        let events = [submitted, held.clone(), released, pending, held];
        let state = rebuilt(&events);
        assert!(!state.held && state.class == Some(ReasonClass::Limit));
        assert_eq!((state.seq, state.counts), (4, [4, 2, 9]));
        assert_eq!((state.last_seen, state.over()), (500, false));
    }

    #[test]
    fn changes_of_a_running_job_and_its_corrected_end_are_known() {
        let mut events = vec![event("job.submitted", 1, |_, _| {})];
        events.push(event("job.started", 2, |_, _| {}));
        events.push(event("job.suspended", 3, |_, _| {}));
        events.push(event("job.resumed", 4, |_, _| {}));
        events.push(event("job.resized", 5, |_, _| {}));
        let state = rebuilt(&events);
        assert_eq!((state.started, state.start_is_final), (Some(101), true));
        let rare = &state.rare;
        assert_eq!((rare.suspended, rare.resumed), (Some(103), Some(104)));
        assert_eq!(rare.resized, [105]);
        events.push(event("job.cancelled", 6, |event, job| {
            event.source = Source::Sweep.into();
            "cpu=1".clone_into(&mut job.alloc_tres);
        }));
        let state = rebuilt(&events);
        assert!(state.usage_pending && state.canceller_pending);
        events.push(event("job.corrected", 7, |event, job| {
            event.id_source = Some(IdSource {
                n: 1,
                ..IdSource::default()
            });
            "TIMEOUT".clone_into(&mut job.state);
        }));
        events.push(event("job.updated", 8, |_, _| {}));
        let state = rebuilt(&events);
        assert_eq!(state.end_kind(), Some(EventType::JobTimeout));
        assert_eq!(state.rare.corrections, 1);
        let first = state.first_end().and_then(|end| end.event);
        assert_eq!(first, Some(EventType::JobCancelled));
        assert!(!state.usage_pending);
    }

    #[test]
    fn cancelled_tasks_are_no_end_of_their_array() {
        let mut cancelled = event("job.cancelled", 2, |event, _| {
            event.entity.as_mut().unwrap().kind = "array".to_owned();
            event.id_source = Some(IdSource {
                slot: "tasks_cancelled/102".to_owned(),
                ..IdSource::default()
            });
        });
        let Some(Payload::Job(payload)) = &mut cancelled.payload else {
            panic!("a job");
        };
        "3,5".clone_into(&mut payload.array_tasks);
        let state = rebuilt(&[cancelled]);
        assert!(state.is_array && !state.over());
        assert_eq!(state.cancelled_tasks().to_string(), "3,5");
    }
}
