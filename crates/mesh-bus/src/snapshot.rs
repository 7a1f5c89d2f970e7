//! Snapshots of streams, by the server's own protocol, and consumers that are recreated at a recorded position. For an administrator.
//!
//! A restored stream has its sequences, times and creation time again, but not its deduplication window.

use std::io::{self, Read};
use std::time::Duration;

use async_nats::Request;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures_util::StreamExt as _;
use mesh_events::catalogue::STREAMS;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{BoxError, Bus, Error};

/// The server checks every message of a stream before it answers.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// Timeout of other requests, and of one chunk.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Below the payload limit of a server with default settings.
const CHUNK_BYTES: usize = 256 << 10;
/// JetStream's error code of a missing stream.
const STREAM_NOT_FOUND: u64 = 10_059;
/// JetStream's error code of a missing consumer.
const CONSUMER_NOT_FOUND: u64 = 10_014;

/// What the server needs to restore a stream, besides the chunks of its snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StreamSnapshot {
    /// Stream.
    pub name: String,
    /// Configuration, as the server has it.
    pub config: Value,
    /// Number and sequences of messages, as the server has them.
    pub state: Value,
}

impl StreamSnapshot {
    /// Sequence of the last message.
    pub fn last_sequence(&self) -> u64 {
        self.state["last_seq"].as_u64().unwrap_or_default()
    }

    /// Number of messages.
    pub fn messages(&self) -> u64 {
        self.state["messages"].as_u64().unwrap_or_default()
    }
}

/// How far a durable consumer is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConsumerPosition {
    /// Stream.
    pub stream: String,
    /// Creation time of the stream: one that was recreated counts from 1 again.
    pub stream_created: DateTime<Utc>,
    /// Durable name.
    pub name: String,
    /// Every message up to this stream sequence was acknowledged.
    pub ack_floor: u64,
    /// Configuration, as the server has it.
    pub config: Value,
}

impl Bus {
    /// How far the durable consumers of a stream are. Empty if there is no such stream.
    ///
    /// # Errors
    /// If NATS does not answer or refuses.
    pub async fn consumer_positions(&self, stream: &str) -> Result<Vec<ConsumerPosition>, Error> {
        let failed = || Error::jetstream("list consumers of", stream);
        if !self.has_stream(stream).await? {
            return Ok(Vec::new());
        }
        let stream_created = self.stream_state(stream).await?.created;
        let mut positions = Vec::new();
        let mut offset = 0;
        loop {
            let request = json!({ "offset": offset });
            let subject = format!("CONSUMER.LIST.{stream}");
            let answer = self.api(&subject, &request, ANSWER_TIMEOUT).await;
            let answer = answer.map_err(|refusal| failed()(refusal.into()))?;
            let consumers = answer["consumers"].as_array().cloned().unwrap_or_default();
            offset += consumers.len();
            for consumer in &consumers {
                let Some(name) = consumer["config"]["durable_name"].as_str() else {
                    continue;
                };
                positions.push(ConsumerPosition {
                    stream: stream.to_owned(),
                    stream_created,
                    name: name.to_owned(),
                    ack_floor: consumer["ack_floor"]["stream_seq"]
                        .as_u64()
                        .unwrap_or_default(),
                    config: consumer["config"].clone(),
                });
            }
            let total = answer["total"].as_u64().unwrap_or_default();
            if consumers.is_empty() || offset as u64 >= total {
                return Ok(positions);
            }
        }
    }

