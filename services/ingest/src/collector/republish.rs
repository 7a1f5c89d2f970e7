//! Republishes what Slurm has recorded, for a ledger that has lost it. Event ids stay the same, so other consumers are not affected.

use chrono::Utc;
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::{Event, EventType, RunKey, Slot};
use slurm_types::JobRef;

use super::Collector;
use super::outbox::is_rediscoverable;
use super::usage_backlog::job_of;
use crate::domain::{
    self, Fact, FactId, Observation, ObservationContext, Owner, RunState, RunStore, RunUsage,
    observe, run_of,
};
use crate::envelope::{Cause, EventContext, other_run};

/// A time range in Unix seconds, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepublishWindow {
    /// Start.
    pub from: i64,
    /// End.
    pub to: i64,
}

/// What accounting has of a window.
#[derive(Default)]
pub struct Republished {
    /// Facts, as they were published the first time.
    pub events: Vec<Event>,
    /// Runs whose end is left out, because a requeue has overwritten it and the run store no longer has it.
    pub unknown_ends: Vec<(RunKey, Owner)>,
}

/// How a fact was published that accounting shows. The same id must say the same, and accounting may have another end by now: of a finished
/// run that was requeued, or of one that was corrected.
#[derive(Debug, PartialEq, Eq)]
enum PublishedForm {
    Known(Box<Fact>),
    Unknown,
    Unpublished,
}

/// Changes a fact and its payload to what was published of a run.
fn as_published(fact: &Fact, job: &mut Job, known: Option<&RunState>) -> PublishedForm {
    let mut fact = Box::new(fact.clone());
    match (fact.id, known) {
        (FactId::Recorded(Slot::End), None) if fact.inferred => return PublishedForm::Unknown,
        (FactId::Recorded(Slot::End), Some(known)) => {
            // It is published once it is known, or was resolved as a gap.
            let Some((kind, end)) = known.first_end().and_then(|end| Some((end.event?, end)))
            else {
                return PublishedForm::Unpublished;
            };
            if kind != fact.kind && !matches!(kind, EventType::JobRequeued | EventType::JobRevoked)
            {
                job.state = kind.event().to_uppercase();
            }
            job.end_time = Some(domain::payload::seconds(end.at));
            (fact.kind, fact.at, fact.inferred) = (kind, Some(end.at), end.inferred);
        }
        (FactId::Recorded(Slot::Started), Some(known)) => {
            if let Some(started) = known.started {
                job.start_time = Some(domain::payload::seconds(started));
                fact.at = Some(started);
            }
        }
        _ => {}
    }
    PublishedForm::Known(fact)
}

impl RepublishWindow {
    fn has(self, fact: &Fact) -> bool {
        let rediscoverable = match fact.id {
            FactId::Recorded(Slot::Resized(_)) => true,
            FactId::Recorded(_) => is_rediscoverable(fact.id),
            FactId::Sampled(_) | FactId::Correction(..) => false,
        };
        rediscoverable && fact.at.is_some_and(|at| self.has_time(at))
    }

    fn has_time(self, at: i64) -> bool {
        (self.from..=self.to).contains(&at)
    }
}

impl Collector {
    /// Derives the recorded facts of a window from accounting's runs, oldest run of each job first. `run_store` is a temporary store in
    /// which nothing counts as published.
    pub async fn republish_recorded(
        &self,
        run_store: &mut RunStore,
        runs: &[Observation],
        window: RepublishWindow,
    ) -> Republished {
        let state = self.state.lock().await;
        let now = Utc::now();
        let context = ObservationContext {
            now: now.timestamp(),
            // The runs are accounting's, so it need not be asked again.
            given_up: true,
            ..ObservationContext::default()
        };
        let mut republished = Republished::default();
        for observation in runs {
            let decision = observe(run_store, observation, &context);
            for (run, tracked) in decision.changes {
                run_store.put(run, tracked);
            }
            for fact in &decision.facts {
                let own = fact.run.submit_time == observation.run.submit_time
                    && fact.run.task_id == observation.run.task_id;
                let mut job = match own {
                    true => observation.job.clone(),
                    false => other_run(fact, observation),
                };
                let known = state.run_store.get(&fact.run);
                match as_published(fact, &mut job, known) {
                    PublishedForm::Known(fact) if window.has(&fact) => {
                        let event_context = self.republish_context(now, &Cause::Accounting);
                        let event =
                            event_context.event(&fact, observation, job, &observation.owner);
                        republished.events.push(event);
                    }
                    PublishedForm::Unknown if window.has(fact) => {
                        let unknown = (fact.run.clone(), observation.owner.clone());
                        republished.unknown_ends.push(unknown);
                    }
                    PublishedForm::Known(_)
                    | PublishedForm::Unknown
                    | PublishedForm::Unpublished => {}
                }
            }
        }
        republished
    }

