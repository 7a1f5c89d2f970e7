//! Builds events from facts.

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::event::v1::{
    Actor, ActorKind, Confidence, Correlation, Entity, Event, Owner, Source, event::Payload,
};
use mesh_events::proto::mesh::job::v1::{Continuation, Job, JobEvent};
use mesh_events::{EventId, EventType, SCHEMA_VERSION, Slot, timestamp};
use slurm_types::SubmitKey;

use crate::domain::{self, Canceller, Fact, FactId, Observation, payload};
use crate::identity::IdentityResolver;

/// What caused a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A hook, by name.
    Hook(String),
    /// A poll, by number.
    Poll(u64),
    /// An answer of accounting.
    Accounting,
    /// A follow-up read of ingest itself, without a doorbell.
    Lookup,
}

impl Cause {
    const fn source(&self) -> Source {
        match self {
            Self::Hook(_) => Source::Hook,
            Self::Poll(_) | Self::Lookup => Source::Sweep,
            Self::Accounting => Source::Accounting,
        }
    }

    fn detail(&self, over_rest: bool) -> String {
        match self {
            Self::Hook(hook) => hook.clone(),
            _ if over_rest => "slurmrestd".to_owned(),
            Self::Poll(_) => "squeue".to_owned(),
            Self::Accounting => "sacct".to_owned(),
            Self::Lookup => "scontrol".to_owned(),
        }
    }
}

/// Context shared by all events of one observation.
pub struct EventContext<'a> {
    /// Current time.
    pub now: DateTime<Utc>,
    /// What caused the read.
    pub cause: &'a Cause,
    /// Whether Slurm was read through slurmrestd.
    pub over_rest: bool,
    /// Age in seconds beyond which a fact counts as late.
    pub late_after: i64,
    /// Additional age in seconds beyond which usage counts as late.
    pub usage_after: i64,
    /// Resolves users to identities.
    pub identities: &'a IdentityResolver,
}

