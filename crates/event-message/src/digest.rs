//! Aggregates an array's tasks into a few messages: the first start, the first failure, progress from time to time,
//! and a final summary.
//!
//! Ten thousand tasks produce twenty thousand events. Readers want to know that the array started, that something
//! fails, and how it ended. A [`Digest`] accepts the events of one array in any order, with duplicates. It counts
//! every task once and decides when to send a message. Every counted task is eventually reported. The frequency is
//! bounded: the pauses between messages double, up to a day.
//!
//! - The last run of a task counts. Runs are ordered by submit time (docs/reference/job-events.md, 1), and events of
//!   older runs are ignored.
//! - A run that ended `requeued` does not end its task. Requeued tasks are counted separately.
//! - Tasks are stored as bitmaps, and a task's run only if it differs from the array's first. A digest of 100,000
//!   tasks that ran once takes some hundred bytes, and never more than a few MB.
//! - Whether all tasks have ended is known only if the list of tasks was complete: Slurm truncates long ones.
//!   Otherwise a quiet period ends the digest.
//!
//! The digest has no clock: `now` is an argument, and [`Digest::due`] returns when to call [`Digest::tick`].

mod runs;
mod summary;
mod tasks;

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use event_filter::{fields::cut, price};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::job::v1::{ArrayInfo, Job};
use mesh_events::{Event, EventType, RunKey};
use serde::{Deserialize, Serialize};
use slurm_types::TaskSet;

use crate::schedule::is_due;

use runs::{RunOrder, TaskRuns};
pub use summary::{DigestReason, Summary};
pub use tasks::Tasks;

/// Cause of a run that was requeued. The task has not ended.
const REQUEUED: &str = "requeued";
/// Maximum currencies with sums.
const MAX_CURRENCIES: usize = 4;

/// When messages are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DigestSchedule {
    /// Quiet period after the last task has ended. Costs arrive a little later, and a task may be requeued.
    pub settle: TimeDelta,
    /// Pause between progress messages, doubled after each up to `longest`.
    pub pause: TimeDelta,
    /// Maximum pause.
    pub longest: TimeDelta,
}

impl DigestSchedule {
    /// For separate messages.
    pub const MESSAGES: Self = Self {
        settle: TimeDelta::seconds(10),
        pause: TimeDelta::minutes(10),
        longest: TimeDelta::days(1),
    };
    /// For one message that is updated.
    pub const CURRENT: Self = Self {
        settle: TimeDelta::seconds(10),
        pause: TimeDelta::seconds(15),
        longest: TimeDelta::seconds(15),
    };
}

/// State of one array at one endpoint, stored as JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Digest {
    /// Id of the replay that publishes the events.
    #[serde(default)]
    replay: Option<String>,
    array: u32,
    cluster: String,
    name: String,
    user: String,
    partition: String,
    #[serde(default)]
    email: Option<String>,
    #[serde(default)]
    person: Option<String>,
    /// Known tasks.
    known: Tasks,
    /// True once a complete list of tasks was seen.
    whole: bool,
    /// The current run of each task.
    runs: TaskRuns,
    started: Tasks,
    /// Ended tasks by cause.
    ended: BTreeMap<String, Tasks>,
    /// Tasks that were requeued at least once.
    #[serde(default)]
    requeued: Tasks,
    /// The last run of each task whose cost is included in the sums.
    costed: TaskRuns,
    micros: BTreeMap<String, i64>,
    first_failure: Option<String>,
    #[serde(rename = "told_first")]
    sent_first: bool,
    #[serde(rename = "told_failure")]
    sent_failure: bool,
    /// Messages sent so far. Numbers them.
    messages: u32,
    /// Pauses so far.
    pauses: u32,
    changed_at: Option<DateTime<Utc>>,
    #[serde(rename = "told_at")]
    sent_at: Option<DateTime<Utc>>,
    /// True if the current event changed a count.
    #[serde(skip)]
    touched: bool,
}

/// Key of the digest for an event. `None` for events that are sent individually.
pub fn key(kind: EventType, event: &Event) -> Option<String> {
    let of_digest = matches!(
        kind,
        EventType::JobSubmitted | EventType::JobStarted | EventType::CostFinalized
    ) || kind.is_end();
    let array = event.job()?.array.as_ref()?;
    of_digest.then(|| format!("digest/{}/{}", event.cluster, array.job_id))
}

impl Digest {
    /// A digest for the events of a replay.
    pub fn replayed(replay: &str) -> Self {
        Self {
            replay: Some(replay.to_owned()),
            ..Self::default()
        }
    }

