//! Declares the catalogue: creates or updates. Deletes only consumers that the catalogue lists as retired.

use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::{kv, stream};
use mesh_events::catalogue::{self, BUCKETS, CONSUMERS, RETIRED_CONSUMERS, STREAMS};

use crate::{Bus, Error};

/// Consumer limit of the streams that had a consumer per webhook endpoint in former versions. A lower one would be refused at the upgrade,
/// before the dispatcher has deleted them.
const MAX_CONSUMERS: i32 = 1_000_000;

impl Bus {
    /// Declares every stream, bucket and consumer of the catalogue, except per-cluster consumers, which their readers declare.
    ///
    /// # Errors
    /// If NATS refuses one; the error names it.
    pub async fn provision(&self) -> Result<(), Error> {
        self.declare_catalogue(|_| true).await
    }

    /// As [`Self::provision`], with these streams and buckets only. The stream of a bucket is `KV_<bucket>`.
    pub(crate) async fn declare_catalogue(
        &self,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<(), Error> {
        for stream in STREAMS.iter().filter(|stream| is_wanted(stream.name)) {
            self.jetstream
                .create_or_update_stream(self.stream_config(stream))
                .await
                .map_err(|source| Error::jetstream("declare stream", stream.name)(source.into()))?;
        }
        for (stream, durable) in RETIRED_CONSUMERS {
            let retired = self.jetstream.delete_consumer_from_stream(durable, stream);
            if retired.await.is_ok() {
                tracing::info!(stream, consumer = durable, "obsolete consumer deleted");
            }
        }
        self.retire_legacy_consumers().await?;
        for consumer in CONSUMERS.iter().filter(|consumer| !consumer.per_cluster) {
            self.declare(consumer, "").await?;
        }
        let is_wanted_bucket =
            |bucket: &&catalogue::Bucket| is_wanted(&format!("KV_{}", bucket.name));
        for bucket in BUCKETS.iter().filter(is_wanted_bucket) {
            let config = kv::Config {
                bucket: bucket.name.to_owned(),
                description: bucket.summary.to_owned(),
                max_value_size: bucket.max_value_size,
                history: 1,
                num_replicas: self.config.replicas,
                ..Default::default()
            };
            self.jetstream
                .create_or_update_key_value(config)
                .await
                .map_err(|source| Error::jetstream("declare bucket", bucket.name)(source.into()))?;
        }
        Ok(())
    }

    /// Declares a consumer, for a cluster's token.
    pub(crate) async fn declare(
        &self,
        consumer: &catalogue::Consumer,
        token: &str,
    ) -> Result<PullConsumer, Error> {
        self.checked_consumer(consumer.stream, &consumer.of(token))
            .await
    }

    fn stream_config(&self, stream: &catalogue::Stream) -> stream::Config {
        let max_bytes = match self.config.events_max_bytes {
            Some(bytes) if stream.name == catalogue::SLURM_EVENTS => bytes,
            _ => stream.max_bytes,
        };
        // These streams get a message per delivery or request; a batch costs one sync.
        let many = [catalogue::MESH_AUDIT, catalogue::MESH_DEAD].contains(&stream.name);
        let by_endpoint = [catalogue::SLURM_EVENTS, catalogue::MESH_REPLAY].contains(&stream.name);
        stream::Config {
            // Before 2.15 there was no limit, and changing one was refused.
            max_consumers: if by_endpoint && self.is_at_least((2, 15)) {
                MAX_CONSUMERS
            } else {
                0
            },
            name: stream.name.to_owned(),
            description: Some(stream.summary.to_owned()),
            subjects: stream
                .subjects
                .iter()
                .map(|&subject| subject.to_owned())
                .collect(),
            retention: if stream.work_queue {
                stream::RetentionPolicy::WorkQueue
            } else {
                stream::RetentionPolicy::Limits
            },
            storage: stream::StorageType::File,
            discard: stream::DiscardPolicy::New,
            max_age: stream.max_age,
            max_bytes,
            duplicate_window: catalogue::DEDUPE_WINDOW,
            num_replicas: self.config.replicas,
            allow_direct: true,
            allow_atomic_publish: many,
            ..Default::default()
        }
    }
}

pub(crate) fn consumer_config(consumer: &catalogue::Consumer, token: &str) -> pull::Config {
    let durable = match consumer.per_cluster {
        true => format!("{}-{token}", consumer.name),
        false => consumer.name.to_owned(),
    };
    pull::Config {
        durable_name: Some(durable),
        filter_subjects: consumer.filters_of(token),
        ack_policy: AckPolicy::Explicit,
        ack_wait: consumer.ack_wait,
        max_ack_pending: consumer.max_ack_pending,
        ..Default::default()
    }
}
