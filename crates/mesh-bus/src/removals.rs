//! Notices messages that were removed before their time, as a purge does. They cannot be restored, so the loss is logged and reported.
//!
//! NATS moves a consumer behind what was purged, as if it had read it. So each comparison needs what the one before it saw.

pub(crate) mod snapshot;

use async_nats::jetstream::consumer::Info;
use async_nats::jetstream::stream::{self, RetentionPolicy};
use futures_util::TryStreamExt as _;
use mesh_events::catalogue::STREAMS;

use self::snapshot::{Backlog, StreamSnapshot, is_young, keeps_its_messages, lacks_the_last};
use crate::{BoxError, Bus, Error, metrics};

impl Bus {
    /// Compares what a consumer has not delivered with the last comparison.
    pub(crate) async fn note_backlog(&self, stream: &str, name: &str, info: &Info) {
        let now = Backlog::new(info);
        let before = self.removals.note_backlog(stream, name, now.clone());
        let removed = match &before {
            Some(before) => now.removed_since(before),
            None => 0,
        };
        if removed > 0 {
            self.report_removal(
                stream,
                format!("at least {removed} messages of {stream} that {name} had not read were removed (purged, or too old)"),
            );
        } else if before.is_none() && self.is_purged_unread(stream, info).await {
            self.report_removal(
                stream,
                format!("{stream} was purged: messages that {name} had not read are lost"),
            );
        }
    }

    /// Whether the stream was purged before the process began, as far as the server's own records show it.
    async fn is_purged_unread(&self, stream: &str, info: &Info) -> bool {
        let Ok(found) = self.jetstream.get_stream(stream).await else {
            return false;
        };
        let found = found.cached_info();
        let snapshot = StreamSnapshot::new(found);
        keeps_its_messages(&found.config)
            && snapshot.is_empty()
            && snapshot.last_sequence > 0
            && is_young(snapshot.last_stored, &found.config)
            && lacks_the_last(info, &snapshot)
    }

    /// Compares every stream with its last snapshot, and the consumers of those whose messages are removed once they are handled. For
    /// connections that may provision.
    ///
    /// # Errors
    /// The first one if NATS does not answer for a stream. The others are compared all the same.
    pub async fn note_removals(&self) -> Result<(), Error> {
        let mut noted = Ok(());
        for stream in STREAMS {
            noted = noted.and(Box::pin(self.note_removals_in(stream.name)).await);
        }
        noted
    }

    async fn note_removals_in(&self, name: &str) -> Result<(), Error> {
        let found = self.jetstream.get_stream(name).await;
        let found = found.map_err(|source| failed(name, source.into()))?;
        let config = &found.cached_info().config;
        if config.retention == RetentionPolicy::WorkQueue {
            for info in consumers(&found).await? {
                self.note_backlog(name, &info.name, &info).await;
            }
            return Ok(());
        }
        if !keeps_its_messages(config) {
            return Ok(());
        }
        let now = StreamSnapshot::new(found.cached_info());
        let before = now.earlier(self.removals.last_snapshot(name));
        if let Some(sequence) =
            now.removed_before(before.as_ref(), |stored| is_young(stored, config))
        {
            let message = format!(
                "stream {name} was purged by another client: its messages before sequence {sequence} are lost"
            );
            // Every start finds an old purge again.
            let matters = before.is_some() || {
                let consumers = consumers(&found).await?;
                consumers.iter().any(|info| lacks_the_last(info, &now))
            };
            if matters {
                self.report_removal(name, message);
            } else {
                tracing::info!(
                    stream = name,
                    "{message}; no consumer is known to lack them"
                );
            }
        }
        self.removals.note_snapshot(name, now);
        Ok(())
    }

    fn report_removal(&self, stream: &str, message: String) {
        metrics::removed(stream);
        tracing::error!(stream, "{message}");
        self.status.record(message);
    }
}

async fn consumers(stream: &stream::Stream) -> Result<Vec<Info>, Error> {
    let found = stream.consumers().try_collect().await;
    found.map_err(|source: stream::ConsumersError| {
        failed(&stream.cached_info().config.name, source.into())
    })
}

fn failed(stream: &str, source: BoxError) -> Error {
    Error::jetstream("look for removed messages in", stream)(source)
}
