//! `smesh wait ID EVENT`: decides by events alone, and never queries Slurm.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant};

use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::{Category, Event, EventType};
use serde_json::Value;

use super::events::{follow, head};
use crate::cli::{self, Global};
use crate::client::{Query, segment};
use crate::error::Error;
use crate::{settings, show};

/// Exit status if the job ended without the event.
const EXIT_OTHER_END: u8 = 2;
/// Exit status after `--timeout`.
const EXIT_TIMEOUT: u8 = 3;
/// How long a preempted or failed-over job may take to return to the queue.
const END_GRACE_PERIOD: Duration = Duration::from_secs(15);

/// The awaited event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AwaitedEvent {
    /// The end of the job, of any kind.
    End,
    /// An event of this type.
    Event(EventType),
}

impl FromStr for AwaitedEvent {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text == "end" || text == "job.end" {
            return Ok(Self::End);
        }
        let full = if text.contains('.') {
            text.to_owned()
        } else {
            format!("job.{text}")
        };
        full.parse().map(Self::Event).map_err(|_| {
            let event_names: Vec<&str> = EventType::ALL
                .iter()
                .filter(|kind| kind.category().as_str() == "job")
                .map(|kind| kind.event())
                .collect();
            Error::Usage(format!(
                "EVENT {text:?} is not a job event; allowed: end, {}, and cost.finalized",
                event_names.join(", ")
            ))
        })
    }
}

/// State of the wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitState {
    /// It may still happen.
    Open,
    /// It has happened.
    Happened,
    /// The job has ended without the event.
    Impossible,
    /// The run ended in a way after which Slurm may requeue the job. Its next `submitted` would follow within moments.
    Unsettled,
}

/// Follows a job's events until the outcome is decided. Pure.
///
/// A job may have several runs one after the other (requeue, preemption, node failure), and several records at once (array tasks,
/// components). It has ended when each of its records has ended finally.
#[derive(Debug)]
pub struct Waiter {
    goal: AwaitedEvent,
    /// Records of the job by job id (of an array: its tasks and its remainder). The value is the end of the newest run, `None` while
    /// it is alive.
    records: BTreeMap<u32, Option<EventType>>,
    happened: bool,
    seen: BTreeSet<String>,
}

impl Waiter {
    /// Waits for a goal.
    pub const fn new(goal: AwaitedEvent) -> Self {
        Self {
            goal,
            records: BTreeMap::new(),
            happened: false,
            seen: BTreeSet::new(),
        }
    }

    /// Applies an event of the job. Duplicates have no effect.
    pub fn apply(&mut self, event: &Event) -> WaitState {
        let (Ok(kind), Some(job)) = (event.kind(), event.job()) else {
            return self.state();
        };
        if !self.seen.insert(event.id.clone()) {
            return self.state();
        }
        if self.goal == AwaitedEvent::Event(kind) {
            self.happened = true;
        }
        let Some(Payload::Job(_)) = &event.payload else {
            return self.state();
        };
        match kind {
            kind if kind.is_end() => {
                self.records.insert(job.job_id, Some(kind));
            }
            EventType::JobSubmitted | EventType::JobStarted | EventType::JobBaseline => {
                // Events of a run arrive in order, but its start may arrive late, after its end.
                let run_is_over = self.seen.contains(&end_marker(&job.run));
                if !run_is_over {
                    self.records.insert(job.job_id, None);
                }
            }
            _ => {}
        }
        if kind.is_end() {
            self.seen.insert(end_marker(&job.run));
        }
        self.state()
    }

    /// Present state of the wait.
    pub fn state(&self) -> WaitState {
        if self.happened {
            return WaitState::Happened;
        }
        let ends: Option<Vec<EventType>> = self.records.values().copied().collect();
        let Some(ends) =
            ends.filter(|ends| !ends.is_empty() && !ends.contains(&EventType::JobRequeued))
        else {
            return WaitState::Open;
        };
        match self.goal {
            // Events that follow the end of a job stay possible after it.
            AwaitedEvent::Event(kind) if !is_decided_by_end(kind) => WaitState::Open,
            _ if ends.iter().any(|end| may_go_on(*end)) => WaitState::Unsettled,
            AwaitedEvent::End => WaitState::Happened,
            AwaitedEvent::Event(_) => WaitState::Impossible,
        }
    }

