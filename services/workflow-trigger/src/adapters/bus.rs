//! Events onto `MESH_IN`.

use mesh_bus::{Bus, RawMessage};
use mesh_events::{IncomingEvent, subject};

use crate::error::Error;

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
