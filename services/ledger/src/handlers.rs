//! From messages to entries: decode, append, answer.

use std::time::Duration;

use bytes::Bytes;
use mesh_bus::{BatchHandler, Message, Outcome};
use mesh_events::catalogue::{MESH_AUDIT, SLURM_EVENTS};
use mesh_runtime::Condition;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::adapters::{Batch, Store};
use crate::domain::fact::{Fact, NotAFact};
use crate::error::Error;
use crate::metrics;

/// How long a batch is tried again on the spot, which keeps the order of the stream. Well below the consumers' ack wait, after which the
/// server would deliver the batch a second time.
const PATIENCE: Duration = Duration::from_secs(5);
/// Then the server is asked to deliver it again after this time.
const LATER: Duration = Duration::from_secs(2);

/// A stream that the ledger keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The public bus.
    Events,
    /// What the mesh itself did.
    Audit,
}

impl Source {
    /// Name of the stream.
    pub const fn stream(self) -> &'static str {
        match self {
            Self::Events => SLURM_EVENTS,
            Self::Audit => MESH_AUDIT,
        }
    }

    pub(crate) fn decode(self, subject: &str, body: Bytes) -> Result<Fact, NotAFact> {
        match self {
            Self::Events => Fact::event(subject, body),
            Self::Audit => Fact::audit(subject, body),
        }
    }
}

/// Appends what a stream delivers.
pub struct Appender {
    source: Source,
    store: Store,
    database: Condition,
    shutdown: CancellationToken,
}

impl Appender {
    /// Appends to a store; `database` says whether that works.
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

    /// Tries to append until it works, patience ends or the service stops.
    async fn append(&self, batch: &Batch, facts: &[Fact]) -> Result<(), Error> {
        let stream = self.source.stream();
        let give_up = Instant::now() + PATIENCE;
        let mut delay = Duration::from_millis(50);
        loop {
            let begin = Instant::now();
            // Cloning is cheap beside the commit: bodies are shared, not copied.
            match self.store.take_in(stream, batch, facts.to_vec()).await {
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
                        if entry.fact.index.nodes.unread {
                            metrics::unread_host_list();
                            tracing::warn!(
                                event.id = entry.fact.id,
                                seq = entry.seq,
                                "host list of event cannot be read, it is not found by its nodes"
                            );
                        }
                    }
                    for conflict in &appended.conflicts {
                        tracing::info!(
                            event.id = conflict.id,
                            seq = conflict.kept,
                            stream,
                            "fact came again with other bytes, the first is kept"
                        );
                    }
                    return Ok(());
                }
                // Trying again does not mend it, and the checkpointer says it.
                Err(error @ Error::SetBack { .. }) => return Err(error),
                Err(error) => {
                    metrics::failed(stream);
                    self.database.fail(mesh_runtime::chain(&error));
                    if Instant::now() + delay > give_up || self.shutdown.is_cancelled() {
                        return Err(error);
                    }
                    tracing::warn!(
                        error = mesh_runtime::chain(&error),
                        stream,
                        "append, trying again"
                    );
                    tokio::select! {
                        () = tokio::time::sleep(delay) => delay = (delay * 2).min(LATER),
                        () = self.shutdown.cancelled() => {}
                    }
                }
            }
        }
    }
}

impl BatchHandler for Appender {
    async fn handle(&self, messages: &[Message]) -> Vec<Outcome> {
        let mut facts = Vec::with_capacity(messages.len());
        let mut outcomes = Vec::with_capacity(messages.len());
        for message in messages {
            match self.source.decode(&message.subject, message.body.clone()) {
                Ok(fact) => {
                    facts.push(fact);
                    outcomes.push(Outcome::Done);
                }
                Err(error) => {
                    metrics::rejected(self.source.stream());
                    outcomes.push(Outcome::Reject {
                        reason: mesh_runtime::chain(&error),
                    });
                }
            }
        }
        let sequences = messages.iter().map(|message| {
            let stored = message.published.timestamp_micros();
            (message.stream_sequence, stored)
        });
        let batch = Batch::Of(sequences.collect());
        if let Err(error) = self.append(&batch, &facts).await {
            tracing::error!(
                error = mesh_runtime::chain(&error),
                stream = self.source.stream(),
                "append, asking for the messages again later"
            );
            for outcome in &mut outcomes {
                if *outcome == Outcome::Done {
                    *outcome = Outcome::Retry { after: LATER };
                }
            }
        }
        outcomes
    }
}
