//! Consumers of webhook endpoints: one each, so that a failing endpoint delays no other.

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
/// Metadata keys of an endpoint consumer: the endpoint's name, and its owner.
const ENDPOINT: &str = "mesh-endpoint";
const OWNER: &str = "mesh-owner";
/// Shortened ack wait that returns messages which a former replica left unacknowledged.
const HASTE: Duration = Duration::from_millis(500);

/// Declaration of an endpoint's consumer.
#[derive(Clone, Debug)]
pub struct EndpointConsumer {
    /// Durable name, `wh-<12 characters>`.
    pub name: String,
    /// The endpoint's full name.
    pub endpoint: String,
    /// Unix user that owns the endpoint; empty for the operator's.
    pub owner: String,
    /// Subjects; empty for all.
    pub filters: Vec<String>,
    /// Limit of unacknowledged messages.
    pub max_ack_pending: i64,
    /// Time without an acknowledgement after which a message is redelivered.
    pub ack_wait: Duration,
    /// When the endpoint was created. It receives messages stored then or later, although its consumer is created a moment afterwards.
    pub created_at: DateTime<Utc>,
}

impl Bus {
    /// Creates or updates the consumer of an endpoint. A new one begins at the endpoint's creation. The caller must be the only reader and
    /// must not have begun: messages that another replica left unacknowledged are redelivered at once, not after the ack wait.
    ///
    /// # Errors
    /// If NATS refuses.
    pub async fn endpoint_consumer(&self, endpoint: &EndpointConsumer) -> Result<(), Error> {
        let begin = StartPosition::Since(endpoint.created_at).policy(SLURM_EVENTS)?;
        self.declare_endpoint(SLURM_EVENTS, endpoint, begin).await
    }

    /// Creates or updates the consumer of an endpoint's replayed events. A new one begins with the first stored message.
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
        // The start of a consumer cannot be changed afterwards.
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
        self.consumers.remove(stream, &endpoint.name);
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
        // From now on this declaration is enforced.
        self.consumers.expect(stream, config);
        if let Some((former, _)) = former {
            self.delete_endpoint_consumer(&former).await?;
        }
        Ok(())
    }

    /// The consumer that an endpoint of a user had before names were per owner, and its first unacknowledged sequence.
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
            Err(error) => return Err(Error::jetstream("look up consumer", &name)(error.into())),
        };
        let info = consumer.cached_info();
        let metadata_value = |key: &str| info.config.metadata.get(key).map(String::as_str);
        // The same name may belong to an endpoint without an owner today.
        let is_its_own = metadata_value(ENDPOINT) == Some(short)
            && metadata_value(OWNER) == Some(endpoint.owner.as_str());
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

    /// The Unix user that owns a webhook endpoint, from its consumer's metadata: empty for the operator's, `None` if there is no such
    /// endpoint.
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
            Err(error) => return Err(Error::jetstream("look up consumer", &name)(error.into())),
        };
        let metadata = &consumer.cached_info().config.metadata;
        Ok(match metadata.get(ENDPOINT) {
            Some(known) if known != endpoint => None,
            // A consumer made by an earlier version has no owner until the dispatcher updates it.
            _ => Some(metadata.get(OWNER).cloned().unwrap_or_default()),
        })
    }

    /// True if an endpoint's consumer has delivered all its messages and all are acknowledged.
    ///
    /// # Errors
    /// If there is no such consumer, or NATS does not answer.
    pub async fn has_endpoint_caught_up(&self, name: &str) -> Result<bool, Error> {
        let found = self.jetstream.get_consumer_from_stream(name, SLURM_EVENTS);
        let consumer: PullConsumer = found
            .await
            .map_err(|source| Error::jetstream("look up consumer", name)(source.into()))?;
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

    /// Deletes both consumers of a removed endpoint.
    ///
    /// # Errors
    /// If the name is not that of an endpoint's consumer, or NATS refuses.
    pub async fn delete_endpoint_consumer(&self, name: &str) -> Result<(), Error> {
        if !name.starts_with(PREFIX) {
            return Err(Error::jetstream("delete consumer", name)(
                "not an endpoint's consumer".into(),
            ));
        }
        for stream in [MESH_REPLAY, SLURM_EVENTS] {
            self.consumers.remove(stream, name);
        }
        // The replay consumer goes first: an endpoint's consumers are found by the other one.
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
