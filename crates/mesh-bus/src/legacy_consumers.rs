//! Consumers that webhook endpoints had in former versions, for the upgrade and nothing else.

use async_nats::jetstream::consumer::Info;
use futures_util::TryStreamExt as _;
use mesh_events::catalogue::{MESH_REPLAY, SLURM_EVENTS};

use crate::{Bus, Error};

/// Prefix of their durable names.
const PREFIX: &str = "wh-";
/// Metadata key of the endpoint's owner.
const OWNER: &str = "mesh-owner";

/// The consumer of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LegacyConsumer {
    /// Its stream: of events, or of replays.
    pub stream: &'static str,
    /// Durable name, a hash of the endpoint's name.
    pub name: String,
    /// Unix user that owns the endpoint; empty for the operator's.
    pub owner: String,
    /// Every message up to this sequence was acknowledged; 0 if none was.
    pub acknowledged: u64,
}

impl Bus {
    /// The consumers of endpoints that exist.
    ///
    /// # Errors
    /// If NATS does not answer.
    pub async fn legacy_consumers(&self) -> Result<Vec<LegacyConsumer>, Error> {
        let mut found = Vec::new();
        for stream in [SLURM_EVENTS, MESH_REPLAY] {
            let failed = || Error::jetstream("list consumers of", stream);
            let handle = self.jetstream.get_stream_no_info(stream).await;
            let handle = handle.map_err(|source| failed()(source.into()))?;
            let infos: Vec<Info> = handle
                .consumers()
                .try_collect()
                .await
                .map_err(|source| failed()(source.into()))?;
            let of_endpoints = infos
                .into_iter()
                .filter(|info| info.name.starts_with(PREFIX));
            found.extend(of_endpoints.map(|info| LegacyConsumer {
                stream,
                owner: info.config.metadata.get(OWNER).cloned().unwrap_or_default(),
                acknowledged: info.ack_floor.stream_sequence,
                name: info.name,
            }));
        }
        Ok(found)
    }

    /// Deletes the consumer of an endpoint.
    ///
    /// # Errors
    /// If NATS refuses.
    pub async fn delete_legacy_consumer(&self, consumer: &LegacyConsumer) -> Result<(), Error> {
        self.delete_consumer(consumer.stream, &consumer.name).await
    }
}
