//! Events that a new snapshot causes: a job waits beyond its P90, or its expected start moves.

use chrono::{DateTime, TimeDelta, Utc};
use mesh_events::proto::mesh::queue::v1::Explanation;
use mesh_events::{Event, EventId, timestamp};

use super::PendingRun;
use crate::domain::pending_job::ClusterView;
use crate::domain::reason_text::{MAX_SUMMARY_CHARS, clip, moment};

/// Shortest interval between two events about the expected start of a job.
pub const MIN_ESTIMATE_EVENT_INTERVAL: TimeDelta = TimeDelta::minutes(10);

/// What a snapshot changed in a run.
#[derive(Debug, Default)]
pub struct SnapshotUpdate {
    /// True if its state has changed.
    pub is_changed: bool,
    /// Event to publish.
    pub event: Option<Event>,
}

/// Updates a pending run from a new snapshot.
pub fn apply_snapshot(
    run: &mut PendingRun,
    cluster: &str,
    view: ClusterView<'_>,
    now: DateTime<Utc>,
) -> SnapshotUpdate {
    let was_known = run.first_p90.is_some();
    let event =
        late_event(run, cluster, view, now).or_else(|| moved_start_event(run, cluster, view, now));
    SnapshotUpdate {
        is_changed: event.is_some() || run.first_p90.is_some() != was_known,
        event,
    }
}

/// An event about a run that waits beyond its first P90, once.
fn late_event(
    run: &mut PendingRun,
    cluster: &str,
    view: ClusterView<'_>,
    now: DateTime<Utc>,
) -> Option<Event> {
    if run.left_at.is_some() || run.class.is_none() || run.is_late {
        return None;
    }
    let Some(first) = run.first_p90 else {
        // Read before it is explained, which costs more.
        view.estimates?.get(&run.job.run)?;
        let p90 = run.explain(view, now).start_p90?;
        run.first_p90 = Some(p90.seconds);
        return None;
    };
    let position = view.queue?.position(&run.job.run)?;
    if now.timestamp() <= first {
        return None;
    }
    let mut explanation = run.explain(view, now);
    if run
        .class
        .is_some_and(|class| class.as_str() != explanation.reason_class)
    {
        return None;
    }
    let by = moment(DateTime::from_timestamp(first, 0)?, now);
    explanation.summary = clip(
        &format!(
            "Later than expected: 9 of 10 such jobs would have started by {by}. {}",
            explanation.summary
        ),
        MAX_SUMMARY_CHARS,
    );
    explanation.changed.push("it waits beyond P90".to_owned());
    run.is_late = true;
    explanation.is_late = true;
    snapshot_event(run, cluster, explanation, position.taken_at, now)
}

/// An event about the expected start of a run, if one is due.
fn moved_start_event(
    run: &mut PendingRun,
    cluster: &str,
    view: ClusterView<'_>,
    now: DateTime<Utc>,
) -> Option<Event> {
    let position = view.queue?.position(&run.job.run)?;
    // A publish time in the future, from a clock that was ahead, does not delay the next event.
    let recent = 0..MIN_ESTIMATE_EVENT_INTERVAL.num_seconds();
    let is_recent = recent.contains(&(now.timestamp() - run.published_at));
    // Before the first explanation there is nothing to update. Afterwards only the start matters, because changes of class arrive as
    // events.
    if run.left_at.is_some() || run.class.is_none() || is_recent && run.start.is_some() {
        return None;
    }
    let start =
        (position.row.expected_start > now.timestamp()).then_some(position.row.expected_start)?;
    if !is_worth_publishing(run.start, start, now.timestamp()) {
        return None;
    }
    let class = run.class;
    let explanation = run.explain(view, now);
    // The scheduler may be about to change the class. Its event arrives once the class has lasted.
    if explanation.expected_start.is_none()
        || class.is_some_and(|class| class.as_str() != explanation.reason_class)
    {
        return None;
    }
    snapshot_event(run, cluster, explanation, position.taken_at, now)
}

/// The event of an explanation that a snapshot caused.
fn snapshot_event(
    run: &mut PendingRun,
    cluster: &str,
    explanation: Explanation,
    taken_at: DateTime<Utc>,
    now: DateTime<Utc>,
) -> Option<Event> {
    let cause: EventId = run.first_cause.parse().ok()?;
    let n = run.next;
    run.next += 1;
    let first = run.first_cause.clone();
    let published = run.publish((cause, n), &first, explanation, now);
    Some(Event {
        cluster: cluster.to_owned(),
        occurred_at: Some(timestamp(taken_at)),
        ..published
    })
}

/// True if an expected start is to be published: it first appears, or moves by more than a fifth of the remaining wait.
pub(super) fn is_worth_publishing(published: Option<i64>, start: i64, now: i64) -> bool {
    let Some(published) = published else {
        return true;
    };
    let left = (published - now).max(0);
    (start - published).abs() * 5 > left
}
