//! The explanations of each pending job, and the rules for publishing a new one.
//!
//! - An event about a pending job is explained if the *class* of its reason differs from the one last published. A reason that the
//!   scheduler has not determined yet is not published. `held` after a release is published again.
//! - A snapshot of the queue causes an event if the expected start first appears, or moves by more than a fifth of the remaining wait.
//!   At most one such event per job is published in [`MIN_ESTIMATE_EVENT_INTERVAL`].
//! - A job that still waits at the first P90 that was estimated for it causes one more event. A new reason or a release ends that bound.
//! - An event older than the newest handled one of its run has no effect, because messages of a run may be handled out of order.
//! - Jobs that left the queue are stored for [`RUN_RETENTION`], so that a redelivered message has no effect.

mod changes;
mod snapshot;

use std::collections::{BTreeMap, VecDeque};

use chrono::{DateTime, TimeDelta, Utc};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{
    Confidence, Correlation, Entity, IdSource, Owner, Source,
};
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::proto::mesh::queue::v1::{Explanation, QueueEvent};
use mesh_events::{Event, EventId, EventType, SCHEMA_VERSION, from_timestamp, timestamp};
use serde::{Deserialize, Serialize};
use slurm_types::ReasonClass;

use super::pending_job::{ClusterView, PendingJob};
use super::queue::QueuePosition;
use super::{explain, progress};

pub use snapshot::{MIN_ESTIMATE_EVENT_INTERVAL, SnapshotUpdate, apply_snapshot};

/// How long a job is stored after it left the queue.
pub const RUN_RETENTION: TimeDelta = TimeDelta::days(1);
/// Number of stored explanations per job.
const MAX_TIMELINE_ENTRIES: usize = 20;

/// State of a run that is or was pending.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PendingRun {
    /// Id of the event that introduced the run. The ids of explanations from snapshots are derived from it.
    pub first_cause: String,
    /// Id of the newest event handled.
    pub last_cause: String,
    /// `run_seq` of the newest event handled.
    pub seq: u64,
    /// Number of the next explanation caused by a snapshot.
    pub next: u64,
    /// Class last published. `None` before the first explanation and after a release.
    pub class: Option<ReasonClass>,
    /// Expected start last published, in Unix seconds.
    pub start: Option<i64>,
    /// Time of the last published explanation, in Unix seconds.
    #[serde(rename = "said_at")]
    pub published_at: i64,
    /// Time when its newest event was handled, in Unix seconds.
    pub heard_at: i64,
    /// Time when it left the queue, in Unix seconds. `None` while it is pending.
    pub left_at: Option<i64>,
    /// Time when its end was handled, in Unix seconds. `None` before.
    #[serde(default)]
    pub ended_at: Option<i64>,
    /// First P90 of its start, in Unix seconds.
    #[serde(default)]
    pub first_p90: Option<i64>,
    /// True once it was published that it waits beyond that.
    #[serde(default)]
    pub is_late: bool,
    /// The job in its newest event.
    #[serde(with = "crate::adapters::protobuf")]
    pub job: Job,
    /// Owner of the job.
    #[serde(with = "crate::adapters::protobuf")]
    pub owner: Owner,
    /// Entity of its events.
    #[serde(with = "crate::adapters::protobuf")]
    pub entity: Entity,
    /// Published explanations, oldest first.
    pub timeline: VecDeque<TimelineEntry>,
}

/// One explanation of a run's timeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TimelineEntry {
    /// Id of the published event.
    pub id: String,
    /// Time of the event.
    pub at: DateTime<Utc>,
    /// Class of the reason.
    pub class: String,
    /// The reason.
    pub reason: String,
    /// Sentence for the owner.
    pub summary: String,
    /// Expected start, if there was one.
    pub expected_start: Option<DateTime<Utc>>,
    /// Time by which half of such jobs start, if it was estimated.
    #[serde(default)]
    pub start_p50: Option<DateTime<Utc>>,
    /// Time by which nine of ten such jobs start, if it was estimated.
    #[serde(default)]
    pub start_p90: Option<DateTime<Utc>>,
    /// What was different from the entry before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<String>,
    /// Amounts that were in its way, by blocker.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub amounts: BTreeMap<String, u64>,
}

