//! Handles one message of an endpoint's consumer: filter, deduplicate, check the age, send, store the outcome.
//!
//! A message is acknowledged once its outcome, or its place in the retry queue, is on disk. Waiting deliveries
//! therefore do not occupy the consumer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use futures_util::{StreamExt as _, stream};
use mesh_bus::{BatchHandler, Disposition, Handler, Message};
use mesh_events::catalogue::MESH_REPLAY;
use mesh_events::cloudevents::HEADER_REPLAY;
use mesh_events::{Event, EventType, from_timestamp};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::adapters::store::{Delivery, State};
use crate::domain::decoded_event::DecodedEvent;
use crate::domain::{names, pairing};
use crate::endpoint_worker::EndpointWorker;
use crate::error::Error;
use crate::{clock, replays, work};

/// Redelivery interval while the database is unavailable.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Redelivery interval of an event that is still being handled.
const BUSY_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Handles the messages of one endpoint: events and replayed events.
pub struct EventHandler {
    worker: Arc<EndpointWorker>,
    /// Cancelled when messages that have not been started must be left to the next owner.
    stop: CancellationToken,
}

/// A decoded message.
pub struct DecodedMessage<'a> {
    /// The message as received.
    pub message: &'a Message,
    /// Type of the event.
    pub kind: EventType,
    /// The decoded event.
    pub event: Arc<DecodedEvent>,
    /// Id of the replay that publishes it.
    pub replay: Option<&'a str>,
}

impl Handler for EventHandler {
    async fn handle(&self, message: &Message) -> Disposition {
        match self.read(message) {
            Ok(read) => match self.worker.end_waits(&[Some(&read)]).await {
                Ok(()) => self.dispatch(&read).await,
                Err(error) => self.outcome(Err(error)),
            },
            Err(outcome) => outcome,
        }
    }
}

/// Endpoints with array digests: counts a whole batch in one write, then sends the remaining events one by one.
impl BatchHandler for EventHandler {
    async fn handle(&self, messages: &[Message]) -> Vec<Disposition> {
        let now = Disposition::Nak {
            after: Duration::ZERO,
        };
        // Hold the messages: hundreds of redeliveries every few seconds would overload the bus.
        while self.worker.may_send().is_err() {
            if !work::pause(RETRY_INTERVAL, &self.stop).await {
                return vec![now; messages.len()];
            }
        }
        let read: Vec<_> = messages.iter().map(|message| self.read(message)).collect();
        let events: Vec<Option<&DecodedMessage<'_>>> =
            read.iter().map(|read| read.as_ref().ok()).collect();
        let noted = async {
            self.worker.end_waits(&events).await?;
            self.worker.digest(&events).await
        };
        let in_digests = match noted.await {
            Ok(in_digests) => in_digests,
            Err(error) => {
                let later = self.outcome(Err(error));
                let outcomes = read.into_iter().map(Result::err);
                return outcomes
                    .map(|outcome| outcome.unwrap_or_else(|| later.clone()))
                    .collect();
            }
        };
        let outcomes = read.iter().zip(in_digests).map(|(read, in_digest)| {
            let now = now.clone();
            async move {
                match read {
                    Err(outcome) => outcome.clone(),
                    Ok(_) if in_digest => Disposition::Ack,
                    Ok(_) if self.stop.is_cancelled() => now,
                    Ok(read) => {
                        self.dispatch(read)
                            .instrument(read.message.handling())
                            .await
                    }
                }
            }
        });
        let outcomes: Vec<_> = outcomes.collect();
        stream::iter(outcomes)
            .buffered(self.worker.endpoint.concurrency)
            .collect()
            .await
    }
}

impl EventHandler {
    /// A handler for one endpoint.
    pub fn new(worker: Arc<EndpointWorker>, stop: CancellationToken) -> Self {
        Self { worker, stop }
    }

