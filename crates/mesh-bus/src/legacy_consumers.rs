//! Consumers that webhook endpoints had in former versions, for the upgrade and nothing else.

use std::time::Duration;

use async_nats::jetstream::consumer::{FromConsumer as _, Info, pull};
use futures_util::TryStreamExt as _;
use mesh_events::catalogue::{MESH_REPLAY, SLURM_EVENTS};

use crate::{Bus, Error};

/// Prefix of their durable names.
const PREFIX: &str = "wh-";
/// Metadata key of the endpoint's owner.
const OWNER: &str = "mesh-owner";

/// The server deletes one that nobody read for this time: the dispatcher took over its position meanwhile, or the stream has none of its
/// messages any more.
const INACTIVE_THRESHOLD: Duration = Duration::from_secs(14 * 24 * 3600);

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
            let of_endpoints = self.legacy_infos(stream).await?;
            found.extend(of_endpoints.into_iter().map(|info| LegacyConsumer {
                stream,
                owner: info.config.metadata.get(OWNER).cloned().unwrap_or_default(),
                acknowledged: info.ack_floor.stream_sequence,
                name: info.name,
            }));
        }
        Ok(found)
    }

    async fn legacy_infos(&self, stream: &str) -> Result<Vec<Info>, Error> {
        let failed = || Error::jetstream("list consumers of", stream);
        let handle = self.jetstream.get_stream_no_info(stream).await;
        let handle = handle.map_err(|source| failed()(source.into()))?;
        let infos: Vec<Info> = handle
            .consumers()
            .try_collect()
            .await
            .map_err(|source| failed()(source.into()))?;
        let infos = infos.into_iter();
        Ok(infos.filter(|info| info.name.starts_with(PREFIX)).collect())
    }

    /// Makes the server delete such consumers some time after nobody reads them any more. The dispatcher itself has no right to delete
    /// consumers of any name.
    pub(crate) async fn retire_legacy_consumers(&self) -> Result<(), Error> {
        for stream in [SLURM_EVENTS, MESH_REPLAY] {
            for info in self.legacy_infos(stream).await? {
                if !info.config.inactive_threshold.is_zero() {
                    continue;
                }
                let failed = || Error::jetstream("update consumer", &info.name);
                let config = pull::Config {
                    inactive_threshold: INACTIVE_THRESHOLD,
                    ..pull::Config::try_from_consumer_config(info.config.clone())
                        .map_err(failed())?
                };
                let updated = self.jetstream.update_consumer_on_stream(config, stream);
                updated.await.map_err(|source| failed()(source.into()))?;
            }
        }
        Ok(())
    }

    /// Deletes the consumer of an endpoint. Needs the right to declare.
    ///
    /// # Errors
    /// If NATS refuses.
    pub async fn delete_legacy_consumer(&self, consumer: &LegacyConsumer) -> Result<(), Error> {
        self.delete_consumer(consumer.stream, &consumer.name).await
    }
}
