//! The one mapping between events and CloudEvents 1.0.
//!
//! On NATS an event is in binary mode: attributes as `ce-` headers, the protobuf message as body. As JSON (webhooks, REST, command line) it
//! is in structured mode: `data` is the whole event in proto3 JSON, so 64-bit integers are strings.

use serde::Serialize;
use serde_json::Value;

use crate::{Event, UnknownEventType, from_timestamp};

/// Content type of bodies on NATS.
pub const CONTENT_TYPE_PROTOBUF: &str = "application/protobuf";
/// Content type of structured JSON.
pub const CONTENT_TYPE_JSON: &str = "application/cloudevents+json";
/// The `dataschema` of every event: names the message of this contract.
pub const DATA_SCHEMA: &str = "urn:slurm-mesh:mesh.event.v1.Event";

/// Header of replayed events: the extension attribute `replayid`, id of the replay.
pub const HEADER_REPLAY: &str = "ce-replayid";

/// CloudEvents attributes of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// `id`
    pub id: String,
    /// `source`: `/clusters/<cluster>`
    pub source: String,
    /// `type`: `org.slurm-mesh.job.completed.v1`
    pub r#type: String,
    /// `subject`: the entity key
    pub subject: String,
    /// `time`: RFC 3339
    pub time: String,
}

impl Attributes {
    /// Attributes of an event.
    ///
    /// # Errors
    /// If the event's type is not in the catalogue.
    pub fn of(event: &Event) -> Result<Self, UnknownEventType> {
        let kind = event.kind()?;
        let time = event
            .occurred_at
            .as_ref()
            .and_then(from_timestamp)
            .unwrap_or_default();
        Ok(Self {
            id: event.id.clone(),
            source: format!("/clusters/{}", event.cluster),
            r#type: format!("org.slurm-mesh.{kind}.v{}", crate::SCHEMA_VERSION),
            subject: event.entity_key().to_owned(),
            time: time.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true),
        })
    }

    /// Header names and values of binary mode on NATS, values percent-encoded as the NATS protocol binding requires.
    pub fn headers(&self) -> [(&'static str, String); 8] {
        [
            ("ce-specversion", "1.0".to_owned()),
            ("ce-id", percent_encode(&self.id)),
            ("ce-source", percent_encode(&self.source)),
            ("ce-type", percent_encode(&self.r#type)),
            ("ce-subject", percent_encode(&self.subject)),
            ("ce-time", percent_encode(&self.time)),
            ("ce-dataschema", DATA_SCHEMA.to_owned()),
            ("content-type", CONTENT_TYPE_PROTOBUF.to_owned()),
        ]
    }
}

/// Structured mode.
#[derive(Serialize)]
struct Structured<'a> {
    specversion: &'static str,
    id: &'a str,
    source: &'a str,
    r#type: &'a str,
    subject: &'a str,
    time: &'a str,
    dataschema: &'static str,
    datacontenttype: &'static str,
    data: &'a Event,
}

fn structured<T>(
    event: &Event,
    write: impl FnOnce(&Structured<'_>) -> serde_json::Result<T>,
) -> Result<T, UnknownEventType> {
    let attributes = Attributes::of(event)?;
    let written = write(&Structured {
        specversion: "1.0",
        id: &attributes.id,
        source: &attributes.source,
        r#type: &attributes.r#type,
        subject: &attributes.subject,
        time: &attributes.time,
        dataschema: DATA_SCHEMA,
        datacontenttype: "application/json",
        data: event,
    });
    Ok(written.expect("generated messages have string keys and finite numbers only"))
}

/// An event as structured JSON.
///
/// # Errors
/// If the event's type is not in the catalogue.
pub fn to_json(event: &Event) -> Result<Value, UnknownEventType> {
    structured(event, |structured| serde_json::to_value(structured))
}

/// An event as the text of structured JSON, several times faster than by [`to_json`].
///
/// # Errors
/// If the event's type is not in the catalogue.
pub fn to_text(event: &Event) -> Result<String, UnknownEventType> {
    structured(event, |structured| serde_json::to_string(structured))
}

/// Why JSON is not an event.
#[derive(Debug, thiserror::Error)]
pub enum FromJsonError {
    /// `data` is not the event in proto3 JSON.
    #[error("read CloudEvents data")]
    Data(#[from] serde_json::Error),
    /// There is no `data`.
    #[error("read CloudEvents: no data")]
    NoData,
}

/// Reads the event from structured JSON.
///
/// # Errors
/// If `data` is missing or is not an event.
pub fn from_json(value: &Value) -> Result<Event, FromJsonError> {
    let data = value.get("data").ok_or(FromJsonError::NoData)?;
    Ok(serde::Deserialize::deserialize(data)?)
}

/// Percent-encodes space, `"`, `%` and everything that is not printable ASCII (CloudEvents HTTP binding §3.1.3.2, used by the NATS one).
fn percent_encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_graphic() && byte != b'"' && byte != b'%' {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_values_are_encoded_as_the_binding_requires() {
        assert_eq!(
            percent_encode("Euro € 😀"),
            "Euro%20%E2%82%AC%20%F0%9F%98%80"
        );
    }
}