    /// Decodes a message, if the endpoint may send now.
    fn read<'a>(&self, message: &'a Message) -> Result<DecodedMessage<'a>, Disposition> {
        let reject = |reason: String| Disposition::DeadLetter { reason };
        let event = self.worker.shared.facts.read(&message.body);
        let event = event.map_err(|error| reject(mesh_runtime::error_chain(&error)))?;
        let kind = event.kind().map_err(|error| reject(error.to_string()))?;
        let replay = match message.header(HEADER_REPLAY) {
            _ if message.stream != MESH_REPLAY => None,
            None => return Err(reject(format!("no header {HEADER_REPLAY}"))),
            replay => replay,
        };
        if self.worker.may_send().is_err() {
            // Readiness reports the reason. Logging it for each message would flood the log.
            return Err(Disposition::Nak {
                after: RETRY_INTERVAL,
            });
        }
        Ok(DecodedMessage {
            message,
            kind,
            event,
            replay,
        })
    }

    /// Delivers a single event.
    async fn dispatch(&self, read: &DecodedMessage<'_>) -> Disposition {
        let id = match read.replay {
            Some(replay) => names::replayed(replay, &read.event.id),
            None => read.event.id.clone(),
        };
        let Some(_under_way) = self.worker.begin(&id) else {
            return Disposition::Nak {
                after: BUSY_RETRY_INTERVAL,
            };
        };
        self.outcome(match read.replay {
            Some(_) => replays::take(&self.worker, read, id).await,
            None => self.take(read).await,
        })
    }

    fn outcome(&self, result: Result<(), Error>) -> Disposition {
        match result {
            Ok(()) => Disposition::Ack,
            Err(Error::NotOurs(_) | Error::Halted(_)) => Disposition::Nak {
                after: RETRY_INTERVAL,
            },
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    endpoint = self.worker.endpoint.name,
                    "delivery stays on the bus"
                );
                Disposition::Nak {
                    after: RETRY_INTERVAL,
                }
            }
        }
    }

    async fn take(&self, read: &DecodedMessage<'_>) -> Result<(), Error> {
        let worker = &self.worker;
        let (kind, event, message) = (read.kind, &*read.event, read.message);
        if worker.companions.contains(&kind) {
            self.join(kind, event, message).await?;
            if worker.endpoint.format.is_chat() {
                return Ok(());
            }
        }
        if !worker.endpoint.filter.matches(kind, event)
            || worker
                .shared
                .store
                .knows(&worker.endpoint.name, &event.id)
                .await?
        {
            return Ok(());
        }
        let now = clock::now();
        let mut delivery =
            Delivery::of(&worker.endpoint.name, event.id.clone(), event, message, now);
        delivery.trace = message.header("traceparent").unwrap_or_default().to_owned();
        if worker.is_too_old(event, now) {
            delivery.state = State::Expired;
            return worker.store(delivery).await;
        }
        if !worker.endpoint.format.takes(kind, event) {
            tracing::debug!(event.id = event.id, "nothing that the format tells");
            return Ok(());
        }
        if let Some(notice) = worker.notice(event) {
            return worker.park_notice(delivery, notice).await;
        }
        if worker.endpoint.format.shows_costs() {
            let cost =
                pairing::awaits(kind, event).filter(|_| !worker.shared.cost_join_timeout.is_zero());
            if let Some(pair) = cost {
                match worker.costs.take(&pair, Instant::now()) {
                    Some(cost) => delivery.cost = Some(cost),
                    None => return self.park(delivery, pair).await,
                }
            }
        }
        let observed = event.observed_at.as_ref().and_then(from_timestamp);
        worker.deliver(delivery, observed).await
    }

    /// Stores a message until its cost arrives.
    async fn park(&self, mut delivery: Delivery, pair: String) -> Result<(), Error> {
        let worker = &self.worker;
        let wait = TimeDelta::from_std(worker.shared.cost_join_timeout).unwrap_or_default();
        delivery.next_at = Some(delivery.created_at + wait);
        delivery.pair = Some(pair.clone());
        worker.store(delivery).await?;
        // The cost may have arrived in the meantime.
        if let Some(cost) = worker.costs.take(&pair, Instant::now())
            && worker.join_cost(pair, cost).await?
        {
            worker.wake();
        }
        Ok(())
    }

    /// Adds a cost to the message that waits for it. If the message is not stored yet, it picks up the cost later. If
    /// there is none (already sent, or not the endpoint's), the cost expires.
    async fn join(&self, kind: EventType, event: &Event, message: &Message) -> Result<(), Error> {
        let worker = &self.worker;
        let Some(pair) = pairing::completes(kind, event) else {
            return Ok(());
        };
        if !worker.endpoint.filter.concerns(kind, event) {
            return Ok(());
        }
        let cost = message.body.to_vec();
        worker.costs.put(pair.clone(), cost.clone(), Instant::now());
        if worker.join_cost(pair.clone(), cost).await? {
            worker.costs.take(&pair, Instant::now());
            worker.wake();
        }
        Ok(())
    }
}
