//! Consumers of webhook endpoints: one each, so that a dead endpoint only hurts itself.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer, pull};
use futures_util::TryStreamExt as _;
use mesh_events::catalogue::{MESH_REPLAY, SLURM_EVENTS};

use crate::{Bus, Error};

/// Prefix of the durable names of endpoint consumers.
const PREFIX: &str = "wh-";

/// What an endpoint consumes.
#[derive(Clone, Debug)]
pub struct EndpointConsumer {
    /// Durable name, `wh-<12 characters>`.
    pub name: String,
    /// For operators: the endpoint's own name.
    pub description: String,
    /// Subjects; empty for all.
    pub filters: Vec<String>,
    /// How many messages may be unanswered.
    pub max_ack_pending: i64,
    /// After this time without an answer a message is delivered again.
    pub ack_wait: Duration,
}

impl Bus {
    /// Creates or updates the consumer of an endpoint. A new one begins with events that come after its creation.
    ///
    /// # Errors
    /// If NATS refuses.
    pub async fn endpoint_consumer(&self, endpoint: &EndpointConsumer) -> Result<(), Error> {
        self.declare_endpoint(SLURM_EVENTS, endpoint, DeliverPolicy::New)
            .await
    }

    /// Creates or updates the consumer of what is told once more to an endpoint. A new one begins with what is there.
    ///
    /// # Errors
    /// If NATS refuses.
    pub async fn replay_consumer(&self, endpoint: &EndpointConsumer) -> Result<(), Error> {
        self.declare_endpoint(MESH_REPLAY, endpoint, DeliverPolicy::All)
            .await
    }

    async fn declare_endpoint(
        &self,
        stream: &str,
        endpoint: &EndpointConsumer,
        begin: DeliverPolicy,
    ) -> Result<(), Error> {
        let existing: Result<PullConsumer, _> = self
            .jetstream
            .get_consumer_from_stream(&endpoint.name, stream)
            .await;
        // Where a consumer begins cannot be changed afterwards.
        let deliver_policy = existing.map_or(begin, |consumer| {
            consumer.cached_info().config.deliver_policy
        });
        let config = pull::Config {
            durable_name: Some(endpoint.name.clone()),
            description: Some(endpoint.description.clone()),
            filter_subjects: endpoint.filters.clone(),
            deliver_policy,
            ack_policy: AckPolicy::Explicit,
            ack_wait: endpoint.ack_wait,
            max_ack_pending: endpoint.max_ack_pending,
            ..Default::default()
        };
        self.jetstream
            .create_consumer_on_stream(config, stream)
            .await
            .map(drop)
            .map_err(|source| Error::jetstream("declare consumer", &endpoint.name)(source.into()))
    }

    /// Names of the endpoint consumers that exist.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub async fn endpoint_consumers(&self) -> Result<Vec<String>, Error> {
        let stream = self
            .jetstream
            .get_stream(SLURM_EVENTS)
            .await
            .map_err(|source| Error::jetstream("open stream", SLURM_EVENTS)(source.into()))?;
        let names: Vec<String> = stream
            .consumer_names()
            .try_collect()
            .await
            .map_err(|source| Error::jetstream("list consumers of", SLURM_EVENTS)(source.into()))?;
        Ok(names
            .into_iter()
            .filter(|name| name.starts_with(PREFIX))
            .collect())
    }

    /// Deletes the consumers of an endpoint that is gone.
    ///
    /// # Errors
    /// If it is no endpoint's consumer, or NATS refuses.
    pub async fn delete_endpoint_consumer(&self, name: &str) -> Result<(), Error> {
        if !name.starts_with(PREFIX) {
            return Err(Error::jetstream("delete consumer", name)(
                "not an endpoint's consumer".into(),
            ));
        }
        // First, as the other one is what an endpoint's consumers are found by.
        let replays = self
            .jetstream
            .delete_consumer_from_stream(name, MESH_REPLAY);
        if let Err(error) = replays.await {
            tracing::debug!(%error, consumer = name, "delete consumer of replays");
        }
        self.jetstream
            .delete_consumer_from_stream(name, SLURM_EVENTS)
            .await
            .map(drop)
            .map_err(|source| Error::jetstream("delete consumer", name)(source.into()))
    }
}