    /// Adds an event. Returns a summary if one must be sent immediately to an endpoint that requests these types.
    pub fn apply(
        &mut self,
        kind: EventType,
        event: &Event,
        asked: impl Fn(EventType) -> bool,
        now: DateTime<Utc>,
    ) -> Vec<Summary> {
        let Some(job) = event.job() else {
            return Vec::new();
        };
        let Some(array) = job.array.as_ref() else {
            return Vec::new();
        };
        self.introduce(event, job, array);
        self.touched = false;
        match (kind, array.task_id) {
            (EventType::CostFinalized, Some(task)) => self.cost(task, job, event),
            (EventType::CostFinalized, None) => {}
            (EventType::JobSubmitted, None) => self.list(&array.tasks),
            (EventType::JobSubmitted, Some(task)) => {
                self.enter(task, job);
            }
            (EventType::JobStarted, Some(task)) => self.start(task, job),
            (kind, Some(task)) if kind.is_end() => self.end(task, kind, job),
            (kind, None) if kind.is_end() => self.end_listed(kind, event, job),
            _ => {}
        }
        if self.touched {
            self.changed_at = Some(now);
        }
        let mut sent = Vec::new();
        if !self.sent_first && !self.started.is_empty() {
            self.sent_first = true;
            sent.push(self.summarize(DigestReason::First));
        }
        if !self.sent_failure && self.has_failed(asked) {
            self.sent_failure = true;
            sent.push(self.summarize(DigestReason::Failing));
        }
        if !sent.is_empty() && self.sent_at.is_none() {
            self.sent_at = Some(now);
        }
        sent
    }

    /// When the next message may be due.
    pub fn due(&self, pace: &DigestSchedule) -> Option<DateTime<Utc>> {
        let changed = self.changed_at?;
        if self.is_done() {
            return Some(changed + pace.settle);
        }
        let doubled = pace.pause * 2_i32.pow(self.pauses.min(10));
        let pause = doubled.min(pace.longest);
        Some(self.sent_at.unwrap_or(changed) + pause)
    }

    /// True if a message is due.
    pub fn is_due(&self, pace: &DigestSchedule, now: DateTime<Utc>) -> bool {
        let planned_at = self.changed_at.max(self.sent_at);
        let due = self.due(pace).zip(planned_at);
        due.is_some_and(|(due, planned_at)| is_due(due, planned_at, now))
    }

    /// Returns the summary that is due, if any.
    pub fn tick(&mut self, pace: &DigestSchedule, now: DateTime<Utc>) -> Option<Summary> {
        if !self.is_due(pace, now) {
            return None;
        }
        let moment = if self.is_done() {
            DigestReason::Done
        } else {
            self.pauses = self.pauses.saturating_add(1);
            DigestReason::Progress
        };
        self.changed_at = None;
        self.sent_at = Some(now);
        Some(self.summarize(moment))
    }

    /// True if nothing is unsent and nothing more is expected. The digest may be removed once no more events of the
    /// array can arrive.
    pub fn is_over(&self) -> bool {
        self.changed_at.is_none() && self.is_done()
    }

    fn summarize(&mut self, moment: DigestReason) -> Summary {
        self.messages += 1;
        let causes = self
            .ended
            .iter()
            .filter(|(cause, tasks)| *cause != REQUEUED && !tasks.is_empty())
            .map(|(cause, tasks)| (cause.clone(), tasks.len()))
            .collect();
        let mut failed = Tasks::default();
        for (cause, tasks) in &self.ended {
            if is_failure(cause) {
                failed.add(tasks);
            }
        }
        let ended = self.counted();
        let in_work = self.started.len_without(self.ended.values());
        Summary {
            moment,
            number: self.messages,
            replay: self.replay.clone(),
            array: self.array,
            cluster: self.cluster.clone(),
            name: self.name.clone(),
            user: self.user.clone(),
            partition: self.partition.clone(),
            email: self.email.clone(),
            person: self.person.clone(),
            known: self.known.len(),
            whole: self.whole,
            ended,
            running: in_work,
            causes,
            failed: failed.len(),
            failed_tasks: failed.ranges(300),
            requeued: self.requeued.len(),
            first_failure: self.first_failure.clone(),
            micros: self.micros.clone(),
        }
    }

    fn introduce(&mut self, event: &Event, job: &Job, array: &ArrayInfo) {
        self.array = array.job_id;
        if self.cluster.is_empty() {
            let user = event.owner.as_ref().map_or("", |owner| owner.user.as_str());
            self.cluster = cut(&event.cluster, 80);
            self.name = cut(&job.name, 80);
            self.user = cut(user, 80);
            self.partition = cut(&job.partition, 80);
            let identity = event
                .owner
                .as_ref()
                .and_then(|owner| owner.identity.as_ref());
            let email = identity.map(|identity| identity.email.clone());
            self.email = email.filter(|email| (1..=320).contains(&email.len()));
            let person = identity.map(|identity| cut(&identity.name, 80));
            self.person = person.filter(|person| !person.is_empty());
        }
    }

