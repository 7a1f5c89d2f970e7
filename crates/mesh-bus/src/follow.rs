//! Follows a stream without a durable consumer: for event streams of the API, and for wake-ups.

use async_nats::jetstream::consumer::{DeliverPolicy, pull};
use chrono::{DateTime, Utc};
use futures_util::{Stream, StreamExt as _};
use mesh_events::catalogue::{MESH_REPLAY, SLURM_EVENTS};
use mesh_events::subject;

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

    /// Webhook endpoints that have replayed events, each with the sequence of one: first those already in the stream, then each as it
    /// arrives. Ends when the server is gone.
    ///
    /// # Errors
    /// If the consumer cannot be created.
    pub async fn follow_replayed_endpoints(
        &self,
    ) -> Result<impl Stream<Item = (String, u64)> + use<>, Error> {
        let config = pull::Config {
            filter_subject: subject::ENDPOINT_REPLAY_SUBJECTS.to_owned(),
            deliver_policy: DeliverPolicy::LastPerSubject,
            headers_only: true,
            ..self.ephemeral()
        };
        let messages = self.open_ephemeral(MESH_REPLAY, config).await?;
        Ok(messages.filter_map(async |message| {
            let endpoint = subject::replayed(&message.subject)?.1?;
            Some((endpoint, message.stream_sequence))
        }))
    }
}