impl EventContext<'_> {
    /// Builds the event of a fact, with the payload of its run.
    pub fn event(
        &self,
        fact: &Fact,
        observation: &Observation,
        job: Job,
        owner: &domain::Owner,
    ) -> Event {
        self.build(fact, observation.cancelled_by.as_ref(), job, owner)
    }

    /// Builds the event of a fact that no observation shows.
    pub fn event_without_reading(&self, fact: &Fact, job: Job, owner: &domain::Owner) -> Event {
        self.build(fact, None, job, owner)
    }

    fn build(
        &self,
        fact: &Fact,
        cancelled_by: Option<&Canceller>,
        mut job: Job,
        owner: &domain::Owner,
    ) -> Event {
        let occurred = fact
            .at
            .and_then(|at| DateTime::from_timestamp(at, 0))
            .unwrap_or(self.now);
        if let Some(allocation) = &fact.allocation {
            allocation.apply_to(&mut job);
        }
        if fact.kind == EventType::JobStarted && job.start_time.is_none() {
            // An inferred start, which no record has.
            job.start_time = fact.at.map(payload::seconds);
        }
        payload::limit(&mut job);
        job.attempt = fact.run.attempt;
        job.run = fact.run.entity_key();
        job.restarts = fact.restart_count;
        let is_array = job
            .array
            .as_ref()
            .is_some_and(|array| array.task_id.is_none());
        let late_after = match fact.kind {
            EventType::JobUpdated => self.late_after.saturating_add(self.usage_after),
            _ => self.late_after,
        };
        let (corrects, continues) = (corrected(fact), &fact.continues);
        let correlated = continues
            .as_ref()
            .map(|continues| EventId::recorded(&continues.run, Slot::End).to_string());
        let event_ids: Vec<String> = correlated.into_iter().chain(corrects.clone()).collect();
        let entities = trigger_run(fact.kind, &job);
        Event {
            id: fact.event_id().to_string(),
            id_source: fact.id_source(),
            cluster: fact.run.cluster.clone(),
            r#type: fact.kind.to_string(),
            occurred_at: Some(timestamp(occurred)),
            observed_at: Some(timestamp(self.now)),
            source: self.cause.source().into(),
            source_detail: self.cause.detail(self.over_rest),
            confidence: if fact.inferred {
                Confidence::Inferred
            } else {
                Confidence::Observed
            }
            .into(),
            late: (self.now - occurred).num_seconds() > late_after,
            correlation: (!event_ids.is_empty() || !entities.is_empty()).then_some(Correlation {
                event_ids,
                entities,
            }),
            owner: Some(self.owner(owner)),
            actor: self.actor(fact, cancelled_by, &job, owner),
            entity: Some(Entity {
                kind: if is_array { "array" } else { "job" }.to_owned(),
                key: fact.run.entity_key(),
            }),
            run_seq: fact.seq,
            schema_version: SCHEMA_VERSION,
            payload: Some(Payload::Job(JobEvent {
                job: Some(job),
                previous_state: fact.previous_state.clone(),
                continues: continues.as_ref().map(|continues| Continuation {
                    run: continues.run.entity_key(),
                    cause: continues.cause.clone(),
                }),
                corrects: corrects.unwrap_or_default(),
                array_tasks: fact.array_tasks.clone(),
            })),
        }
    }

    fn owner(&self, owner: &domain::Owner) -> Owner {
        Owner {
            user: owner.user.clone(),
            uid: owner.uid,
            account: owner.account.clone(),
            identity: self.identities.get(&owner.user),
        }
    }

    /// The actor, for another user's job.
    fn other_user(&self, by: &Canceller, owner: &domain::Owner) -> Actor {
        let actors = self.identities.actors();
        let user = match by {
            Canceller::Uid(uid) => actors.name(*uid),
            Canceller::Name(name) => name.clone(),
        };
        let coordinates = *by != Canceller::Uid(0) && actors.coordinates(&user, &owner.account);
        let kind = if coordinates {
            ActorKind::Coordinator
        } else {
            ActorKind::Admin
        };
        Actor {
            kind: kind.into(),
            identity: self.identities.get(&user),
            user,
            job: String::new(),
        }
    }

    /// Returns the actor, if Slurm reports one. slurmctld's record does not have the canceller of a job; accounting does.
    fn actor(
        &self,
        fact: &Fact,
        cancelled_by: Option<&Canceller>,
        job: &Job,
        owner: &domain::Owner,
    ) -> Option<Actor> {
        let of = |kind: ActorKind| {
            Some(Actor {
                kind: kind.into(),
                ..Actor::default()
            })
        };
        let the_owner = || {
            Some(Actor {
                kind: ActorKind::User.into(),
                user: owner.user.clone(),
                identity: self.identities.get(&owner.user),
                job: String::new(),
            })
        };
        match fact.kind {
            EventType::JobSubmitted if fact.continues.is_none() => the_owner(),
            EventType::JobHeld => match job.reason.as_str() {
                "JobHeldUser" => the_owner(),
                "JobHeldAdmin" => of(ActorKind::Admin),
                _ => of(ActorKind::System),
            },
            EventType::JobCancelled | EventType::JobCorrected => match cancelled_by? {
                by if by.is(owner) => the_owner(),
                by => Some(self.other_user(by, owner)),
            },
            EventType::JobPreempted => of(ActorKind::Preemptor),
            EventType::JobStarted
            | EventType::JobTimeout
            | EventType::JobOutOfMemory
            | EventType::JobNodeFail
            | EventType::JobBootFail
            | EventType::JobDeadline
            | EventType::JobRevoked => of(ActorKind::System),
            _ => None,
        }
    }
}

fn corrected(fact: &Fact) -> Option<String> {
    match fact.id {
        FactId::Correction(first, _) => Some(first.to_string()),
        FactId::Recorded(_) | FactId::Sampled(_) => None,
    }
}