    /// Derives the recorded facts of a window about live runs, which accounting may not have yet.
    pub async fn republish_running(&self, window: RepublishWindow) -> Vec<Event> {
        let state = self.state.lock().await;
        let now = Utc::now();
        let cause = Cause::Lookup;
        let event_context = self.republish_context(now, &cause);
        let mut events = Vec::new();
        for (run, tracked) in state
            .run_store
            .iter()
            .filter(|(_, tracked)| !tracked.over())
        {
            let facts = facts_of(&run, tracked);
            let mut facts = facts.into_iter().filter(|fact| window.has(fact)).peekable();
            if facts.peek().is_none() {
                continue;
            }
            let Some((job, owner)): Option<(Job, Owner)> = state.last.get(&run) else {
                continue;
            };
            events.extend(
                facts.map(|fact| event_context.event_without_reading(&fact, job.clone(), &owner)),
            );
        }
        events
    }

    /// Returns Slurm's ids of runs that ended within the window, but not according to `run_store`. Accounting does not list by time what
    /// never became eligible, and learns of an end some seconds after slurmctld has reported it.
    pub async fn ended_but_not_in(
        &self,
        run_store: &RunStore,
        window: RepublishWindow,
    ) -> Vec<u32> {
        let state = self.state.lock().await;
        let ended = |tracked: &&RunState| {
            let end = tracked.end.as_ref();
            end.is_some_and(|end| window.has_time(end.at))
        };
        let runs = state.run_store.iter().map(|(_, tracked)| tracked);
        runs.filter(ended)
            .map(|tracked| tracked.raw_id)
            .filter(|raw_id| {
                let runs = run_store.by_raw_id(*raw_id);
                !runs
                    .iter()
                    .any(|run| run_store.get(run).is_some_and(RunState::over))
            })
            .collect()
    }

    /// Returns Slurm's ids of live runs that have facts in the window, were not read since this ingest became leader, and are not in
    /// `run_store`. Accounting does not list by time what never became eligible.
    pub async fn alive_but_not_in(
        &self,
        run_store: &RunStore,
        window: RepublishWindow,
    ) -> Vec<u32> {
        let state = self.state.lock().await;
        let runs = state.run_store.iter().filter(|(run, tracked)| {
            !tracked.over() && !state.last.has(run) && run_store.get(run).is_none()
        });
        runs.filter(|(run, tracked)| facts_of(run, tracked).iter().any(|fact| window.has(fact)))
            .map(|(_, tracked)| tracked.raw_id)
            .collect()
    }

    /// Keeps the usage of runs whose usage was already published. The rest follows once it is complete.
    pub async fn without_published(&self, used: Vec<RunUsage>) -> Vec<Observation> {
        let state = self.state.lock().await;
        let observations = used.into_iter().map(|settled| settled.observation);
        observations
            .filter(|observation| {
                let tracked = state.run_store.get(&run_of(&state.run_store, observation));
                tracked.is_none_or(|tracked| !tracked.usage_pending)
            })
            .collect()
    }

    fn republish_context<'a>(
        &'a self,
        now: chrono::DateTime<Utc>,
        cause: &'a Cause,
    ) -> EventContext<'a> {
        EventContext {
            // Every republished event is marked as late.
            late_after: -1,
            usage_after: 0,
            ..self.event_context(now, cause)
        }
    }
}