    /// Makes a consumer that begins after the noted position, or with the first message if the stream has been recreated since. An
    /// existing one is replaced. Nothing may read it meanwhile.
    ///
    /// # Errors
    /// If NATS does not answer or refuses.
    pub async fn restore_consumer(&self, position: &ConsumerPosition) -> Result<(), Error> {
        let failed = || Error::jetstream("restore consumer", &position.name);
        let (stream, name) = (&position.stream, &position.name);
        let delete = format!("CONSUMER.DELETE.{stream}.{name}");
        match self.api(&delete, &json!({}), ANSWER_TIMEOUT).await {
            Err(refusal) if refusal.code != CONSUMER_NOT_FOUND => {
                return Err(failed()(refusal.into()));
            }
            _ => {}
        }
        let is_same = self.stream_state(stream).await?.created == position.stream_created;
        // A work queue holds only unacknowledged messages, and the server allows no other start.
        let work_queue = STREAMS
            .iter()
            .any(|one| one.name == stream && one.work_queue);
        let mut config = position.config.clone();
        if let Some(config) = config.as_object_mut() {
            config.remove("opt_start_time");
            config.remove("opt_start_seq");
            config.insert("num_replicas".to_owned(), json!(0));
            let policy = if is_same && !work_queue {
                config.insert("opt_start_seq".to_owned(), json!(position.ack_floor + 1));
                "by_start_sequence"
            } else {
                "all"
            };
            config.insert("deliver_policy".to_owned(), json!(policy));
        }
        let create = format!("CONSUMER.CREATE.{stream}.{name}");
        let request = json!({ "stream_name": stream, "config": config });
        let created = self.api(&create, &request, ANSWER_TIMEOUT).await;
        created
            .map(drop)
            .map_err(|refusal| failed()(refusal.into()))
    }

    /// Writes a snapshot of a stream, without its consumers, while it is in use. `None` if there is no such stream.
    ///
    /// # Errors
    /// If NATS does not answer or refuses, or `write` fails.
    pub async fn snapshot_stream(
        &self,
        stream: &str,
        mut write: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<Option<StreamSnapshot>, Error> {
        let failed = || Error::jetstream("take a snapshot of stream", stream);
        let inbox = self.client.new_inbox();
        let chunks = self.client.subscribe(inbox.clone()).await;
        let mut chunks = chunks.map_err(|source| failed()(source.into()))?;
        let request = json!({
            "deliver_subject": inbox,
            "no_consumers": true,
            "jsck": true,
            "chunk_size": CHUNK_BYTES,
        });
        let subject = format!("STREAM.SNAPSHOT.{stream}");
        let answer = match self.api(&subject, &request, SNAPSHOT_TIMEOUT).await {
            Ok(answer) => answer,
            Err(refusal) if refusal.code == STREAM_NOT_FOUND => return Ok(None),
            Err(refusal) => return Err(failed()(refusal.into())),
        };
        loop {
            let chunk = tokio::time::timeout(ANSWER_TIMEOUT, chunks.next()).await;
            let Ok(Some(chunk)) = chunk else {
                return Err(failed()("it ended before it was complete".into()));
            };
            if chunk.payload.is_empty() {
                let status = chunk.status.map(|status| status.as_u16());
                if status.is_none_or(|status| status == 204) {
                    break;
                }
                let text = chunk.description.unwrap_or_default();
                return Err(failed()(text.to_string().into()));
            }
            write(&chunk.payload).map_err(|source| failed()(source.into()))?;
            // The server sends more once it has this answer.
            if let Some(reply) = chunk.reply {
                let answered = self.client.publish(reply, Bytes::new()).await;
                answered.map_err(|source| failed()(source.into()))?;
            }
        }
        Ok(Some(StreamSnapshot {
            name: stream.to_owned(),
            config: answer["config"].clone(),
            state: answer["state"].clone(),
        }))
    }

    /// Restores a stream from its snapshot, with the number of replicas of this connection's configuration.
    ///
    /// # Errors
    /// If the stream exists, NATS does not answer or refuses, or the snapshot cannot be read.
    pub async fn restore_stream(
        &self,
        snapshot: &StreamSnapshot,
        mut read: impl Read,
    ) -> Result<(), Error> {
        let failed = || Error::jetstream("restore stream", &snapshot.name);
        let mut config = snapshot.config.clone();
        if let Some(config) = config.as_object_mut() {
            config.insert("num_replicas".to_owned(), json!(self.config.replicas));
        }
        let request = json!({ "config": config, "state": snapshot.state });
        let subject = format!("STREAM.RESTORE.{}", snapshot.name);
        let answer = self.api(&subject, &request, ANSWER_TIMEOUT).await;
        let answer = answer.map_err(|refusal| failed()(refusal.into()))?;
        let Some(target) = answer["deliver_subject"].as_str() else {
            return Err(failed()("the answer names no subject".into()));
        };
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let length = read
                .read(&mut chunk)
                .map_err(|source| failed()(source.into()))?;
            let body = Bytes::copy_from_slice(&chunk[..length]);
            // The last request is empty. Its answer comes once the stream is usable.
            let timeout = match length {
                0 => SNAPSHOT_TIMEOUT,
                _ => ANSWER_TIMEOUT,
            };
            let request = Request::new().payload(body).timeout(Some(timeout));
            let answer = self.client.send_request(target.to_owned(), request).await;
            let answer = answer.map_err(|source| failed()(source.into()))?;
            if !answer.payload.is_empty() {
                refusal(&answer.payload).map_err(|refusal| failed()(refusal.into()))?;
            }
            if length == 0 {
                return Ok(());
            }
        }
    }

