//! Consumers of webhook endpoints: one each, so that a dead endpoint only hurts itself.

use std::collections::HashMap;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer, pull};
use chrono::{DateTime, Utc};
use futures_util::TryStreamExt as _;
use mesh_events::catalogue::{self, MESH_REPLAY, SLURM_EVENTS};
use mesh_events::webhook_name;

use crate::follow::StartPosition;
use crate::repair::is_absent;
use crate::{Bus, Error};

/// Prefix of the durable names of endpoint consumers.
const PREFIX: &str = "wh-";
/// Metadata of an endpoint consumer: the endpoint's name, and its owner.
const ENDPOINT: &str = "mesh-endpoint";
const OWNER: &str = "mesh-owner";
/// For so long messages are waited for that somebody was given who is not there any more.
const HASTE: Duration = Duration::from_millis(500);

/// What an endpoint consumes.
#[derive(Clone, Debug)]
pub struct EndpointConsumer {
    /// Durable name, `wh-<12 characters>`.
    pub name: String,
    /// The endpoint's full name.
    pub endpoint: String,
    /// Unix user it belongs to; empty for the operator's.
    pub owner: String,
    /// Subjects; empty for all.
    pub filters: Vec<String>,
    /// How many messages may be unanswered.
    pub max_ack_pending: i64,
    /// After this time without an answer a message is delivered again.
    pub ack_wait: Duration,
    /// When the endpoint was made: it gets what NATS took then or later, although its consumer is only made a moment afterwards.
    pub created_at: DateTime<Utc>,
}

impl Bus {
    /// Creates or updates the consumer of an endpoint. A new one begins where the endpoint does. Who calls is the only one to consume it, and
    /// does not yet: what was given to somebody and not answered comes again at once, and not after the ack wait.
    ///
    /// # Errors
    /// If NATS refuses.
    pub async fn endpoint_consumer(&self, endpoint: &EndpointConsumer) -> Result<(), Error> {
        let begin = StartPosition::Since(endpoint.created_at).policy(SLURM_EVENTS)?;
        self.declare_endpoint(SLURM_EVENTS, endpoint, begin).await
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
        let permit = self.declaring.acquire().await;
        let existing: Result<PullConsumer, _> = self
            .jetstream
            .get_consumer_from_stream(&endpoint.name, stream)
            .await;
        let mut former = None;
        // Where a consumer begins cannot be changed afterwards.
        let (deliver_policy, left) = match existing {
            Ok(consumer) => {
                let info = consumer.cached_info();
                (info.config.deliver_policy, info.num_ack_pending)
            }
            Err(_) => {
                if stream == SLURM_EVENTS {
                    former = self.former_endpoint_consumer(endpoint).await?;
                }
                let next = former.as_ref().map(|(_, next)| *next);
                let next =
                    next.map(|start_sequence| DeliverPolicy::ByStartSequence { start_sequence });
                (next.unwrap_or(begin), 0)
            }
        };
        let config = pull::Config {
            durable_name: Some(endpoint.name.clone()),
            description: Some(format!("webhook {}", endpoint.endpoint)),
            metadata: HashMap::from([
                (ENDPOINT.to_owned(), endpoint.endpoint.clone()),
                (OWNER.to_owned(), endpoint.owner.clone()),
            ]),
            filter_subjects: endpoint.filters.clone(),
            deliver_policy,
            ack_policy: AckPolicy::Explicit,
            ack_wait: endpoint.ack_wait,
            max_ack_pending: endpoint.max_ack_pending,
            ..Default::default()
        };
        self.consumers.forget(stream, &endpoint.name);
        if left > 0 {
            let hasty = pull::Config {
                ack_wait: HASTE,
                ..config.clone()
            };
            self.declare_as(stream, hasty, endpoint).await?;
            drop(permit);
            tokio::time::sleep(HASTE).await;
            let _permit = self.declaring.acquire().await;
            self.declare_as(stream, config.clone(), endpoint).await?;
        } else {
            self.declare_as(stream, config.clone(), endpoint).await?;
        }
        // From now on it stays so.
        self.consumers.expect(stream, config);
        if let Some((former, _)) = former {
            self.delete_endpoint_consumer(&former).await?;
        }
        Ok(())
    }

    /// The consumer that an endpoint of a user had when names were not per owner, and the first message that nobody answered it for.
    async fn former_endpoint_consumer(
        &self,
        endpoint: &EndpointConsumer,
    ) -> Result<Option<(String, u64)>, Error> {
        let short = webhook_name::short(&endpoint.endpoint);
        if endpoint.owner.is_empty() || short == endpoint.endpoint {
            return Ok(None);
        }
        let name = catalogue::endpoint_consumer(short);
        let found = self.jetstream.get_consumer_from_stream(&name, SLURM_EVENTS);
        let found: Result<PullConsumer, _> = found.await;
        let consumer = match found {
            Ok(consumer) => consumer,
            Err(error) if is_absent(&error.kind()) => return Ok(None),
            Err(error) => return Err(Error::jetstream("look for consumer", &name)(error.into())),
        };
        let info = consumer.cached_info();
        let says = |key: &str| info.config.metadata.get(key).map(String::as_str);
        // Today it may be that of an endpoint that belongs to no user.
        let is_its_own =
            says(ENDPOINT) == Some(short) && says(OWNER) == Some(endpoint.owner.as_str());
        Ok(is_its_own.then(|| (name, info.ack_floor.stream_sequence + 1)))
    }

    async fn declare_as(
        &self,
        stream: &str,
        config: pull::Config,
        endpoint: &EndpointConsumer,
    ) -> Result<(), Error> {
        self.jetstream
            .create_consumer_on_stream(config, stream)
            .await
            .map(drop)
            .map_err(|source| Error::jetstream("declare consumer", &endpoint.name)(source.into()))
    }

    /// The Unix user to whom a webhook endpoint belongs, as its consumer says: empty for the operator's, `None` if there is no such endpoint.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub async fn endpoint_owner(&self, endpoint: &str) -> Result<Option<String>, Error> {
        let name = catalogue::endpoint_consumer(endpoint);
        let found = self.jetstream.get_consumer_from_stream(&name, SLURM_EVENTS);
        let found: Result<PullConsumer, _> = found.await;
        let consumer = match found {
            Ok(consumer) => consumer,
            Err(error) if is_absent(&error.kind()) => return Ok(None),
            Err(error) => return Err(Error::jetstream("look for consumer", &name)(error.into())),
        };
        let metadata = &consumer.cached_info().config.metadata;
        Ok(match metadata.get(ENDPOINT) {
            Some(known) if known != endpoint => None,
            // One that a dispatcher of a former version made belongs to nobody until the next one has looked after it.
            _ => Some(metadata.get(OWNER).cloned().unwrap_or_default()),
        })
    }

    /// True if an endpoint's consumer has handed out everything there is for it, and had an answer to each.
    ///
    /// # Errors
    /// If there is no such consumer, or NATS does not answer.
    pub async fn has_endpoint_caught_up(&self, name: &str) -> Result<bool, Error> {
        let found = self.jetstream.get_consumer_from_stream(name, SLURM_EVENTS);
        let consumer: PullConsumer = found
            .await
            .map_err(|source| Error::jetstream("look for consumer", name)(source.into()))?;
        let info = consumer.cached_info();
        Ok(info.num_pending == 0 && info.num_ack_pending == 0)
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
        for stream in [MESH_REPLAY, SLURM_EVENTS] {
            self.consumers.forget(stream, name);
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
