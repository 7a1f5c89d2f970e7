//! Events onto `MESH_IN`.

use mesh_bus::{Bus, RawMessage};
use mesh_events::catalogue::MESH_IN;
use mesh_events::{IncomingEvent, subject};

use crate::error::Error;

/// Why an event of people or their rules is not published.
pub const NO_ROOM: &str = "half of MESH_IN is used, and the rest is for sources: people can publish again when older events have expired";

/// Whether people and their rules may publish: the second half of the stream is for sources.
///
/// # Errors
/// If the bus does not answer.
pub async fn takes_published(bus: &Bus) -> Result<bool, Error> {
    let state = bus.stream_state(MESH_IN).await?;
    Ok(state.max_bytes.is_none_or(|most| state.bytes < most / 2))
}

/// Publishes events. The bus has all of them when this returns; again is harmless, by their ids.
///
/// # Errors
/// If the bus does not store one.
pub async fn publish(bus: &Bus, events: &[IncomingEvent]) -> Result<(), Error> {
    let message = |event: &IncomingEvent| {
        let (cluster, source) = event.place().unwrap_or_default();
        RawMessage {
            subject: subject::incoming(cluster, source),
            id: event.id.clone(),
            body: event.to_bytes().into(),
        }
    };
    let messages: Vec<RawMessage> = events.iter().map(message).collect();
    let results = bus.publish_many(&messages).await;
    results
        .into_iter()
        .collect::<Result<(), _>>()
        .map_err(Error::from)
}
