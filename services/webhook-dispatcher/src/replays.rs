//! Per message of an endpoint's consumer of replays: an event that somebody had told once more, for this endpoint.
//!
//! The endpoint's filter counts, its greatest age does not, and what was delivered before is delivered again: it is remembered once for
//! each replay. Arrays are told as digests where they always are.

use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use mesh_bus::{Handler, Message, Outcome};
use mesh_events::cloudevents::HEADER_REPLAY;
use mesh_events::{Event, EventType};

use crate::adapters::store::Delivery;
use crate::domain::names;
use crate::error::Error;
use crate::lane::Lane;

/// While the database does not work, messages stay on the bus.
const PAUSE: Duration = Duration::from_secs(5);

/// Handles the replays of one endpoint.
pub struct Replayed(pub Arc<Lane>);

impl Handler for Replayed {
    async fn handle(&self, message: &Message) -> Outcome {
        let reject = |reason: String| Outcome::Reject { reason };
        let event = match self.0.shared.facts.read(&message.body) {
            Ok(event) => event,
            Err(error) => return reject(mesh_runtime::chain(&error)),
        };
        let kind = match event.kind() {
            Ok(kind) => kind,
            Err(error) => return reject(error.to_string()),
        };
        let Some(replay) = message.header(HEADER_REPLAY) else {
            return reject(format!("no header {HEADER_REPLAY}"));
        };
        if self.0.may_send().is_err() {
            // Readiness says why; once per message would say it a thousand times.
            return Outcome::Retry { after: PAUSE };
        }
        match self.take(kind, &event, replay, message).await {
            Ok(()) => Outcome::Done,
            Err(Error::NotOurs(_) | Error::Halted(_)) => Outcome::Retry { after: PAUSE },
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    endpoint = self.0.endpoint.name,
                    "replayed delivery stays on the bus"
                );
                Outcome::Retry { after: PAUSE }
            }
        }
    }
}

impl Replayed {
    async fn take(
        &self,
        kind: EventType,
        event: &Event,
        replay: &str,
        message: &Message,
    ) -> Result<(), Error> {
        let lane = &self.0;
        let endpoint = &lane.endpoint;
        if lane.digest(kind, event, Some(replay)).await? {
            return Ok(());
        }
        let told_alone = !lane.companions.contains(&kind) && endpoint.format.takes(kind, event);
        if !told_alone || !endpoint.filter.matches(kind, event) {
            return Ok(());
        }
        let id = names::replayed(replay, &event.id);
        if lane.shared.store.knows(&endpoint.name, &id).await? {
            return Ok(());
        }
        let delivery = Delivery::of(&endpoint.name, id, event, message, Utc::now());
        lane.deliver(delivery, None).await
    }
}