    /// State after the grace period without a requeue.
    fn settled(&self) -> WaitState {
        match (self.state(), self.goal) {
            (WaitState::Unsettled, AwaitedEvent::End) => WaitState::Happened,
            (WaitState::Unsettled, AwaitedEvent::Event(_)) => WaitState::Impossible,
            (state, _) => state,
        }
    }
}

/// True for ends after which Slurm may requeue the job by itself.
const fn may_go_on(end: EventType) -> bool {
    matches!(
        end,
        EventType::JobPreempted | EventType::JobNodeFail | EventType::JobBootFail
    )
}

fn is_decided_by_end(kind: EventType) -> bool {
    kind.category() == Category::Job
        && !matches!(kind, EventType::JobUpdated | EventType::JobCorrected)
}

fn end_marker(run: &str) -> String {
    format!("end of {run}")
}

pub(super) async fn run(global: &Global, args: &cli::Wait) -> Result<ExitCode, Error> {
    let goal: AwaitedEvent = args.event.parse()?;
    let decided = decide(global, args, goal);
    match args.timeout {
        None => decided.await,
        Some(timeout) => match tokio::time::timeout(timeout, decided).await {
            Ok(decided) => decided,
            Err(_) => {
                anstream::eprintln!(
                    "{} of job {} has not happened within {}",
                    args.event,
                    args.job,
                    humantime::format_duration(timeout)
                );
                Ok(ExitCode::from(EXIT_TIMEOUT))
            }
        },
    }
}

async fn decide(global: &Global, args: &cli::Wait, goal: AwaitedEvent) -> Result<ExitCode, Error> {
    let client = settings::client(global)?;
    let cluster = settings::cluster(global)?;
    let mut waiter = Waiter::new(goal);
    let mut last = None;
    // Read before the history, so that entries appended meanwhile arrive with the stream.
    let after = head(&client).await?;
    let path = format!(
        "/v1/jobs/{}/{}",
        segment(&cluster),
        segment(&args.job.to_string())
    );
    match client.get(&path, &Query::new()).await {
        Ok(history) => {
            for entry in history["runs"]
                .as_array()
                .into_iter()
                .flatten()
                .flat_map(|run| run["timeline"].as_array().into_iter().flatten())
            {
                if let Some(event) = show::event(entry) {
                    if waiter.apply(&event) == WaitState::Happened {
                        return finish(global, args, WaitState::Happened, entry);
                    }
                    last = Some(entry.clone());
                }
            }
            if let (WaitState::Impossible, Some(entry)) = (waiter.state(), &last) {
                return finish(global, args, WaitState::Impossible, entry);
            }
        }
        // Not known yet: the job may be in submission.
        Err(Error::Refused { status: 404, .. }) => {}
        Err(error) => return Err(error),
    }
    let query = vec![("cluster", cluster), ("job", args.job.to_string())];
    let waiter = RefCell::new(waiter);
    // Time and event since when the state is unsettled.
    let unsettled = RefCell::new(
        last.filter(|_| waiter.borrow().state() == WaitState::Unsettled)
            .map(|entry| (Instant::now(), entry)),
    );
    let followed = follow(&client, query, after, |entry: Value| {
        let state =
            show::event(&entry).map_or(WaitState::Open, |event| waiter.borrow_mut().apply(&event));
        *unsettled.borrow_mut() =
            (state == WaitState::Unsettled).then(|| (Instant::now(), entry.clone()));
        Ok(matches!(state, WaitState::Happened | WaitState::Impossible).then_some((state, entry)))
    });
    let mut followed = std::pin::pin!(followed);
    loop {
        tokio::select! {
            decided = &mut followed => {
                let (state, entry) = decided?;
                return finish(global, args, state, &entry);
            }
            () = tokio::time::sleep(Duration::from_millis(250)) => {
                let due = unsettled.borrow().clone().filter(|(since, _)| since.elapsed() > END_GRACE_PERIOD);
                if let Some((_, entry)) = due {
                    return finish(global, args, waiter.borrow().settled(), &entry);
                }
            }
        }
    }
}

fn finish(
    global: &Global,
    args: &cli::Wait,
    state: WaitState,
    entry: &Value,
) -> Result<ExitCode, Error> {
    if global.json {
        show::line(&entry["event"])?;
    } else {
        show::line(show::entry(entry))?;
    }
    if state == WaitState::Happened {
        return Ok(ExitCode::SUCCESS);
    }
    anstream::eprintln!(
        "job {} has ended; {} can no longer happen",
        args.job,
        args.event
    );
    Ok(ExitCode::from(EXIT_OTHER_END))
}

