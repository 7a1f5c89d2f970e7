//! Set-up from the catalogue: creates or updates, never deletes.

use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::{kv, stream};
use mesh_events::catalogue::{self, BUCKETS, CONSUMERS, STREAMS};

use crate::{Bus, Error};

impl Bus {
    /// Declares every stream, consumer and bucket of the catalogue.
    ///
    /// # Errors
    /// If NATS refuses one; the error names it.
    pub async fn provision(&self) -> Result<(), Error> {
        for stream in STREAMS {
            self.jetstream
                .create_or_update_stream(self.stream_config(stream))
                .await
                .map_err(|source| Error::jetstream("declare stream", stream.name)(source.into()))?;
        }
        for consumer in CONSUMERS {
            self.jetstream
                .create_consumer_on_stream(consumer_config(consumer), consumer.stream)
                .await
                .map_err(|source| {
                    Error::jetstream("declare consumer", consumer.name)(source.into())
                })?;
        }
        for bucket in BUCKETS {
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

    fn stream_config(&self, stream: &catalogue::Stream) -> stream::Config {
        let max_bytes = match self.config.events_max_bytes {
            Some(bytes) if stream.name == catalogue::SLURM_EVENTS => bytes,
            _ => stream.max_bytes,
        };
        stream::Config {
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
            ..Default::default()
        }
    }
}

fn consumer_config(consumer: &catalogue::Consumer) -> pull::Config {
    pull::Config {
        durable_name: Some(consumer.name.to_owned()),
        filter_subjects: consumer
            .filters
            .iter()
            .map(|&filter| filter.to_owned())
            .collect(),
        ack_policy: AckPolicy::Explicit,
        ack_wait: consumer.ack_wait,
        max_ack_pending: consumer.max_ack_pending,
        ..Default::default()
    }
}