/// Returns jobs whose runs ended within the window and lack their usage.
pub fn without_usage(run_store: &RunStore, window: RepublishWindow) -> Vec<JobRef> {
    let is_pending = |tracked: &RunState| {
        let end = tracked.end.as_ref();
        tracked.usage_pending && end.is_some_and(|end| window.has_time(end.at))
    };
    let runs = run_store.iter().filter(|(_, tracked)| is_pending(tracked));
    runs.filter_map(|(run, tracked)| job_of(&run, tracked))
        .collect()
}

fn facts_of(run: &RunKey, tracked: &RunState) -> Vec<Fact> {
    let fact = |kind, slot, at| Fact {
        run: run.clone(),
        kind,
        id: FactId::Recorded(slot),
        at: Some(at),
        seq: 0,
        inferred: false,
        previous_state: String::new(),
        restart_count: tracked.restart_count,
        continues: None,
        array_tasks: String::new(),
        allocation: None,
    };
    let mut facts = Vec::new();
    if tracked.submitted && (tracked.waits || tracked.is_array) {
        facts.push(fact(
            EventType::JobSubmitted,
            Slot::Submitted,
            run.submit_time,
        ));
    }
    if let Some(at) = tracked.started {
        facts.push(Fact {
            // The payload is of a later time, with the allocation after the resize.
            inferred: !tracked.rare.resized.is_empty(),
            ..fact(EventType::JobStarted, Slot::Started, at)
        });
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::End;

    #[test]
    fn an_end_is_republished_as_it_was_published() {
        let row = Fact {
            kind: EventType::JobRequeued,
            inferred: true,
            ..fact(FactId::Recorded(Slot::End), Some(190))
        };
        let form = |known: Option<&RunState>| {
            let mut job = Job {
                state: "REQUEUED".to_owned(),
                ..Job::default()
            };
            match as_published(&row, &mut job, known) {
                PublishedForm::Known(fact) => {
                    let end = job.end_time.unwrap().seconds;
                    assert_eq!(fact.at, Some(end));
                    format!("{} {} {end} {}", fact.kind, job.state, fact.inferred)
                }
                other => format!("{other:?}"),
            }
        };
        let end = |event, at, inferred| End {
            event,
            at,
            inferred,
        };
        let mut known = RunState::default();
        assert_eq!(form(None), "Unknown");
        assert_eq!(form(Some(&known)), "Unpublished");
        known.end = Some(end(None, 300, true));
        assert_eq!(form(Some(&known)), "Unpublished");
        known.end = Some(end(Some(EventType::JobTimeout), 120, false));
        assert_eq!(form(Some(&known)), "job.timeout TIMEOUT 120 false");
        // The correction has an id of its own.
        known.rare.first_end = Some(end(Some(EventType::JobRequeued), 180, true));
        assert_eq!(form(Some(&known)), "job.requeued REQUEUED 180 true");
    }

    fn fact(id: FactId, at: Option<i64>) -> Fact {
        Fact {
            id,
            at,
            ..Fact::sample(EventType::JobStarted)
        }
    }

    #[test]
    fn only_facts_recorded_within_the_time_are_republished() {
        let window = RepublishWindow { from: 100, to: 200 };
        for (id, at, rediscoverable) in [
            (FactId::Recorded(Slot::Started), Some(100), true),
            (FactId::Recorded(Slot::End), Some(200), true),
            (FactId::Recorded(Slot::Resized(150)), Some(150), true),
            (FactId::Recorded(Slot::Started), Some(99), false),
            (FactId::Recorded(Slot::Started), Some(201), false),
            (FactId::Recorded(Slot::Started), None, false),
            (
                FactId::Recorded(Slot::TasksCancelled(150)),
                Some(150),
                false,
            ),
            (FactId::Sampled(1), Some(150), false),
        ] {
            assert_eq!(window.has(&fact(id, at)), rediscoverable, "{id:?} {at:?}");
        }
    }
}