    /// Deletes a stream that has never had a message. Returns false if it has, or had, some.
    ///
    /// # Errors
    /// If NATS does not answer or refuses.
    pub async fn delete_unused_stream(&self, stream: &str) -> Result<bool, Error> {
        if !self.has_stream(stream).await? {
            return Ok(true);
        }
        if self.stream_state(stream).await?.last_sequence > 0 {
            return Ok(false);
        }
        let deleted = self.jetstream.delete_stream(stream).await;
        deleted
            .map(|_| true)
            .map_err(|source| Error::jetstream("delete stream", stream)(source.into()))
    }

    /// Whether a stream exists.
    ///
    /// # Errors
    /// If NATS does not answer or refuses.
    pub async fn has_stream(&self, stream: &str) -> Result<bool, Error> {
        let subject = format!("STREAM.INFO.{stream}");
        match self.api(&subject, &json!({}), ANSWER_TIMEOUT).await {
            Ok(_) => Ok(true),
            Err(refusal) if refusal.code == STREAM_NOT_FOUND => Ok(false),
            Err(refusal) => Err(Error::jetstream("look at stream", stream)(refusal.into())),
        }
    }

    /// Replaces values of a bucket. `change` returns the new value, or `None` to leave it.
    ///
    /// # Errors
    /// If NATS does not answer or refuses, or somebody else writes the bucket.
    pub async fn rewrite_bucket(
        &self,
        name: &str,
        mut change: impl FnMut(&str, &[u8]) -> Result<Option<Vec<u8>>, BoxError>,
    ) -> Result<(), Error> {
        let bucket = self.bucket(name).await?;
        for entry in bucket.all().await? {
            let changed = change(&entry.key, &entry.value).map_err(bucket.error("read bucket"))?;
            if let Some(value) = changed {
                let written = bucket.put(&entry.key, value.into(), Some(entry.revision));
                written.await.map_err(bucket.error("write bucket"))?;
            }
        }
        Ok(())
    }

    /// A request of JetStream's API.
    async fn api(
        &self,
        subject: &str,
        request: &Value,
        timeout: Duration,
    ) -> Result<Value, Refusal> {
        let request = Request::new()
            .payload(request.to_string().into())
            .timeout(Some(timeout));
        let subject = format!("$JS.API.{subject}");
        let answer = self.client.send_request(subject, request).await;
        let answer = answer.map_err(|error| Refusal::without_code(error.to_string()))?;
        refusal(&answer.payload)
    }
}

/// JetStream's refusal of a request.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
struct Refusal {
    code: u64,
    text: String,
}

impl Refusal {
    const fn without_code(text: String) -> Self {
        Self { code: 0, text }
    }
}

fn refusal(answer: &[u8]) -> Result<Value, Refusal> {
    let answer: Value = serde_json::from_slice(answer)
        .map_err(|error| Refusal::without_code(format!("unreadable answer: {error}")))?;
    match &answer["error"] {
        Value::Null => Ok(answer),
        error => Err(Refusal {
            code: error["err_code"].as_u64().unwrap_or_default(),
            text: error["description"].as_str().unwrap_or_default().to_owned(),
        }),
    }
}
