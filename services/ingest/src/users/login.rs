//! Logins: the only event that follows from a doorbell alone, since Slurm does not know logins.
//!
//! Its only source is a message of the NATS user `hook`, whose credential mesh-hook has. So it is marked as inferred, and limited per
//! user and minute of the login, as the doorbell claims it: logins that were spooled while NATS was unavailable are published, too. What
//! arrives in a minute for a user is limited as well, because a forger can claim any minute, and old times are refused.
//! The event id is derived from the doorbell's id, so a doorbell that is delivered twice is published twice with the same id.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use mesh_bus::{Bus, Disposition};
use mesh_events::proto::mesh::event::v1::{
    Actor, ActorKind, Confidence, Entity, Event, IdSource, Owner, Source, event::Payload,
};
use mesh_events::proto::mesh::hook::v1::Doorbell;
use mesh_events::proto::mesh::user::v1::{LoginSession, UserEvent};
use mesh_events::{EventId, EventType, SCHEMA_VERSION, from_timestamp, timestamp};
use tokio_util::sync::CancellationToken;

use super::limited_publisher::LimitedPublisher;
use crate::identity::IdentityResolver;
use crate::metrics;

/// Name of the hook.
pub const HOOK_NAME: &str = "Pam";
/// Longest name of a user or host, and of the other fields.
const MAX_NAME_BYTES: usize = 256;
/// Maximum lead of another host's clock.
const MAX_CLOCK_SKEW: TimeDelta = TimeDelta::seconds(60);
/// Maximum age of a login: events stay on the bus as long.
const MAX_AGE: TimeDelta = TimeDelta::days(14);

/// Publishes logins.
pub struct Logins {
    cluster: String,
    publisher: LimitedPublisher,
    identities: Arc<IdentityResolver>,
    late_after: i64,
}

impl Logins {
    /// Creates the publisher, with a limit per minute and user.
    pub fn new(
        cluster: &str,
        bus: Bus,
        identities: Arc<IdentityResolver>,
        per_minute: u32,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            cluster: cluster.to_owned(),
            publisher: LimitedPublisher::new(bus, per_minute, shutdown),
            identities,
            late_after: 60,
        }
    }

    /// Handles a doorbell of the PAM hook.
    pub async fn request(&self, doorbell: &Doorbell) -> Disposition {
        let event = match self.event(doorbell) {
            Ok(event) => event,
            Err(problem) => {
                metrics::doorbell("unusable");
                return Disposition::DeadLetter {
                    reason: format!("doorbell of a login: {problem}"),
                };
            }
        };
        let user = doorbell.login.as_ref().map_or("", |login| &login.user);
        let minute = doorbell.called_at.as_ref().map_or(0, |at| at.seconds / 60);
        self.publisher.publish(event, user, minute).await
    }

    fn event(&self, doorbell: &Doorbell) -> Result<Event, &'static str> {
        let id = EventId::of_doorbell(&doorbell.id, EventType::UserLogin)
            .ok_or("its id is not a UUID")?;
        let login = doorbell.login.as_ref().ok_or("it has no login")?;
        if doorbell.cluster != self.cluster {
            return Err("it is from another cluster");
        }
        if login.user.is_empty() {
            return Err("it has no user");
        }
        let texts = [
            &login.user,
            &login.remote_host,
            &login.service,
            &login.tty,
            &doorbell.host,
        ];
        if texts
            .iter()
            .any(|text| text.len() > MAX_NAME_BYTES || text.contains(char::is_control))
        {
            return Err("a name is longer than 256 bytes or contains control characters");
        }
        let now = Utc::now();
        let called = doorbell.called_at.as_ref().and_then(from_timestamp);
        let called = called.ok_or("it has no time")?;
        check_time(called, now)?;
        let identity = self.identities.get(&login.user);
        Ok(Event {
            id: id.to_string(),
            id_source: IdSource::of_doorbell(&doorbell.id),
            cluster: self.cluster.clone(),
            r#type: EventType::UserLogin.to_string(),
            occurred_at: Some(timestamp(called)),
            observed_at: Some(timestamp(now)),
            source: Source::Hook.into(),
            source_detail: HOOK_NAME.to_owned(),
            confidence: Confidence::Inferred.into(),
            late: (now - called).num_seconds() > self.late_after,
            owner: Some(Owner {
                user: login.user.clone(),
                identity: identity.clone(),
                ..Owner::default()
            }),
            actor: Some(Actor {
                kind: ActorKind::User.into(),
                user: login.user.clone(),
                identity,
                job: String::new(),
            }),
            entity: Some(Entity {
                kind: "login".to_owned(),
                key: format!("login/{}", doorbell.id.to_ascii_lowercase()),
            }),
            run_seq: 1,
            schema_version: SCHEMA_VERSION,
            payload: Some(Payload::User(UserEvent {
                user: login.user.clone(),
                login: Some(LoginSession {
                    host: doorbell.host.clone(),
                    remote_host: login.remote_host.clone(),
                    service: login.service.clone(),
                    tty: login.tty.clone(),
                }),
                ..UserEvent::default()
            })),
            ..Event::default()
        })
    }
}

/// Checks that a doorbell is not older than events on the bus, nor from the future.
pub(super) fn check_time(called: DateTime<Utc>, now: DateTime<Utc>) -> Result<(), &'static str> {
    if called - now > MAX_CLOCK_SKEW {
        return Err("its time is in the future; are the clocks right?");
    }
    if now - called > MAX_AGE {
        return Err("its time is more than 14 days ago; are the clocks right?");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_of_any_time_is_not_believed() {
        let now = Utc::now();
        let is_believed = |age: TimeDelta| check_time(now - age, now).is_ok();
        assert!(is_believed(TimeDelta::days(13)) && is_believed(TimeDelta::seconds(-50)));
        assert!(!is_believed(TimeDelta::days(15)) && !is_believed(TimeDelta::seconds(-70)));
    }
}
