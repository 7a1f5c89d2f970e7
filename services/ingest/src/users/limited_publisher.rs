//! Publishes what follows from doorbells about people, limited per user and minute.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mesh_bus::{Bus, Disposition};
use mesh_events::Event;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use super::login::{LoginLimiter, LoginVerdict};
use crate::metrics;

const MINUTE: Duration = Duration::from_secs(60);

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
