//! What is sent: the body of a delivery in its endpoint's format.

use mesh_events::proto::mesh::cost::v1::CostEvent;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::{Event, cloudevents};

use crate::adapters::http::Post;
use crate::adapters::store::Delivery;
use crate::config::{Endpoint, Format};
use crate::domain::{names, slack};
use crate::error::Error;

/// The event of a delivery.
///
/// # Errors
/// If the stored body is none.
pub fn event(delivery: &Delivery) -> Result<Event, Error> {
    Event::from_bytes(&delivery.body).map_err(|source| Error::Stored {
        id: delivery.event_id.clone(),
        source,
    })
}

/// The request of a delivery, without its trace context.
///
/// # Errors
/// If the stored body is no event.
pub fn make(endpoint: &Endpoint, delivery: &Delivery, cluster: &str) -> Result<Post, Error> {
    if !names::is_event(&delivery.event_id) {
        // Our own message: the body is the number of events the chat missed.
        let count = String::from_utf8_lossy(&delivery.body).parse().unwrap_or(1);
        return Ok(chat(
            &delivery.event_id,
            &slack::Message::away(count, cluster),
        ));
    }
    let event = event(delivery)?;
    match endpoint.format {
        Format::CloudEvents => structured(&event),
        Format::Slack => {
            let cost = delivery.cost.as_ref().and_then(|bytes| cost(bytes));
            let message = slack::render(&event, cost.as_ref());
            // Only what can be shown is taken in.
            Ok(chat(
                &event.id,
                &message.unwrap_or_else(|| slack::Message::test(&endpoint.name, cluster)),
            ))
        }
    }
}

/// The request of a test.
///
/// # Errors
/// If the sample is no event, which cannot be.
pub fn test(endpoint: &Endpoint, sample: &Event) -> Result<Post, Error> {
    match endpoint.format {
        Format::CloudEvents => structured(sample),
        Format::Slack => Ok(chat(
            &sample.id,
            &slack::Message::test(&endpoint.name, &sample.cluster),
        )),
    }
}

fn structured(event: &Event) -> Result<Post, Error> {
    let json = cloudevents::to_json(event).map_err(|source| Error::Stored {
        id: event.id.clone(),
        source: source.into(),
    })?;
    Ok(Post {
        id: event.id.clone(),
        content_type: cloudevents::CONTENT_TYPE_JSON,
        body: json.to_string(),
        traceparent: None,
    })
}

fn chat(id: &str, message: &slack::Message) -> Post {
    let body = serde_json::json!(message).to_string();
    Post {
        id: id.to_owned(),
        content_type: "application/json",
        body,
        traceparent: None,
    }
}

fn cost(bytes: &[u8]) -> Option<CostEvent> {
    match Event::from_bytes(bytes).ok()?.payload? {
        Payload::Cost(cost) => Some(cost),
        _ => None,
    }
}
