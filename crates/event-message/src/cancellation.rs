//! Cancellations whose actor is not known yet.
//!
//! slurmctld does not say who cancelled a job; accounting does, some seconds later, as `job.corrected`. A chat that leaves out what its reader
//! did waits for that, a bounded time. Without a correction the cancellation is sent then, after one that names somebody else at once.

use chrono::TimeDelta;
use event_filter::{Filter, TypeSet};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{Actor, ActorKind};
use mesh_events::{Event, EventType, from_timestamp};

use crate::pending::{PREFIX, PendingNotice};

/// Maximum wait. ingest reads accounting ten seconds after the end, and at most once a second.
const MAX_WAIT: TimeDelta = TimeDelta::seconds(30);
/// The only topic of such a notice.
const TOPIC: &str = "cancelled";

/// The notice for a cancellation without actor, if the filter leaves out those by the owner. `None` for other events.
pub fn notice(filter: &Filter, event: &Event) -> Option<PendingNotice> {
    let is_open = event.kind().ok()? == EventType::JobCancelled && event.actor.is_none();
    let observed = event.observed_at.as_ref().and_then(from_timestamp);
    (is_open && filter.excludes_routine()).then(|| PendingNotice {
        key: key(&event.id),
        topic: TOPIC.to_owned(),
        due: observed.and_then(|at| at.checked_add_signed(MAX_WAIT)),
    })
}

/// Who cancelled a job, as a correction names them.
#[derive(Clone, Debug, PartialEq)]
pub struct Canceller<'a> {
    /// Id of the event about the cancellation.
    pub cancelled: &'a str,
    /// The actor.
    pub actor: &'a Actor,
}

impl<'a> Canceller<'a> {
    /// The canceller that an event names.
    pub fn of(kind: EventType, event: &'a Event) -> Option<Self> {
        let actor = event.actor.as_ref()?;
        match &event.payload {
            Some(Payload::Job(job)) if kind == EventType::JobCorrected => Some(Self {
                cancelled: &job.corrects,
                actor,
            }),
            _ => None,
        }
    }

    /// Key of the notice that waits for it.
    pub fn key(&self) -> String {
        key(self.cancelled)
    }

    /// Whether the owner did it, so that the notice is needless.
    pub fn is_owner(&self) -> bool {
        self.actor.kind() == ActorKind::User
    }
}

/// Key of the notice that a cost belongs to, if the run was cancelled. cost-engine names the event about the end as its source.
pub fn key_of_cost(kind: EventType, event: &Event) -> Option<String> {
    (kind == EventType::CostFinalized).then(|| key(&event.source_detail))
}

/// Types that name the actor later.
pub fn companions(filter: &Filter) -> TypeSet {
    let is_needed = filter.excludes_routine() && filter.selects(EventType::JobCancelled);
    let corrected = is_needed.then_some(EventType::JobCorrected);
    corrected.into_iter().collect()
}

fn key(id: &str) -> String {
    format!("{PREFIX}cancelled/{id}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use event_filter::{TypePattern, sample};

    use super::*;

    fn by(kind: ActorKind) -> Option<Actor> {
        Some(Actor {
            kind: kind.into(),
            ..Actor::default()
        })
    }

    fn filter() -> Filter {
        let types = [TypePattern::One(EventType::JobCancelled)];
        Filter::new(&types, &[], &[])
    }

    #[test]
    fn a_cancellation_without_actor_waits_for_it_where_the_owners_are_left_out() {
        let default = filter().without_routine(Duration::ZERO);
        let mut cancelled = sample::event(EventType::JobCancelled);
        cancelled.actor = None;
        let found = notice(&default, &cancelled).unwrap();
        let observed = cancelled.observed_at.as_ref().and_then(from_timestamp);
        assert_eq!(found.due, observed.map(|at| at + MAX_WAIT));
        assert!(crate::pending::is_key(&found.key));
        assert_eq!(notice(&filter(), &cancelled), None, "named types");
        cancelled.actor = by(ActorKind::Admin);
        assert_eq!(notice(&default, &cancelled), None);
        let failed = sample::event(EventType::JobFailed);
        assert_eq!(notice(&default, &failed), None);
        assert!(companions(&default).contains(EventType::JobCorrected));
        assert!(companions(&filter()).is_empty());
    }

    #[test]
    fn a_correction_names_the_canceller() {
        let default = filter().without_routine(Duration::ZERO);
        let mut cancelled = sample::event(EventType::JobCancelled);
        cancelled.actor = None;
        let key = notice(&default, &cancelled).unwrap().key;
        let mut corrected = sample::event(EventType::JobCorrected);
        if let Some(Payload::Job(job)) = &mut corrected.payload {
            job.corrects.clone_from(&cancelled.id);
        }
        for (kind, is_owner) in [(ActorKind::User, true), (ActorKind::Admin, false)] {
            corrected.actor = by(kind);
            let canceller = Canceller::of(EventType::JobCorrected, &corrected).unwrap();
            assert_eq!(
                (canceller.key(), canceller.is_owner()),
                (key.clone(), is_owner)
            );
            assert_eq!(canceller.cancelled, cancelled.id);
        }
        corrected.actor = None;
        assert_eq!(Canceller::of(EventType::JobCorrected, &corrected), None);
        let mut cost = sample::event(EventType::CostFinalized);
        cost.source_detail.clone_from(&cancelled.id);
        assert_eq!(key_of_cost(EventType::CostFinalized, &cost), Some(key));
    }
}
