//! An event, read once for all endpoints it goes to.

use std::ops::Deref;
use std::sync::OnceLock;

use mesh_events::{Event, UnknownEventType, cloudevents};

/// An event, and its CloudEvents JSON from when it was asked for first.
#[derive(Debug)]
pub struct DecodedEvent {
    event: Event,
    json: OnceLock<String>,
}

impl DecodedEvent {
    /// CloudEvents 1.0 in structured JSON.
    ///
    /// # Errors
    /// If the event's type is not in the catalogue.
    pub fn json(&self) -> Result<&str, UnknownEventType> {
        if let Some(json) = self.json.get() {
            return Ok(json);
        }
        let json = cloudevents::to_text(&self.event)?;
        Ok(self.json.get_or_init(|| json))
    }
}

impl From<Event> for DecodedEvent {
    fn from(event: Event) -> Self {
        Self {
            event,
            json: OnceLock::new(),
        }
    }
}

impl Deref for DecodedEvent {
    type Target = Event;

    fn deref(&self) -> &Event {
        &self.event
    }
}
