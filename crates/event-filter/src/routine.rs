//! Routine events: they are of the default types of chats, but are no news to the reader.
//!
//! - A start without a wait: the user has just submitted the job.
//! - A cancellation by the job's owner.
//! - A preemption after which Slurm requeues the job.
//!
//! Endpoints that name their types receive them all.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use mesh_events::proto::mesh::event::v1::ActorKind;
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::{Event, EventType, from_timestamp};

/// True for a routine event. Waits shorter than the threshold count as no wait.
pub fn is_routine(kind: EventType, event: &Event, threshold: Duration) -> bool {
    let Some(job) = event.job() else {
        return false;
    };
    match kind {
        EventType::JobStarted => {
            let started = job.start_time.as_ref().and_then(from_timestamp);
            let waited = started.zip(waits_since(job)).map(|(at, since)| at - since);
            let threshold = TimeDelta::from_std(threshold).unwrap_or(TimeDelta::MAX);
            waited.is_some_and(|waited| waited < threshold)
        }
        EventType::JobCancelled => {
            let actor = event.actor.as_ref();
            actor.is_some_and(|actor| actor.kind() == ActorKind::User)
        }
        EventType::JobPreempted => job.requeueable,
        _ => false,
    }
}

/// When a job became pending and eligible.
pub fn waits_since(job: &Job) -> Option<DateTime<Utc>> {
    let times = [&job.submit_time, &job.eligible_time];
    let times = times.into_iter().flatten().filter_map(from_timestamp);
    times.max()
}

#[cfg(test)]
mod tests {
    use mesh_events::proto::mesh::event::v1::Actor;
    use mesh_events::proto::mesh::event::v1::event::Payload;
    use mesh_events::timestamp;

    use super::*;
    use crate::sample;

    const THRESHOLD: Duration = Duration::from_secs(900);

    fn event(kind: EventType, change: impl FnOnce(&mut Job)) -> Event {
        let mut event = sample::event(kind);
        if let Some(Payload::Job(payload)) = &mut event.payload {
            change(payload.job.as_mut().unwrap());
        }
        event
    }

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::seconds(1_763_760_000 + seconds)
    }

    #[test]
    fn a_start_is_news_after_a_wait() {
        let started = |eligible: Option<i64>, start: Option<i64>| {
            event(EventType::JobStarted, |job| {
                job.submit_time = Some(timestamp(at(0)));
                job.eligible_time = eligible.map(|seconds| timestamp(at(seconds)));
                job.start_time = start.map(|seconds| timestamp(at(seconds)));
            })
        };
        for (eligible, start, is_news) in [
            (None, Some(1), false),
            (None, Some(899), false),
            (Some(1), Some(901), true),
            // Started at the requested begin time.
            (Some(7_200), Some(7_205), false),
            (Some(7_200), Some(8_100), true),
            (None, None, true),
        ] {
            let event = started(eligible, start);
            let routine = is_routine(EventType::JobStarted, &event, THRESHOLD);
            assert_eq!(!routine, is_news, "{eligible:?} {start:?}");
            assert!(!is_routine(EventType::JobStarted, &event, Duration::ZERO));
        }
    }

    #[test]
    fn what_the_owner_did_and_what_slurm_mends_is_no_news() {
        for (kind, is_news) in [
            (Some(ActorKind::User), false),
            (Some(ActorKind::Admin), true),
            (Some(ActorKind::Coordinator), true),
            (Some(ActorKind::System), true),
            (None, true),
        ] {
            let cancelled = Event {
                actor: kind.map(|kind| Actor {
                    kind: kind.into(),
                    ..Actor::default()
                }),
                ..sample::event(EventType::JobCancelled)
            };
            let routine = is_routine(EventType::JobCancelled, &cancelled, THRESHOLD);
            assert_eq!(!routine, is_news, "{kind:?}");
        }
        for requeueable in [false, true] {
            let preempted = event(EventType::JobPreempted, |job| job.requeueable = requeueable);
            let routine = is_routine(EventType::JobPreempted, &preempted, THRESHOLD);
            assert_eq!(routine, requeueable);
        }
        for kind in [EventType::JobFailed, EventType::NodeDown] {
            assert!(!is_routine(kind, &sample::event(kind), THRESHOLD));
        }
    }
}