impl PendingRun {
    /// The account charged.
    pub fn account(&self) -> &str {
        &self.owner.account
    }

    /// The explanation as of now.
    pub fn explain(&self, view: ClusterView<'_>, now: DateTime<Utc>) -> Explanation {
        if self.left_at.is_some() {
            let heard_at = self.ended_at.or(self.left_at).unwrap_or_default();
            let heard_at = DateTime::from_timestamp(heard_at, 0).unwrap_or_default();
            return progress::explain(&self.job, heard_at, view, now);
        }
        let mut explanation = explain(&self.pending(self.position(view, now), view, now));
        explanation.changed = changes::since(self.timeline.back(), &explanation);
        explanation.is_late = self.is_late;
        explanation
    }

    /// Its position in the newest snapshot.
    pub fn position<'a>(
        &self,
        view: ClusterView<'a>,
        now: DateTime<Utc>,
    ) -> Option<QueuePosition<'a>> {
        let position = view.queue?.position(&self.job.run)?;
        // A snapshot older than the newest event has less information. If the clock was ahead then, the event's time is unknown.
        let was_ahead = self.heard_at > now.timestamp();
        (was_ahead || position.taken_at.timestamp() >= self.heard_at).then_some(position)
    }

    fn pending<'a>(
        &'a self,
        position: Option<QueuePosition<'a>>,
        view: ClusterView<'a>,
        now: DateTime<Utc>,
    ) -> PendingJob<'a> {
        PendingJob {
            job: &self.job,
            user: &self.owner.user,
            account: self.account(),
            position,
            view,
            now,
        }
    }

    fn publish(
        &mut self,
        (origin, n): (EventId, u64),
        cause: &str,
        explanation: Explanation,
        now: DateTime<Utc>,
    ) -> Event {
        let id = EventId::derived(origin, EventType::QueueExplained, n);
        let expected_start = explanation.expected_start.as_ref().and_then(from_timestamp);
        self.start = expected_start.map(|start| start.timestamp());
        self.published_at = now.timestamp();
        if self.timeline.len() == MAX_TIMELINE_ENTRIES {
            self.timeline.pop_front();
        }
        self.timeline.push_back(TimelineEntry {
            id: id.to_string(),
            at: now,
            class: explanation.reason_class.clone(),
            reason: explanation.reason.clone(),
            summary: explanation.summary.clone(),
            expected_start,
            start_p50: explanation.start_p50.as_ref().and_then(from_timestamp),
            start_p90: explanation.start_p90.as_ref().and_then(from_timestamp),
            changed: explanation.changed.clone(),
            amounts: changes::amounts(&explanation),
        });
        Event {
            id: id.to_string(),
            id_source: IdSource::derived(origin, n),
            r#type: EventType::QueueExplained.to_string(),
            occurred_at: Some(timestamp(now)),
            observed_at: Some(timestamp(now)),
            source: Source::Derived.into(),
            source_detail: cause.to_owned(),
            confidence: Confidence::Observed.into(),
            correlation: Some(Correlation {
                event_ids: vec![cause.to_owned()],
                entities: Vec::new(),
            }),
            owner: Some(self.owner.clone()),
            entity: Some(self.entity.clone()),
            run_seq: self.seq,
            schema_version: SCHEMA_VERSION,
            payload: Some(Payload::Queue(QueueEvent {
                job: Some(self.job.clone()),
                explanation: Some(explanation),
            })),
            ..Event::default()
        }
    }
}

/// Meaning of a job event for the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunUpdate {
    /// The job is pending, or its pending state has changed.
    Waits,
    /// It is no longer held.
    Released,
    /// The job runs, has ended, or was never pending.
    Left,
    /// Not related to pending.
    None,
}

fn run_update(kind: EventType, job: &Job) -> RunUpdate {
    match kind {
        // The snapshot may be newer than the event: a job that was noticed late may have ended by now.
        EventType::JobSubmitted
        | EventType::JobPending
        | EventType::JobHeld
        | EventType::JobBaseline
            if job.state == "PENDING" =>
        {
            RunUpdate::Waits
        }
        EventType::JobReleased => RunUpdate::Released,
        EventType::JobBaseline | EventType::JobStarted => RunUpdate::Left,
        kind if kind.is_end() => RunUpdate::Left,
        // Suspend, resume, resize, usage and corrections follow the start.
        _ => RunUpdate::None,
    }
}

