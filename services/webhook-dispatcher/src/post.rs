//! One attempt at a delivery: the exchange of its endpoint's format with the receiver, within one deadline.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mesh_events::Event;
use mesh_events::proto::mesh::cost::v1::CostEvent;
use mesh_events::proto::mesh::event::v1::event::Payload;

use crate::adapters::http::{Attributes, Failure, Http};
use crate::adapters::store::Delivery;
use crate::clock;
use crate::config::Endpoint;
use crate::domain::cause::Cause;
use crate::domain::decoded_event::DecodedEvent;
use crate::domain::digest::Summary;
use crate::domain::format::{Content, ProviderState, Step, Topic, Verdict};
use crate::domain::message::Message;
use crate::domain::names;
use crate::domain::retry::Outcome;
use crate::error::Error;
use crate::event_cache::EventCache;

/// What came of an attempt.
#[derive(Debug)]
pub struct AttemptResult {
    /// Whether it arrived, and what to remember.
    pub verdict: Verdict,
    /// HTTP status of the last answer, 0 without one.
    pub status: u16,
    /// Why it failed; `None` if it arrived.
    pub cause: Option<Cause>,
    /// Beginning of the last answer's body.
    pub snippet: String,
    /// How long it took.
    pub elapsed: Duration,
}

/// What a delivery tells: the event, or a message of our own.
pub enum DeliveryContent {
    /// An event and its cost.
    Event {
        /// The event.
        event: Arc<DecodedEvent>,
        /// What completes it.
        cost: Option<Box<CostEvent>>,
        /// The replay that tells it once more.
        replay: Option<String>,
    },
    /// A message.
    Message(String, Message),
    /// How an array fares.
    Array(String, Message, Box<Summary>, String),
}

impl DeliveryContent {
    /// What a stored delivery tells.
    ///
    /// # Errors
    /// If the stored body is no event.
    pub fn of(delivery: &Delivery, cluster: &str, facts: &EventCache) -> Result<Self, Error> {
        if names::is_event(&delivery.event_id) {
            let cost = delivery
                .cost
                .as_ref()
                .and_then(|bytes| cost(bytes))
                .map(Box::new);
            return Ok(Self::Event {
                event: delivery.event(facts)?,
                cost,
                replay: names::replay(&delivery.event_id).map(str::to_owned),
            });
        }
        if names::is_digest(&delivery.event_id)
            && let Ok(summary) = serde_json::from_slice::<Summary>(&delivery.body)
        {
            let (id, topic) = (delivery.event_id.clone(), summary.topic());
            return Ok(Self::Array(id, summary.message(), Box::new(summary), topic));
        }
        if names::is_notice(&delivery.event_id)
            && let Ok(notice) = serde_json::from_slice(&delivery.body)
        {
            let message = Message::halted(&notice);
            return Ok(Self::Message(delivery.event_id.clone(), message));
        }
        // Our own message: the body is the number of events the chat missed.
        let count = String::from_utf8_lossy(&delivery.body).parse().unwrap_or(1);
        Ok(Self::Message(
            delivery.event_id.clone(),
            Message::away(count, cluster),
        ))
    }

    /// What a test tells: chats get a greeting, pipelines a sample.
    pub fn test(endpoint: &Endpoint, sample: &Event) -> Self {
        if endpoint.format.greets() {
            let message = Message::test(&endpoint.name, &sample.cluster);
            Self::Message(sample.id.clone(), message)
        } else {
            Self::Event {
                event: Arc::new(sample.clone().into()),
                cost: None,
                replay: None,
            }
        }
    }

    /// As formats take it.
    pub fn content(&self) -> Content<'_> {
        match self {
            Self::Event {
                event,
                cost,
                replay,
            } => Content::Event {
                event,
                cost: cost.as_deref(),
                replay: replay.as_deref(),
                now: clock::now(),
            },
            Self::Message(id, message) => Content::Message {
                id,
                message,
                topic: None,
            },
            Self::Array(id, message, summary, topic) => Content::Message {
                id,
                message,
                topic: Some(Topic {
                    key: topic,
                    number: summary.number.into(),
                    email: summary.email.as_deref(),
                }),
            },
        }
    }
}

/// Tells it: as many requests as the format needs, all within the endpoint's deadline.
pub async fn send_content(
    http: &Http,
    endpoint: &Endpoint,
    sent: &DeliveryContent,
    kept: &ProviderState,
    traceparent: Option<String>,
) -> AttemptResult {
    let start = Instant::now();
    let content = sent.content();
    let attributes = Attributes {
        id: content.id(),
        replay: match content {
            Content::Event { replay, .. } => replay,
            Content::Message { .. } => None,
        },
        traceparent: traceparent.as_deref(),
        deadline: start + endpoint.timeout,
    };
    let (mut status, mut snippet, mut unanswered) = (0, String::new(), None);
    let failed = |outcome, error| Verdict {
        outcome,
        error,
        keep: Vec::new(),
    };
    let mut step = match endpoint.format.begin(&endpoint.url, &content, kept) {
        Ok(step) => step,
        Err(error) => Step::Done(failed(
            Outcome::Permanent {
                reason: "sending it again would not help".to_owned(),
            },
            error.to_string(),
        )),
    };
    let mut verdict = loop {
        match step {
            Step::Done(verdict) => break verdict,
            Step::Send(request, exchange) => match http.send(endpoint, *request, &attributes).await
            {
                Ok(response) => {
                    status = response.status;
                    snippet = response.snippet();
                    step = exchange.answered(&response);
                }
                Err(Failure { cause, error }) => {
                    status = 0;
                    snippet.clear();
                    unanswered = Some(cause);
                    break failed(Outcome::Retry { after: None }, error);
                }
            },
        }
    };
    if status != 0 {
        verdict.outcome = endpoint.success.judge(verdict.outcome, status);
    }
    if verdict.outcome == Outcome::Delivered {
        verdict.error.clear();
    } else if verdict.error.is_empty() {
        verdict.error = format!("status {status}: none of `success`");
    }
    // Errors that name an address, and what is kept of answers.
    let redactor = &endpoint.redactor;
    redactor.clean(&mut verdict.error);
    if let Outcome::Permanent { reason } | Outcome::Gone { reason } = &mut verdict.outcome {
        redactor.clean(reason);
    }
    verdict
        .keep
        .retain(|(_, value)| value.as_ref().is_none_or(|value| !redactor.finds(value)));
    AttemptResult {
        cause: unanswered.or_else(|| Cause::of_answer(&verdict.outcome, status)),
        verdict,
        status,
        snippet,
        elapsed: start.elapsed(),
    }
}

fn cost(bytes: &[u8]) -> Option<CostEvent> {
    match Event::from_bytes(bytes).ok()?.payload? {
        Payload::Cost(cost) => Some(cost),
        _ => None,
    }
}
