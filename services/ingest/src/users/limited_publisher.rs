//! Publishes what follows from doorbells about people, limited per user and minute.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mesh_bus::{Bus, Disposition};
use mesh_events::Event;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use crate::metrics;

/// Maximum number of users with login events per minute. Further users wait.
const MAX_LOGINS_PER_MINUTE: usize = 10_000;
const MINUTE: Duration = Duration::from_secs(60);
/// Number of minutes whose logins may arrive at once, for each user: as many as an hour without NATS leaves in the spool.
const MAX_MINUTES_AT_ONCE: u32 = 60;

pub(super) struct LimitedPublisher {
    bus: Bus,
    budget: Mutex<LoginLimiter>,
    shutdown: CancellationToken,
}

impl LimitedPublisher {
    pub(super) fn new(bus: Bus, per_minute: u32, shutdown: CancellationToken) -> Self {
        Self {
            bus,
            budget: Mutex::new(LoginLimiter::new(per_minute)),
            shutdown,
        }
    }

    /// Publishes the event of a doorbell. The minute is the one that the doorbell claims.
    pub(super) async fn publish(&self, event: Event, user: &str, minute: i64) -> Disposition {
        let verdict = self
            .budget
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take(user, minute, Instant::now());
        match verdict {
            LoginVerdict::Publish => {}
            LoginVerdict::Drop => {
                metrics::doorbell("limited");
                return Disposition::Ack;
            }
            LoginVerdict::Postponed => {
                metrics::doorbell("delayed");
                return Disposition::Nak { after: MINUTE };
            }
        }
        let kind = event.kind();
        let span = tracing::info_span!(parent: None, "ingest.fact", event.id = event.id, event.r#type = event.r#type, cluster = event.cluster);
        span.follows_from(Span::current());
        let published = self
            .bus
            .publish_all_traced(vec![(event, span)], &self.shutdown);
        match published.await {
            Ok(_) => {
                if let Ok(kind) = kind {
                    metrics::fact(kind);
                }
                metrics::doorbell("answered");
                Disposition::Ack
            }
            Err(error) => {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "event of a doorbell not published, retrying"
                );
                let after = Duration::from_secs(1);
                Disposition::Nak { after }
            }
        }
    }
}

/// Verdict on a login, or on a report of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoginVerdict {
    Publish,
    /// Its user logs in too often.
    Drop,
    /// Too many users log in; retry later.
    Postponed,
}

/// Number of logins that arrived in this minute.
struct LoginLimiter {
    per_minute: u32,
    began: Option<Instant>,
    /// By user and minute of the login.
    used: HashMap<(String, i64), u32>,
    /// Those within that limit, by user.
    arrived: HashMap<String, u32>,
}

impl LoginLimiter {
    fn new(per_minute: u32) -> Self {
        Self {
            per_minute,
            began: None,
            used: HashMap::new(),
            arrived: HashMap::new(),
        }
    }

    fn take(&mut self, user: &str, minute: i64, now: Instant) -> LoginVerdict {
        if self
            .began
            .is_none_or(|began| now.saturating_duration_since(began) >= MINUTE)
        {
            self.began = Some(now);
            self.used.clear();
            self.arrived.clear();
        }
        let key = (user.to_owned(), minute);
        if self.used.len() >= MAX_LOGINS_PER_MINUTE && !self.used.contains_key(&key) {
            return LoginVerdict::Postponed;
        }
        let used = self.used.entry(key).or_default();
        *used = used.saturating_add(1);
        if *used > self.per_minute {
            return LoginVerdict::Drop;
        }
        let arrived = self.arrived.entry(user.to_owned()).or_default();
        *arrived = arrived.saturating_add(1);
        match *arrived <= self.per_minute.saturating_mul(MAX_MINUTES_AT_ONCE) {
            true => LoginVerdict::Publish,
            false => LoginVerdict::Drop,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_users_flood_limits_no_other_user() {
        let (mut budget, now) = (LoginLimiter::new(2), Instant::now());
        let taken: Vec<LoginVerdict> = (0..3).map(|_| budget.take("alice", 7, now)).collect();
        assert_eq!(
            taken,
            [
                LoginVerdict::Publish,
                LoginVerdict::Publish,
                LoginVerdict::Drop
            ]
        );
        assert_eq!(budget.take("bob", 7, now), LoginVerdict::Publish);
        assert_eq!(budget.take("alice", 7, now + MINUTE), LoginVerdict::Publish);
    }

    #[test]
    fn an_hour_of_logins_that_arrive_at_once_is_published() {
        let (mut budget, now) = (LoginLimiter::new(1), Instant::now());
        assert!((0..60).all(|minute| budget.take("svc", minute, now) == LoginVerdict::Publish));
    }

    #[test]
    fn claimed_minutes_do_not_multiply_what_is_published() {
        let (mut budget, now) = (LoginLimiter::new(2), Instant::now());
        let published = (0..5_000)
            .filter(|n| budget.take("alice", n / 2, now) == LoginVerdict::Publish)
            .count();
        assert_eq!(published, 2 * 60);
        assert_eq!(budget.take("bob", 7, now), LoginVerdict::Publish);
        assert_eq!(
            budget.take("alice", 2_600, now + MINUTE),
            LoginVerdict::Publish
        );
    }

    #[test]
    fn invented_users_are_bounded_together() {
        let (mut budget, now) = (LoginLimiter::new(1), Instant::now());
        let emitted = (0..MAX_LOGINS_PER_MINUTE)
            .all(|n| budget.take(&n.to_string(), 7, now) == LoginVerdict::Publish);
        assert!(emitted && budget.take("one more", 7, now) == LoginVerdict::Postponed);
    }
}