/// Result of handling an event.
#[derive(Debug)]
pub enum UpdateOutcome {
    /// Nothing has changed.
    Nothing,
    /// The state has changed, without an event to publish.
    Noted,
    /// The state has changed, and this event is to be published.
    Publish(Box<Event>),
}

/// Handles an event about a job.
pub fn apply_event(
    runs: &mut BTreeMap<String, PendingRun>,
    event: &Event,
    view: ClusterView<'_>,
    now: DateTime<Utc>,
) -> UpdateOutcome {
    let (Ok(kind), Some(job), Ok(cause)) = (event.kind(), event.job(), event.id.parse::<EventId>())
    else {
        return UpdateOutcome::Nothing;
    };
    let news = run_update(kind, job);
    let known = runs.get_mut(&job.run);
    if matches!(&known, Some(run) if run.seq > event.run_seq) {
        return UpdateOutcome::Nothing;
    }
    let run = match (news, known) {
        (RunUpdate::None, _) | (RunUpdate::Left, None) => return UpdateOutcome::Nothing,
        (RunUpdate::Left, Some(run)) => {
            let is_known = if kind.is_end() {
                run.ended_at
            } else {
                run.left_at
            };
            if is_known.is_some() {
                return UpdateOutcome::Nothing;
            }
            run.seq = event.run_seq;
            run.last_cause.clone_from(&event.id);
            run.job = job.clone();
            run.left_at.get_or_insert(now.timestamp());
            run.ended_at = kind.is_end().then(|| now.timestamp());
            return UpdateOutcome::Noted;
        }
        (RunUpdate::Waits | RunUpdate::Released, Some(run)) => run,
        (RunUpdate::Waits | RunUpdate::Released, None) => {
            runs.entry(job.run.clone()).or_insert_with(|| PendingRun {
                first_cause: event.id.clone(),
                last_cause: String::new(),
                seq: 0,
                next: 1,
                class: None,
                start: None,
                published_at: 0,
                heard_at: 0,
                left_at: None,
                ended_at: None,
                first_p90: None,
                is_late: false,
                job: Job::default(),
                owner: Owner::default(),
                entity: Entity::default(),
                timeline: VecDeque::new(),
            })
        }
    };
    if run.last_cause == event.id || run.left_at.is_some() {
        return UpdateOutcome::Nothing;
    }
    run.seq = event.run_seq;
    run.last_cause.clone_from(&event.id);
    run.heard_at = now.timestamp();
    run.job = job.clone();
    run.owner = event.owner.clone().unwrap_or_default();
    run.entity = event.entity.clone().unwrap_or_default();
    if news == RunUpdate::Released {
        run.class = None;
    }
    // No snapshot is newer than this event.
    let pending = run.pending(None, view, now);
    let class = explain::judge(&explain::recognise(job, None), &pending).class;
    if class == ReasonClass::NotEvaluated || run.class == Some(class) {
        return UpdateOutcome::Noted;
    }
    let mut explanation = explain(&pending);
    explanation.changed = changes::since(run.timeline.back(), &explanation);
    run.class = Some(class);
    // The estimate was one for another cause.
    (run.first_p90, run.is_late) = (None, false);
    let published = run.publish((cause, 0), &event.id, explanation, now);
    // Time and reliability are those of the causing event.
    UpdateOutcome::Publish(Box::new(Event {
        cluster: event.cluster.clone(),
        occurred_at: event.occurred_at,
        confidence: event.confidence,
        late: event.late,
        ..published
    }))
}

/// Removes runs that left the queue long ago, or in the far future because the clock was ahead. True if there were any.
pub fn expire(runs: &mut BTreeMap<String, PendingRun>, now: DateTime<Utc>) -> bool {
    let before = runs.len();
    let retention = RUN_RETENTION.num_seconds().unsigned_abs();
    runs.retain(|_, run| {
        run.left_at.is_none_or(|left| {
            let last = run.ended_at.map_or(left, |ended| ended.max(left));
            now.timestamp().abs_diff(last) < retention
        })
    });
    runs.len() != before
}

#[cfg(test)]
mod tests;
