//! An event, decoded once for everything that looks at it.

use std::ops::Deref;
use std::sync::OnceLock;

use bytes::Bytes;
use mesh_events::{Event, UnknownEventType, cloudevents};
use serde_json::Value;

use crate::fields;

/// Maximum characters of a text that conditions see.
const MAX_FIELD_CHARS: usize = 4_000;

/// An event, its CloudEvents JSON and its fields, which are built on first use.
#[derive(Debug)]
pub struct DecodedEvent {
    event: Event,
    json: OnceLock<Bytes>,
    fields: OnceLock<Value>,
}

impl DecodedEvent {
    /// CloudEvents 1.0 as structured JSON.
    ///
    /// # Errors
    /// If the event's type is not in the catalogue.
    pub fn json(&self) -> Result<Bytes, UnknownEventType> {
        if let Some(json) = self.json.get() {
            return Ok(json.clone());
        }
        let json = cloudevents::to_text(&self.event)?;
        Ok(self.json.get_or_init(|| json.into()).clone())
    }

    /// Its fields, as conditions see them.
    pub fn fields(&self) -> &Value {
        self.fields
            .get_or_init(|| fields::of(&self.event, None, MAX_FIELD_CHARS))
    }
}

impl From<Event> for DecodedEvent {
    fn from(event: Event) -> Self {
        Self {
            event,
            json: OnceLock::new(),
            fields: OnceLock::new(),
        }
    }
}

impl Deref for DecodedEvent {
    type Target = Event;

    fn deref(&self) -> &Event {
        &self.event
    }
}