    /// Adds a list of tasks, e.g. `0-9999`.
    fn list(&mut self, tasks: &str) {
        if let Ok(set) = tasks.parse::<TaskSet>() {
            set.iter().for_each(|task| self.known.insert(task));
            self.whole |= !set.truncated && !set.is_empty();
        }
    }

    /// Records the run of a task. Returns false if a later run is known.
    fn enter(&mut self, task: u32, job: &Job) -> bool {
        self.known.insert(task);
        match self.runs.enter(task, order(job)) {
            RunOrder::Older => return false,
            RunOrder::Same => {}
            RunOrder::Newer => {
                self.touched |= self.has_ended(task);
                self.started.remove(task);
                self.ended.values_mut().for_each(|tasks| tasks.remove(task));
            }
        }
        true
    }

    /// True if a task failed with one of the requested types.
    fn has_failed(&self, asked: impl Fn(EventType) -> bool) -> bool {
        self.ended.iter().any(|(cause, tasks)| {
            is_failure(cause) && !tasks.is_empty() && kind_of(cause).is_some_and(&asked)
        })
    }

    fn has_ended(&self, task: u32) -> bool {
        self.ended.values().any(|tasks| tasks.contains(task))
    }

    fn start(&mut self, task: u32, job: &Job) {
        if self.enter(task, job) && !self.has_ended(task) {
            self.touched |= !self.started.contains(task);
            self.started.insert(task);
        }
    }

    fn end(&mut self, task: u32, kind: EventType, job: &Job) {
        if kind == EventType::JobRequeued {
            self.touched |= !self.requeued.contains(task);
            self.requeued.insert(task);
        }
        if !self.enter(task, job) || self.has_ended(task) {
            return;
        }
        let cause = cause(kind, job);
        if is_failure(&cause) && self.first_failure.is_none() {
            let node = if job.failed_node.is_empty() {
                &job.nodes
            } else {
                &job.failed_node
            };
            self.first_failure = Some(format!("task {task} on {}: {cause}", cut(node, 80)));
        }
        self.touched = true;
        self.ended.entry(cause).or_default().insert(task);
    }

    /// Ends the tasks that were not yet jobs of their own, when the array itself ends.
    fn end_listed(&mut self, kind: EventType, event: &Event, job: &Job) {
        let Some(Payload::Job(payload)) = &event.payload else {
            return;
        };
        let listed = payload.array_tasks.parse::<TaskSet>().unwrap_or_default();
        for task in listed.iter() {
            self.end(task, kind, job);
        }
    }

    fn cost(&mut self, task: u32, job: &Job, event: &Event) {
        let Some(Payload::Cost(cost)) = &event.payload else {
            return;
        };
        let Some(total) = price::total(cost) else {
            return;
        };
        // Costs may arrive out of order. That of an earlier run is not added after a later one, so a sum is never too
        // high.
        if self.costed.enter(task, order(job)) != RunOrder::Newer {
            return;
        }
        if self.micros.len() < MAX_CURRENCIES || self.micros.contains_key(&total.currency) {
            let sum = self.micros.entry(cut(&total.currency, 8)).or_default();
            *sum = sum.saturating_add(total.micros);
        }
    }

    /// Number of ended tasks.
    fn counted(&self) -> u64 {
        let ended = self.ended.iter().filter(|(cause, _)| *cause != REQUEUED);
        ended.map(|(_, tasks)| tasks.len()).sum()
    }

    fn is_done(&self) -> bool {
        self.whole && self.counted() >= self.known.len()
    }
}

/// A number that orders the runs of a task.
fn order(job: &Job) -> i64 {
    // The cluster does not affect the order.
    RunKey::parse("", &job.run).map_or(0, |run| {
        run.submit_time * 64 + i64::from(run.attempt.min(63))
    })
}

/// Cause of an end. The set of values is limited to a few hundred.
fn cause(kind: EventType, job: &Job) -> String {
    match (kind, &job.exit_code) {
        (EventType::JobFailed, Some(exit)) if exit.signal != 0 => {
            format!("signal {}", exit.signal.min(127))
        }
        (EventType::JobFailed, Some(exit)) if exit.code != 0 => {
            format!("exit code {}", exit.code.min(255))
        }
        _ => kind.event().replace('_', " "),
    }
}

/// The event type that has this cause.
fn kind_of(cause: &str) -> Option<EventType> {
    if cause.starts_with("signal ") || cause.starts_with("exit code ") {
        return Some(EventType::JobFailed);
    }
    let mut ends = EventType::ALL.iter().filter(|kind| kind.is_end());
    ends.find(|kind| kind.event().replace('_', " ") == cause)
        .copied()
}

fn is_failure(cause: &str) -> bool {
    !matches!(
        cause,
        "completed" | "cancelled" | "revoked" | "preempted" | REQUEUED
    )
}

#[cfg(test)]
mod tests;
