//! Follows a stream without a durable consumer: for event streams of the API, and for wake-ups.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use chrono::{DateTime, Utc};
use futures_util::{Stream, StreamExt as _};
use mesh_events::catalogue::{MESH_REPLAY, SLURM_EVENTS};
use mesh_events::subject;

use crate::consume::messages;
use crate::{Bus, Error, Message};

/// Where to begin.
#[derive(Clone, Copy, Debug)]
pub enum StartPosition {
    /// With messages published from now on.
    New,
    /// With this stream sequence.
    Sequence(u64),
    /// With messages stored at or after this time.
    Since(DateTime<Utc>),
}

impl StartPosition {
    pub(crate) fn policy(self, stream: &str) -> Result<DeliverPolicy, Error> {
        Ok(match self {
            Self::New => DeliverPolicy::New,
            Self::Sequence(start_sequence) => DeliverPolicy::ByStartSequence { start_sequence },
            Self::Since(time) => {
                let nanos = i128::from(time.timestamp()) * 1_000_000_000
                    + i128::from(time.timestamp_subsec_nanos());
                let start_time =
                    time::OffsetDateTime::from_unix_timestamp_nanos(nanos).map_err(|source| {
                        Error::jetstream("start at a time in", stream)(source.into())
                    })?;
                DeliverPolicy::ByStartTime { start_time }
            }
        })
    }
}

impl Bus {
    /// Follows a subject of the public bus in order, without a consumer; nothing is acknowledged. The stream recovers from reconnects by
    /// itself.
    ///
    /// # Errors
    /// If the stream does not exist or NATS does not answer.
    pub async fn follow(
        &self,
        filter: &str,
        start: StartPosition,
    ) -> Result<impl Stream<Item = Result<Message, Error>> + use<>, Error> {
        self.read_stream(SLURM_EVENTS, filter.to_owned(), start)
            .await
    }

    /// Names of webhook endpoints that have replayed events: first those already in the stream, then each as it arrives. Ends when the
    /// server is gone.
    ///
    /// # Errors
    /// If the consumer cannot be created.
    pub async fn follow_replayed_endpoints(
        &self,
    ) -> Result<impl Stream<Item = String> + use<>, Error> {
        let config = pull::Config {
            // Permissions allow creating a consumer only with a name.
            name: Some(format!("{}-{:016x}", self.role(), rand::random::<u64>())),
            filter_subject: subject::ENDPOINT_REPLAY_SUBJECTS.to_owned(),
            deliver_policy: DeliverPolicy::LastPerSubject,
            headers_only: true,
            ack_policy: AckPolicy::None,
            inactive_threshold: Duration::from_secs(60),
            ..Default::default()
        };
        let consumer = self
            .jetstream
            .create_consumer_on_stream(config, MESH_REPLAY)
            .await
            .map_err(|source| Error::jetstream("follow", MESH_REPLAY)(source.into()))?;
        let messages = messages(consumer, 256, Arc::clone(&self.declaring)).await?;
        Ok(messages.filter_map(async |message| subject::replayed(&message.subject)?.1))
    }
}
