//! Builds events from changes.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::event::v1::{
    Actor, ActorKind, Confidence, Entity as EventEntity, Event, IdSource, Owner, Source,
    event::Payload,
};
use mesh_events::proto::mesh::user::v1::UserEvent;
use mesh_events::{EventId, EventType, SCHEMA_VERSION, timestamp};
use slurm_client::Transaction;

use super::access::{Association, Entity};
use super::diff::{Change, Kind};
use crate::identity::{IdentityResolver, UserIdentity};

/// Context shared by all events of one poll.
pub struct AccessEventContext<'a> {
    /// Cluster name.
    pub cluster: &'a str,
    /// Current time.
    pub now: DateTime<Utc>,
    /// Age in seconds beyond which a fact counts as late.
    pub late_after: i64,
    /// Source of the access: `sacctmgr` or `slurmrestd`.
    pub asked: &'static str,
    /// Resolves users to identities.
    pub identities: &'a IdentityResolver,
}

impl AccessEventContext<'_> {
    /// Builds the event of a change of access, the `n`th about this user or account.
    pub fn access(&self, change: &Change, by: Option<&Transaction>, n: u64) -> Event {
        let kind = match change.kind {
            Kind::Granted => EventType::UserAccessGranted,
            Kind::Changed => EventType::UserAccessChanged,
            Kind::Revoked => EventType::UserAccessRevoked,
        };
        let removed = change.kind == Kind::Revoked && change.attribute == "Account";
        let association = change.association.as_ref();
        let left = association.filter(|_| !removed);
        let user_event = UserEvent {
            user: change.entity.user().to_owned(),
            account: change.account.clone(),
            attribute: change.attribute.clone(),
            before: change.before.clone(),
            after: change.after.clone(),
            partition: association.map_or_else(String::new, |one| one.partition.clone()),
            association: association.map_or(0, |one| one.id),
            qos: left.map_or_else(Vec::new, qos),
            settings: left.map_or_else(BTreeMap::new, settings),
            transaction: by.map_or(0, |entry| entry.id),
            login: None,
            quota: None,
            notice: None,
        };
        let occurred = by.and_then(|entry| DateTime::from_timestamp(entry.time.as_secs(), 0));
        Event {
            occurred_at: Some(timestamp(occurred.unwrap_or(self.now))),
            late: occurred.is_some_and(|at| (self.now - at).num_seconds() > self.late_after),
            source: Source::Accounting.into(),
            source_detail: self.asked.to_owned(),
            owner: self.owner(change.entity.user(), &change.account),
            actor: by.map(|entry| self.actor(&entry.actor, change.entity.user())),
            ..self.sampled(&change.entity, kind, n, user_event)
        }
    }

    /// Builds the event of a Unix user whose identity became known, changed, or is not known any more.
    pub fn linked(
        &self,
        user: &str,
        before: Option<&UserIdentity>,
        after: Option<&UserIdentity>,
        n: u64,
    ) -> Event {
        let values =
            |person: Option<&UserIdentity>| person.map_or_else(String::new, ToString::to_string);
        let user_event = UserEvent {
            user: user.to_owned(),
            attribute: "Identity".to_owned(),
            before: values(before),
            after: values(after),
            ..UserEvent::default()
        };
        let owner = Owner {
            user: user.to_owned(),
            identity: after.map(UserIdentity::to_identity),
            ..Owner::default()
        };
        let entity = Entity::User(user.to_owned());
        Event {
            source: Source::Derived.into(),
            source_detail: after.or(before).map_or_else(String::new, |known_identity| {
                known_identity.provenance.clone()
            }),
            owner: Some(owner),
            ..self.sampled(&entity, EventType::UserIdentityLinked, n, user_event)
        }
    }

    fn sampled(&self, entity: &Entity, kind: EventType, n: u64, user_event: UserEvent) -> Event {
        let key = entity.to_string();
        Event {
            id: EventId::sampled(self.cluster, &key, kind, n).to_string(),
            id_source: IdSource::sampled(n),
            cluster: self.cluster.to_owned(),
            r#type: kind.to_string(),
            occurred_at: Some(timestamp(self.now)),
            observed_at: Some(timestamp(self.now)),
            confidence: Confidence::Observed.into(),
            entity: Some(EventEntity {
                kind: entity.kind().to_owned(),
                key,
            }),
            run_seq: n,
            schema_version: SCHEMA_VERSION,
            payload: Some(Payload::User(user_event)),
            ..Event::default()
        }
    }

    /// Returns the owner; `None` for accounts, which have none.
    fn owner(&self, user: &str, account: &str) -> Option<Owner> {
        (!user.is_empty()).then(|| Owner {
            user: user.to_owned(),
            account: account.to_owned(),
            identity: self.identities.get(user),
            ..Owner::default()
        })
    }

    fn actor(&self, by: &str, user: &str) -> Actor {
        let kind = if by == user {
            ActorKind::User
        } else {
            ActorKind::Admin
        };
        Actor {
            kind: kind.into(),
            user: by.to_owned(),
            identity: self.identities.get(by),
            job: String::new(),
        }
    }
}

fn qos(association: &Association) -> Vec<String> {
    association.qos.iter().cloned().collect()
}

fn settings(association: &Association) -> BTreeMap<String, String> {
    let settings = association.settings.iter();
    settings
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}
