//! An event of a stream, decoded once for all endpoints.

use std::sync::Arc;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use event_filter::DecodedEvent;
use mesh_bus::{Bus, Message, trace};
use mesh_events::EventType;
use mesh_events::catalogue::MESH_REPLAY;
use mesh_events::cloudevents::HEADER_REPLAY;

use super::SERVICE;
use crate::stream::event_cache::EventCache;

/// An event of a stream.
#[derive(Debug)]
pub struct StreamEvent {
    /// Its sequence.
    pub sequence: u64,
    /// Subject it was published to.
    pub subject: String,
    /// The encoded event.
    pub body: Bytes,
    /// When the server stored it.
    pub stored: DateTime<Utc>,
    /// `traceparent` of reading it, in the event's trace; empty without one.
    pub trace: String,
    /// Type of the event.
    pub kind: EventType,
    /// The decoded event.
    pub event: Arc<DecodedEvent>,
    /// Id of the replay that publishes it.
    pub replay: Option<String>,
}

impl StreamEvent {
    /// Decodes a message.
    ///
    /// # Errors
    /// Why it is no event.
    fn read(message: &Message, event_cache: &EventCache) -> Result<Self, String> {
        let event = event_cache.read(&message.body);
        let event = event.map_err(|error| mesh_runtime::error_chain(&error))?;
        let kind = event.kind().map_err(|error| error.to_string())?;
        let replay = match message.header(HEADER_REPLAY) {
            _ if message.stream != MESH_REPLAY => None,
            None => return Err(format!("no header {HEADER_REPLAY}")),
            replay => replay.map(str::to_owned),
        };
        let trace = message.span(SERVICE).in_scope(trace::traceparent);
        Ok(Self {
            sequence: message.stream_sequence,
            subject: message.subject.clone(),
            // A slice of the message would keep the whole receive buffer alive.
            body: Bytes::copy_from_slice(&message.body),
            stored: message.published,
            // Without telemetry of this process, requests still carry the event's trace.
            trace: trace.unwrap_or_else(|| {
                let header = message.header("traceparent");
                header.unwrap_or_default().to_owned()
            }),
            kind,
            event,
            replay,
        })
    }

    /// Decodes messages in order. Those that are no events are parked.
    ///
    /// # Errors
    /// If a message cannot be parked.
    pub async fn read_all(
        messages: &[Message],
        event_cache: &EventCache,
        bus: &Bus,
    ) -> Result<Vec<Arc<Self>>, mesh_bus::Error> {
        let mut events = Vec::with_capacity(messages.len());
        for message in messages {
            match Self::read(message, event_cache) {
                Ok(event) => events.push(Arc::new(event)),
                Err(reason) => bus.park(message, &reason).await?,
            }
        }
        Ok(events)
    }
}