#[cfg(test)]
mod tests {
    use mesh_testkit::fixtures;

    use super::*;

    fn after(goal: &str, kinds: &[EventType]) -> WaitState {
        let mut waiter = Waiter::new(goal.parse().unwrap());
        let mut run = 0;
        for kind in kinds {
            let mut job = fixtures::job(7);
            if *kind == EventType::JobSubmitted {
                run += 1;
            }
            job.run = format!("job/7/{}", 1_763_760_000 + run);
            waiter.apply(&fixtures::job_event(*kind, job));
        }
        waiter.state()
    }

    #[test]
    fn it_is_decided_by_what_happened() {
        use EventType::{
            JobCompleted, JobFailed, JobNodeFail, JobRequeued, JobStarted, JobSubmitted,
        };
        for (goal, kinds, expected) in [
            ("started", &[][..], WaitState::Open),
            ("started", &[JobSubmitted], WaitState::Open),
            ("started", &[JobSubmitted, JobStarted], WaitState::Happened),
            (
                "job.started",
                &[JobSubmitted, JobStarted],
                WaitState::Happened,
            ),
            ("completed", &[JobSubmitted, JobStarted], WaitState::Open),
            (
                "completed",
                &[JobSubmitted, JobStarted, JobCompleted],
                WaitState::Happened,
            ),
            (
                "completed",
                &[JobSubmitted, JobStarted, JobFailed],
                WaitState::Impossible,
            ),
            (
                "end",
                &[JobSubmitted, JobStarted, JobFailed],
                WaitState::Happened,
            ),
            (
                "end",
                &[JobSubmitted, JobStarted, JobRequeued],
                WaitState::Open,
            ),
            (
                "end",
                &[JobSubmitted, JobStarted, JobNodeFail],
                WaitState::Unsettled,
            ),
            (
                "end",
                &[JobSubmitted, JobStarted, JobNodeFail, JobSubmitted],
                WaitState::Open,
            ),
            (
                "end",
                &[JobSubmitted, JobStarted, JobRequeued, JobSubmitted],
                WaitState::Open,
            ),
            (
                "completed",
                &[
                    JobSubmitted,
                    JobStarted,
                    JobRequeued,
                    JobSubmitted,
                    JobStarted,
                    JobCompleted,
                ],
                WaitState::Happened,
            ),
            (
                "cost.finalized",
                &[JobSubmitted, JobStarted, JobCompleted],
                WaitState::Open,
            ),
        ] {
            assert_eq!(after(goal, kinds), expected, "{goal} after {kinds:?}");
        }
    }

    #[test]
    fn an_end_that_arrives_before_its_start_is_final() {
        use EventType::{JobCompleted, JobStarted};
        let mut waiter = Waiter::new(AwaitedEvent::End);
        waiter.apply(&fixtures::job_event(
            JobCompleted,
            fixtures::ended(fixtures::job(7), "COMPLETED", 5),
        ));
        assert_eq!(
            waiter.apply(&fixtures::job_event(JobStarted, fixtures::job(7))),
            WaitState::Happened
        );
    }

    #[test]
    fn an_array_has_ended_when_all_its_tasks_have() {
        use EventType::{JobCompleted, JobStarted};
        let mut waiter = Waiter::new(AwaitedEvent::End);
        for id in [7, 8] {
            waiter.apply(&fixtures::job_event(JobStarted, fixtures::job(id)));
        }
        assert_eq!(
            waiter.apply(&fixtures::job_event(
                JobCompleted,
                fixtures::ended(fixtures::job(7), "COMPLETED", 5)
            )),
            WaitState::Open
        );
        assert_eq!(
            waiter.apply(&fixtures::job_event(
                JobCompleted,
                fixtures::ended(fixtures::job(8), "COMPLETED", 5)
            )),
            WaitState::Happened
        );
    }

    #[test]
    fn unknown_events_are_refused_with_the_list() {
        let error = "begun".parse::<AwaitedEvent>().unwrap_err().to_string();
        assert!(
            error.contains("started") && error.contains("end"),
            "{error}"
        );
    }
}
