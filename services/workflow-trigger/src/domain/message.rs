//! Messages of sources to events.

use chrono::{DateTime, Utc};
use mesh_events::IncomingEvent;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::{Value, json};

use super::signature::body_id;
use super::source::Format;

/// Longest type and id of an event.
const MAX_NAME_BYTES: usize = 200;
/// Objects that one notification may name.
const MAX_RECORDS: usize = 1_000;

/// A message of a source, as it came.
pub struct SourceMessage<'a> {
    /// Cluster of the service that received it.
    pub cluster: &'a str,
    /// Name of its source.
    pub source: &'a str,
    /// Id of the delivery.
    pub id: &'a str,
    /// Type, where the transport says one.
    pub r#type: Option<&'a str>,
    /// When it was received.
    pub at: DateTime<Utc>,
    /// The body.
    pub body: &'a [u8],
}

impl SourceMessage<'_> {
    /// The events of the message.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn events(&self, format: Format) -> Result<Vec<IncomingEvent>, String> {
        let body: Value = serde_json::from_slice(self.body).map_err(|error| error.to_string())?;
        if !body.is_object() {
            return Err("not a JSON object".to_owned());
        }
        match format {
            Format::Json => {
                let of_body = ["type", "event_type", "object_kind"];
                let of_body = of_body.iter().find_map(|key| body[*key].as_str());
                let kind = named("type", self.r#type.or(of_body).unwrap_or("event"))?.to_owned();
                Ok(vec![self.event(self.id, kind, self.at, body)?])
            }
            Format::CloudEvents => {
                let event: CloudEvent =
                    serde_json::from_value(body).map_err(|error| error.to_string())?;
                if event.specversion != "1.0" {
                    return Err("specversion: 1.0".to_owned());
                }
                // Source and id are unique together.
                let id = body_id(format!("{}\n{}", event.source, event.id).as_bytes());
                let kind = named("type", &event.r#type)?.to_owned();
                let at = event.time.unwrap_or(self.at);
                Ok(vec![self.event(&id, kind, at, event.data)?])
            }
            Format::S3 => self.objects(&body),
        }
    }

    fn event(
        &self,
        id: &str,
        kind: String,
        at: DateTime<Utc>,
        data: Value,
    ) -> Result<IncomingEvent, String> {
        let id = named("id", id)?;
        Ok(IncomingEvent::new(
            self.cluster,
            self.source,
            id,
            kind,
            at,
            data,
        ))
    }

    /// Objects of a bucket. A notification of S3 has records; one of EventBridge has a single object as `detail`.
    fn objects(&self, body: &Value) -> Result<Vec<IncomingEvent>, String> {
        if let Some(records) = body["Records"].as_array() {
            if records.len() > MAX_RECORDS {
                return Err(format!("Records: at most {MAX_RECORDS}"));
            }
            return records.iter().map(|record| self.record(record)).collect();
        }
        if body["source"] == "aws.s3" {
            let detail = &body["detail"];
            let name = body["detail-type"].as_str().unwrap_or_default();
            let at = body["time"].as_str();
            // EventBridge sends keys as they are.
            let key = detail["object"]["key"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            return Ok(vec![self.object(
                name,
                at,
                &detail["bucket"],
                &detail["object"],
                key,
            )?]);
        }
        Err("no Records, and not of aws.s3".to_owned())
    }

    fn record(&self, record: &Value) -> Result<IncomingEvent, String> {
        let s3 = &record["s3"];
        let name = record["eventName"].as_str().unwrap_or_default();
        let key = s3["object"]["key"].as_str().unwrap_or_default();
        // S3's form encoding: `+` is a space.
        let key = key.replace('+', " ");
        let key = percent_decode_str(&key).decode_utf8();
        let key = key.map_err(|error| format!("key: {error}"))?.into_owned();
        self.object(
            name,
            record["eventTime"].as_str(),
            &s3["bucket"],
            &s3["object"],
            key,
        )
    }

    fn object(
        &self,
        name: &str,
        at: Option<&str>,
        bucket: &Value,
        object: &Value,
        key: String,
    ) -> Result<IncomingEvent, String> {
        let bucket = bucket["name"].as_str().unwrap_or_default();
        if bucket.is_empty() || key.is_empty() {
            return Err("an object without bucket or key".to_owned());
        }
        let text = |names: [&str; 2]| {
            let found = names.iter().find_map(|name| object[*name].as_str());
            found.unwrap_or_default().to_owned()
        };
        let (version, etag) = (text(["versionId", "version-id"]), text(["eTag", "etag"]));
        let sequencer = text(["sequencer", "sequencer"]);
        let id = [bucket, &key, &version, &sequencer, &etag, name].join("\n");
        let at = at.and_then(|at| at.parse().ok()).unwrap_or(self.at);
        let data = json!({
            "event": name,
            "bucket": bucket,
            "key": key,
            "size": object["size"],
            "etag": etag,
            "version_id": version,
            "sequencer": sequencer,
        });
        let kind = object_type(name).ok_or("no name of an event of S3")?;
        self.event(&body_id(id.as_bytes()), kind, at, data)
    }
}

/// The attributes of CloudEvents that senders give. Others, of which ours are some, are left out.
#[derive(Deserialize)]
struct CloudEvent {
    specversion: String,
    id: String,
    source: String,
    r#type: String,
    time: Option<DateTime<Utc>>,
    #[serde(default)]
    data: Value,
}

/// `s3:ObjectCreated:Put`, `ObjectCreated:Put` and `Object Created` are `s3.object_created`.
fn object_type(name: &str) -> Option<String> {
    let name = name.strip_prefix("s3:").unwrap_or(name);
    let name = name.split(':').next().unwrap_or_default();
    let mut kind = String::from("s3.");
    for (place, c) in name.chars().enumerate() {
        match c {
            'A'..='Z' if place > 0 && !kind.ends_with('_') => {
                kind.push('_');
                kind.push(c.to_ascii_lowercase());
            }
            ' ' => kind.push('_'),
            c if c.is_ascii_alphanumeric() => kind.push(c.to_ascii_lowercase()),
            _ => return None,
        }
    }
    (kind.len() > 3).then_some(kind)
}

/// A type or an id: short and printable.
pub fn named<'a>(what: &str, text: &'a str) -> Result<&'a str, String> {
    let is_valid = !text.is_empty() && text.len() <= MAX_NAME_BYTES;
    match is_valid && !text.chars().any(char::is_control) {
        true => Ok(text),
        false => Err(format!(
            "{what}: 1 to {MAX_NAME_BYTES} bytes, no control characters"
        )),
    }
}

#[cfg(test)]
mod tests;
