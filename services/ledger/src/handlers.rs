//! Consumes the streams: decodes messages, appends entries, acknowledges.

use std::time::Duration;

use bytes::Bytes;
use mesh_bus::{Backoff, BatchHandler, Disposition, Message};
use mesh_events::catalogue::{MESH_AUDIT, SLURM_EVENTS};
use mesh_runtime::Condition;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::adapters::{BatchSequences, Store};
use crate::domain::record::{InvalidRecord, Record};
use crate::error::Error;
use crate::metrics;

/// Limit of retries in place, which preserve the order of the stream. It is below the consumers'
/// ack wait, after which the server would redeliver the batch.
const RETRY_TIMEOUT: Duration = Duration::from_secs(5);
const REDELIVERY_DELAY: Duration = Duration::from_secs(2);

/// Maximum number of messages that are decoded inline, in some 100 µs.
const MAX_DECODED_INLINE: usize = 32;

/// A stream that the ledger records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The public bus.
    Events,
    /// The audit stream.
    Audit,
}

impl Source {
    /// Returns the name of the stream.
    pub const fn stream(self) -> &'static str {
        match self {
            Self::Events => SLURM_EVENTS,
            Self::Audit => MESH_AUDIT,
        }
    }

    pub(crate) fn decode(self, subject: &str, body: Bytes) -> Result<Record, InvalidRecord> {
        match self {
            Self::Events => Record::event(subject, body),
            Self::Audit => Record::audit(subject, body),
        }
    }

    /// Decodes messages. Those that cannot be decoded become dead letters.
    fn decode_all<'m>(
        self,
        messages: impl ExactSizeIterator<Item = (&'m str, Bytes)>,
    ) -> (Vec<Record>, Vec<Disposition>) {
        let mut records = Vec::with_capacity(messages.len());
        let outcomes = messages.map(|(subject, body)| match self.decode(subject, body) {
            Ok(record) => {
                records.push(record);
                Disposition::Ack
            }
            Err(error) => {
                metrics::rejected(self.stream());
                Disposition::DeadLetter {
                    reason: mesh_runtime::error_chain(&error),
                }
            }
        });
        let outcomes = outcomes.collect();
        (records, outcomes)
    }
}

/// A message of a stream.
pub struct Received<'m> {
    /// Its subject.
    pub subject: &'m str,
    /// Its body.
    pub body: Bytes,
    /// Its sequence in the stream.
    pub sequence: u64,
    /// When the stream stored it, in microseconds since 1970.
    pub stored_at: i64,
}

/// Appends the messages of a stream.
pub struct Appender {
    source: Source,
    store: Store,
    database: Condition,
    shutdown: CancellationToken,
    /// Held from the beginning of a batch until it is stored. Batches get it in the order of the stream.
    turn: Mutex<()>,
}

impl Appender {
    /// Creates an appender. `database` reports whether appending works.
    pub fn new(
        source: Source,
        store: Store,
        database: Condition,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            source,
            store,
            database,
            shutdown,
            turn: Mutex::new(()),
        }
    }

    /// Appends messages. The next batch is decoded while this one is stored: up to
    /// [`Self::CONCURRENT_BATCHES`] of these futures are polled at the same time, each for the first time in the
    /// order of the stream.
    pub async fn append_messages(&self, messages: &[Received<'_>]) -> Vec<Disposition> {
        let (_turn, (records, mut outcomes)) =
            tokio::join!(biased; self.turn.lock(), self.decode(messages));
        let sequences = messages.iter().map(|one| (one.sequence, one.stored_at));
        let batch = BatchSequences::Messages(sequences.collect());
        let after = match self.append(&batch, &records).await {
            Ok(()) => return outcomes,
            // Not begun: another replica may have it now.
            Err(None) => Duration::ZERO,
            Err(Some(error)) => {
                tracing::error!(
                    error = mesh_runtime::error_chain(&error),
                    stream = self.source.stream(),
                    "append failed, requesting redelivery"
                );
                REDELIVERY_DELAY
            }
        };
        for outcome in &mut outcomes {
            if *outcome == Disposition::Ack {
                *outcome = Disposition::Nak { after };
            }
        }
        outcomes
    }

    /// Decodes messages, many of them on another thread, so that the other batch is not delayed.
    async fn decode(&self, messages: &[Received<'_>]) -> (Vec<Record>, Vec<Disposition>) {
        let source = self.source;
        if messages.len() <= MAX_DECODED_INLINE {
            let messages = messages.iter().map(|one| (one.subject, one.body.clone()));
            return source.decode_all(messages);
        }
        let messages: Vec<_> = messages
            .iter()
            .map(|one| (one.subject.to_owned(), one.body.clone()))
            .collect();
        let decoded = tokio::task::spawn_blocking(move || {
            let messages = messages
                .iter()
                .map(|(subject, body)| (subject.as_str(), body.clone()));
            source.decode_all(messages)
        });
        decoded.await.expect("decoding does not panic")
    }

    /// Appends with retries until success, timeout or shutdown. `None` if it did not begin before the
    /// shutdown.
    async fn append(
        &self,
        batch: &BatchSequences,
        records: &[Record],
    ) -> Result<(), Option<Error>> {
        if self.shutdown.is_cancelled() {
            return Err(None);
        }
        let stream = self.source.stream();
        let give_up = Instant::now() + RETRY_TIMEOUT;
        let mut backoff = Backoff::doubling(Duration::from_millis(50), REDELIVERY_DELAY);
        loop {
            let begin = Instant::now();
            match self.store.append_batch(stream, batch, records).await {
                Ok(appended) => {
                    self.database.ok();
                    metrics::appended(
                        stream,
                        appended.entries.len(),
                        appended.duplicates,
                        appended.conflicts.len(),
                        appended.head.seq,
                        begin.elapsed(),
                    );
                    for entry in &appended.entries {
                        let record = &records[entry.record];
                        if record.index.nodes.unread {
                            metrics::unread_host_list();
                            tracing::warn!(
                                event.id = record.id,
                                seq = entry.seq,
                                "host list of event unreadable, event not indexed by node"
                            );
                        }
                    }
                    for conflict in &appended.conflicts {
                        tracing::info!(
                            event.id = conflict.id,
                            seq = conflict.stored_seq,
                            stream,
                            "duplicate id with different bytes, first entry retained"
                        );
                    }
                    return Ok(());
                }
                // Not retryable; the checkpointer reports it.
                Err(error @ Error::SetBack { .. }) => return Err(Some(error)),
                Err(error) => {
                    metrics::failed(stream);
                    self.database.fail(mesh_runtime::error_chain(&error));
                    let delay = backoff.next_delay();
                    if Instant::now() + delay > give_up || self.shutdown.is_cancelled() {
                        return Err(Some(error));
                    }
                    tracing::warn!(
                        error = mesh_runtime::error_chain(&error),
                        stream,
                        "append failed, retrying"
                    );
                    tokio::select! {
                        () = tokio::time::sleep(delay) => {}
                        () = self.shutdown.cancelled() => {}
                    }
                }
            }
        }
    }
}

impl BatchHandler for Appender {
    /// One is stored, the next is decoded.
    const CONCURRENT_BATCHES: usize = 2;

    async fn handle(&self, messages: &[Message]) -> Vec<Disposition> {
        let received = messages.iter().map(|message| Received {
            subject: &message.subject,
            body: message.body.clone(),
            sequence: message.stream_sequence,
            stored_at: message.published.timestamp_micros(),
        });
        let received: Vec<_> = received.collect();
        self.append_messages(&received).await
    }
}
