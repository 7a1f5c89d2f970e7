//! Per message of an endpoint's consumer: does it concern the endpoint, was it done before, is it too old, send it, store the outcome.
//!
//! A message is acknowledged when its outcome, or the fact that it waits, is on disk. So no wait holds a place of the consumer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{TimeDelta, Utc};
use mesh_bus::{Handler, Message, Outcome};
use mesh_events::{Event, EventType, from_timestamp};

use crate::adapters::store::{Delivery, State};
use crate::domain::pairing;
use crate::error::Error;
use crate::lane::Lane;

/// While the database does not work, messages stay on the bus.
const PAUSE: Duration = Duration::from_secs(5);

/// An event that the bus gives out again while it is handled is looked at again so soon.
const BUSY: Duration = Duration::from_secs(1);

/// Handles the messages of one endpoint.
pub struct Intake(pub Arc<Lane>);

impl Handler for Intake {
    async fn handle(&self, message: &Message) -> Outcome {
        let event = match self.0.shared.facts.read(&message.body) {
            Ok(event) => event,
            Err(error) => {
                return Outcome::Reject {
                    reason: mesh_runtime::chain(&error),
                };
            }
        };
        let kind = match event.kind() {
            Ok(kind) => kind,
            Err(error) => {
                return Outcome::Reject {
                    reason: error.to_string(),
                };
            }
        };
        if self.0.may_send().is_err() {
            // Readiness says why; once per message would say it a thousand times.
            return Outcome::Retry { after: PAUSE };
        }
        let Some(_under_way) = self.0.begin(&event.id) else {
            return Outcome::Retry { after: BUSY };
        };
        match self.take(kind, &event, message).await {
            Ok(()) => Outcome::Done,
            Err(Error::NotOurs(_) | Error::Halted(_)) => Outcome::Retry { after: PAUSE },
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    endpoint = self.0.endpoint.name,
                    "delivery stays on the bus"
                );
                Outcome::Retry { after: PAUSE }
            }
        }
    }
}

impl Intake {
    async fn take(&self, kind: EventType, event: &Event, message: &Message) -> Result<(), Error> {
        let lane = &self.0;
        if lane.digest(kind, event, None).await? {
            return Ok(());
        }
        if lane.companions.contains(&kind) {
            return self.join(kind, event, message).await;
        }
        if !lane.endpoint.filter.matches(kind, event)
            || lane
                .shared
                .store
                .knows(&lane.endpoint.name, &event.id)
                .await?
        {
            return Ok(());
        }
        let now = Utc::now();
        let mut delivery = Delivery::of(&lane.endpoint.name, event.id.clone(), event, message, now);
        delivery.trace = message.header("traceparent").unwrap_or_default().to_owned();
        if lane.is_too_old(event, now) {
            delivery.state = State::Expired;
            return lane.store(delivery).await;
        }
        if !lane.endpoint.format.takes(kind, event) {
            tracing::debug!(event.id = event.id, "nothing that the format tells");
            return Ok(());
        }
        if lane.endpoint.format.is_chat() {
            let cost = pairing::awaits(kind, event).filter(|_| !lane.shared.cost_wait.is_zero());
            if let Some(pair) = cost {
                match lane.costs.take(&pair, Instant::now()) {
                    Some(cost) => delivery.cost = Some(cost),
                    None => return self.park(delivery, pair).await,
                }
            }
        }
        let observed = event.observed_at.as_ref().and_then(from_timestamp);
        lane.deliver(delivery, observed).await
    }

    /// Lets a message wait for its cost.
    async fn park(&self, mut delivery: Delivery, pair: String) -> Result<(), Error> {
        let lane = &self.0;
        let wait = TimeDelta::from_std(lane.shared.cost_wait).unwrap_or_default();
        delivery.next_at = Some(delivery.created_at + wait);
        delivery.pair = Some(pair.clone());
        lane.store(delivery).await?;
        // The cost may have come meanwhile.
        if let Some(cost) = lane.costs.take(&pair, Instant::now())
            && lane.join_cost(pair, cost).await?
        {
            lane.wake();
        }
        Ok(())
    }

    /// Hands a cost to the message that waits for it. If that is not there yet it will look for the cost; if there is none (sent already,
    /// or not the endpoint's) the cost is forgotten after a while.
    async fn join(&self, kind: EventType, event: &Event, message: &Message) -> Result<(), Error> {
        let lane = &self.0;
        let Some(pair) = pairing::completes(kind, event) else {
            return Ok(());
        };
        if !lane.endpoint.filter.concerns(kind, event) {
            return Ok(());
        }
        let cost = message.body.to_vec();
        lane.costs.put(pair.clone(), cost.clone(), Instant::now());
        if lane.join_cost(pair.clone(), cost).await? {
            lane.costs.take(&pair, Instant::now());
            lane.wake();
        }
        Ok(())
    }
}
