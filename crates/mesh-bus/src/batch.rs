//! Atomic batches: many messages of one stream for two syncs of the server's disk.
//!
//! A server with `sync_interval: always` syncs once per message, however many are in flight. A batch of any size costs two syncs. Each
//! message keeps its own id, by which the stream recognises duplicates.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::header::{NATS_BATCH_COMMIT, NATS_BATCH_ID, NATS_BATCH_SEQUENCE, NATS_MESSAGE_ID};
use async_nats::jetstream::context::PublishErrorKind;
use bytes::Bytes;
use futures_util::future::join_all;

use crate::{BoxError, Bus, Error, metrics, trace};

/// Messages per batch. nats-server accepts at most 1,000 by default and holds a batch in memory until its last message has arrived.
const MAX_BATCH_MESSAGES: usize = 512;
/// Bytes per batch, unless a single message is larger.
const MAX_BATCH_BYTES: usize = 2 << 20;

/// Deadline for sending and storing a batch.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(15);

/// A message that is no event: an audit entry, a dead letter.
#[derive(Clone, Debug)]
pub struct RawMessage {
    /// The subject to publish to.
    pub subject: String,
    /// Deduplication id (`Nats-Msg-Id`); the same on every attempt.
    pub id: String,
    /// The payload.
    pub body: Bytes,
}

enum Failure {
    /// No answer in time.
    Unavailable,
    /// The server refused the batch as a whole.
    Refused(BoxError),
}

impl Bus {
    /// Publishes messages that are no events, all of one stream, and waits until JetStream has stored them. Returns one result per message,
    /// in their order.
    ///
    /// Messages are sent in batches. If the server does not support batches, or refuses one because it already has some of its messages,
    /// each message is sent on its own.
    pub async fn publish_many(&self, messages: &[RawMessage]) -> Vec<Result<(), Error>> {
        let mut results = Vec::with_capacity(messages.len());
        for batch in batches(messages) {
            let subject = batch.first().map_or("", |message| message.subject.as_str());
            let waiting = self.status.publishing(subject);
            let stored = tokio::time::timeout(PUBLISH_TIMEOUT, self.publish_batch(batch)).await;
            waiting.answered();
            match stored.unwrap_or(Err(Failure::Unavailable)) {
                Ok(()) => {
                    self.status.stored(subject);
                    metrics::published("stored", batch.len() as u64);
                    results.extend(batch.iter().map(|_| Ok(())));
                }
                Err(Failure::Unavailable) => {
                    self.status.failed(subject, &"no answer in time");
                    metrics::published("failed", batch.len() as u64);
                    let unavailable =
                        |message: &RawMessage| Error::jetstream("publish to", &message.subject);
                    let failed = |message| Err(unavailable(message)("no answer in time".into()));
                    results.extend(batch.iter().map(failed));
                }
                Err(Failure::Refused(error)) => {
                    tracing::debug!(%error, messages = batch.len(), "batch publish failed, publishing messages one by one");
                    results.extend(self.publish_each(batch).await);
                }
            }
        }
        results
    }

    /// Stores all messages or none.
    async fn publish_batch(&self, messages: &[RawMessage]) -> Result<(), Failure> {
        let (Some((last, others)), true) = (messages.split_last(), messages.len() > 1) else {
            return Err(Failure::Refused(
                "a batch needs at least two messages".into(),
            ));
        };
        let batch = format!("{:032x}", rand::random::<u128>());
        let headers = |n: usize, message: &RawMessage| {
            let mut headers = HeaderMap::new();
            headers.insert(NATS_BATCH_ID, batch.as_str());
            headers.insert(NATS_BATCH_SEQUENCE, (n + 1).to_string());
            headers.insert(NATS_MESSAGE_ID, message.id.as_str());
            trace::inject(&mut headers);
            headers
        };
        for (n, message) in others.iter().enumerate() {
            let (subject, body) = (message.subject.clone(), message.body.clone());
            let sent = self
                .client
                .publish_with_headers(subject, headers(n, message), body);
            sent.await.map_err(|error| Failure::Refused(error.into()))?;
        }
        let mut headers = headers(others.len(), last);
        headers.insert(NATS_BATCH_COMMIT, "1");
        let (subject, body) = (last.subject.clone(), last.body.clone());
        let sent = self
            .jetstream
            .publish_with_headers(subject, headers, body)
            .await;
        let stored = async { sent?.await }
            .await
            .map_err(|error| match error.kind() {
                PublishErrorKind::TimedOut | PublishErrorKind::BrokenPipe => Failure::Unavailable,
                _ => Failure::Refused(error.into()),
            })?;
        if stored.batch_size != Some(messages.len() as u64) {
            return Err(Failure::Refused(
                "the server does not support batches".into(),
            ));
        }
        Ok(())
    }

    /// Sends the messages one after the other, then awaits all acknowledgements.
    async fn publish_each(&self, messages: &[RawMessage]) -> Vec<Result<(), Error>> {
        let mut sent = Vec::with_capacity(messages.len());
        for RawMessage { subject, id, body } in messages {
            let begun = self.begin(subject.clone(), id, HeaderMap::new(), body.clone());
            sent.push(begun.await);
        }
        let together = messages.iter().zip(sent);
        let stored = together.map(|(message, acknowledged)| async move {
            self.stored(message.subject.clone(), &message.id, acknowledged)
                .await
                .map(drop)
        });
        join_all(stored).await
    }
}

/// Splits messages into batches, in order, each as large as allowed.
fn batches(messages: &[RawMessage]) -> impl Iterator<Item = &[RawMessage]> {
    let mut left = messages;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = left.iter().take(MAX_BATCH_MESSAGES).take_while(|message| {
            let first = bytes == 0;
            bytes += message.body.len() + 1;
            first || bytes <= MAX_BATCH_BYTES
        });
        let (batch, rest) = left.split_at(fits.count());
        left = rest;
        (!batch.is_empty()).then_some(batch)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_as_large_as_may_be_and_leave_nothing_out() {
        let lengths = |sizes: &[usize]| -> Vec<usize> {
            let message = |size: &usize| RawMessage {
                subject: String::new(),
                id: String::new(),
                body: vec![0; *size].into(),
            };
            let messages: Vec<RawMessage> = sizes.iter().map(message).collect();
            batches(&messages).map(<[RawMessage]>::len).collect()
        };
        assert_eq!(lengths(&[]), [0; 0]);
        assert_eq!(lengths(&[10; 1_100]), [512, 512, 76]);
        assert_eq!(lengths(&[900_000; 5]), [2, 2, 1]);
        assert_eq!(lengths(&[3 << 20, 0, 3 << 20, 3 << 20]), [1, 1, 1, 1]);
    }
}
