//! An event, decoded once for all its endpoints.

use std::ops::Deref;
use std::sync::OnceLock;

use mesh_events::{Event, UnknownEventType, cloudevents};

/// An event and its CloudEvents JSON, which is built on first use.
#[derive(Debug)]
pub struct DecodedEvent {
    event: Event,
    json: OnceLock<String>,
}

impl DecodedEvent {
    /// CloudEvents 1.0 as structured JSON.
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