/// Builds the payload for a fact about a run other than the observed one: an array, seen through its task, or an earlier run.
pub fn other_run(fact: &Fact, observation: &Observation) -> Job {
    if fact.run.task_id.is_none() && observation.run.task_id.is_some() {
        return payload::array_of_task(&observation.job, &fact.run);
    }
    let mut job = observation.job.clone();
    job.submit_time = Some(payload::seconds(fact.run.submit_time));
    (job.start_time, job.expected_start_time) = (None, None);
    job
}

/// The run of a trigger that submitted the job, by the key in its comment. The comment is the owner's text: the run itself names its job.
fn trigger_run(kind: EventType, job: &Job) -> Vec<String> {
    let key = (kind == EventType::JobSubmitted).then(|| SubmitKey::in_comment(&job.comment));
    let entity = key.flatten().map(|key| format!("trigger/{key}"));
    entity.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Config;

    fn context(identities: &IdentityResolver, over_rest: bool) -> EventContext<'_> {
        EventContext {
            now: Utc::now(),
            cause: &Cause::Accounting,
            over_rest,
            late_after: 0,
            usage_after: 0,
            identities,
        }
    }

    #[test]
    fn a_canceller_without_a_known_uid_is_an_actor_by_name() {
        let identities = IdentityResolver::new(None, &Config::default());
        let context = context(&identities, true);
        let coordinates = [("carol".to_owned(), ["ml".to_owned()].into())];
        identities.actors().set_coordinators(coordinates.into());
        let owner = domain::Owner {
            user: "alice".to_owned(),
            uid: Some(7),
            account: "ml".to_owned(),
        };
        let fact = Fact::sample(EventType::JobCancelled);
        let actor = |by: Option<Canceller>| {
            let event = context.build(&fact, by.as_ref(), Job::default(), &owner);
            let actor = event.actor?;
            Some((actor.kind(), actor.user))
        };
        let named = |name: &str| Some(Canceller::Name(name.to_owned()));
        let is = |kind, user: &str| Some((kind, user.to_owned()));
        assert_eq!(actor(None), None);
        assert_eq!(actor(named("alice")), is(ActorKind::User, "alice"));
        assert_eq!(actor(Some(Canceller::Uid(7))), is(ActorKind::User, "alice"));
        assert_eq!(actor(named("carol")), is(ActorKind::Coordinator, "carol"));
        assert_eq!(actor(named("bob")), is(ActorKind::Admin, "bob"));
    }

    #[test]
    fn a_submission_names_the_run_of_the_trigger_that_its_comment_begins_with() {
        let identities = IdentityResolver::new(None, &Config::default());
        let context = context(&identities, false);
        let key = SubmitKey::new("alice/align", 1, "event", 0);
        let entities = |kind, comment: String| {
            let job = Job {
                comment,
                ..Job::default()
            };
            let event = context.build(&Fact::sample(kind), None, job, &domain::Owner::default());
            event.correlation.unwrap_or_default().entities
        };
        let named = vec![format!("trigger/{key}")];
        let submitted = EventType::JobSubmitted;
        assert_eq!(entities(submitted, format!("{key} of mine")), named);
        assert!(entities(submitted, format!("of mine {key}")).is_empty());
        assert!(entities(EventType::JobStarted, key.to_string()).is_empty());
    }

    #[test]
    fn an_inferred_start_has_its_time_in_the_payload() {
        let identities = IdentityResolver::new(None, &Config::default());
        let context = context(&identities, false);
        let start_time = |kind| {
            let fact = Fact {
                at: Some(120),
                ..Fact::sample(kind)
            };
            let event = context.build(&fact, None, Job::default(), &domain::Owner::default());
            event.job().unwrap().start_time
        };
        assert_eq!(
            start_time(EventType::JobStarted),
            Some(payload::seconds(120))
        );
        assert_eq!(start_time(EventType::JobRequeued), None);
    }
}
