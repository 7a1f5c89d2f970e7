//! Consumes the streams: decodes messages, appends entries, acknowledges.

use std::time::Duration;

use bytes::Bytes;
use mesh_bus::{BatchHandler, Disposition, Message};
use mesh_events::catalogue::{MESH_AUDIT, SLURM_EVENTS};
use mesh_runtime::Condition;
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
}

/// Appends the messages of a stream.
pub struct Appender {
    source: Source,
    store: Store,
    database: Condition,
    shutdown: CancellationToken,
}

impl Appender {
    /// Creates an appender. `database` reports whether appending works.
    pub const fn new(
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
        }
    }

    /// Appends with retries until success, timeout or shutdown.
    async fn append(&self, batch: &BatchSequences, records: &[Record]) -> Result<(), Error> {
        let stream = self.source.stream();
        let give_up = Instant::now() + RETRY_TIMEOUT;
        let mut delay = Duration::from_millis(50);
        loop {
            let begin = Instant::now();
            // Cheap: bodies are shared, not copied.
            match self
                .store
                .append_batch(stream, batch, records.to_vec())
                .await
            {
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
                        if entry.record.index.nodes.unread {
                            metrics::unread_host_list();
                            tracing::warn!(
                                event.id = entry.record.id,
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
                Err(error @ Error::SetBack { .. }) => return Err(error),
                Err(error) => {
                    metrics::failed(stream);
                    self.database.fail(mesh_runtime::error_chain(&error));
                    if Instant::now() + delay > give_up || self.shutdown.is_cancelled() {
                        return Err(error);
                    }
                    tracing::warn!(
                        error = mesh_runtime::error_chain(&error),
                        stream,
                        "append failed, retrying"
                    );
                    tokio::select! {
                        () = tokio::time::sleep(delay) => delay = (delay * 2).min(REDELIVERY_DELAY),
                        () = self.shutdown.cancelled() => {}
                    }
                }
            }
        }
    }
}

impl BatchHandler for Appender {
    async fn handle(&self, messages: &[Message]) -> Vec<Disposition> {
        let mut records = Vec::with_capacity(messages.len());
        let mut outcomes = Vec::with_capacity(messages.len());
        for message in messages {
            match self.source.decode(&message.subject, message.body.clone()) {
                Ok(record) => {
                    records.push(record);
                    outcomes.push(Disposition::Ack);
                }
                Err(error) => {
                    metrics::rejected(self.source.stream());
                    outcomes.push(Disposition::DeadLetter {
                        reason: mesh_runtime::error_chain(&error),
                    });
                }
            }
        }
        let sequences = messages.iter().map(|message| {
            let stored = message.published.timestamp_micros();
            (message.stream_sequence, stored)
        });
        let batch = BatchSequences::Messages(sequences.collect());
        if let Err(error) = self.append(&batch, &records).await {
            tracing::error!(
                error = mesh_runtime::error_chain(&error),
                stream = self.source.stream(),
                "append failed, requesting redelivery"
            );
            for outcome in &mut outcomes {
                if *outcome == Disposition::Ack {
                    *outcome = Disposition::Nak {
                        after: REDELIVERY_DELAY,
                    };
                }
            }
        }
        outcomes
    }
}
