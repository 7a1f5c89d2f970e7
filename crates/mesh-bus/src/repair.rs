//! Keeps durable consumers as declared. Compares them every minute and whenever they are opened, and repairs those that were changed or
//! deleted. Every repair is logged and reported.
//!
//! A consumer that got other messages meanwhile is recreated. It begins after the last message acknowledged at the last good comparison, so
//! nothing is skipped. Readers recognise duplicates by their id.

pub(crate) mod plan;

use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::consumer::{PullConsumer, pull};
use async_nats::jetstream::stream::ConsumerErrorKind;
use mesh_events::catalogue::{self, Consumer};
use tokio_util::sync::{CancellationToken, DropGuard};

use self::plan::{Repair, Verified, begin, plan_repair};
use crate::metrics::ConsumerMetrics;
use crate::provision::consumer_config;
use crate::{Bus, Error, metrics};

/// Interval of comparisons.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(60);

impl Bus {
    /// Opens a consumer as the catalogue declares it, after repairing it if needed.
    pub(crate) async fn checked_consumer(
        &self,
        stream: &str,
        name: &str,
    ) -> Result<PullConsumer, Error> {
        let found = self.find_consumer(stream, name).await?;
        let Some(expected) = of_catalogue(stream, name) else {
            let missing = || Error::jetstream("open consumer", name)("it does not exist".into());
            return found.ok_or_else(missing);
        };
        let mut verified = self.consumers.with(stream, name, |one| one.verified);
        let info = found.as_ref().map(PullConsumer::cached_info);
        let mut repair = plan_repair(&expected, info, verified);
        if let Some(Repair::Replace(change)) = &mut repair {
            *change = self
                .consumers
                .with(stream, name, |one| *one.replacing.get_or_insert(*change));
        }
        if matches!(repair, Some(Repair::Create | Repair::Replace(_))) {
            verified = self.verified_in(stream, name, verified).await?;
        }
        let consumer = self
            .apply(stream, expected, found, repair.as_ref(), verified)
            .await?;
        if let Some(Repair::Update(change) | Repair::Replace(change)) = repair {
            self.report_repair(stream, name, change, verified);
        }
        self.remember(stream, name, &consumer, verified);
        self.note_backlog(stream, name, consumer.cached_info())
            .await;
        Ok(consumer)
    }

    async fn find_consumer(&self, stream: &str, name: &str) -> Result<Option<PullConsumer>, Error> {
        match self.jetstream.get_consumer_from_stream(name, stream).await {
            Ok(consumer) => Ok(Some(consumer)),
            Err(error) if is_absent(&error.kind()) => Ok(None),
            Err(error) => Err(Error::jetstream("open consumer", name)(error.into())),
        }
    }

    /// The last good comparison, if it was of the stream that exists now. A stream that was created after its consumer counts from 1 again.
    async fn verified_in(
        &self,
        stream: &str,
        name: &str,
        verified: Option<Verified>,
    ) -> Result<Option<Verified>, Error> {
        let stream = self.jetstream.get_stream(stream).await;
        let stream =
            stream.map_err(|source| Error::jetstream("open consumer", name)(source.into()))?;
        Ok(verified.filter(|verified| stream.cached_info().created <= verified.created))
    }

    /// Makes the consumer what the catalogue declares.
    async fn apply(
        &self,
        stream: &str,
        expected: pull::Config,
        found: Option<PullConsumer>,
        repair: Option<&Repair>,
        verified: Option<Verified>,
    ) -> Result<PullConsumer, Error> {
        let deliver_policy = match (found, repair) {
            (Some(consumer), None) => return Ok(consumer),
            (Some(consumer), Some(Repair::Update(_))) => {
                consumer.cached_info().config.deliver_policy
            }
            (found, _) => {
                if found.is_some() {
                    let name = expected.durable_name.as_deref().unwrap_or_default();
                    self.delete_consumer(stream, name).await?;
                }
                begin(stream, expected.deliver_policy, verified)
            }
        };
        self.create_consumer(
            stream,
            pull::Config {
                deliver_policy,
                ..expected
            },
        )
        .await
    }

    fn report_repair(
        &self,
        stream: &str,
        name: &str,
        change: &'static str,
        verified: Option<Verified>,
    ) {
        metrics::repaired(stream);
        tracing::error!(
            stream,
            consumer = name,
            from_sequence = verified.map(|verified| verified.ack_floor + 1),
            "consumer repaired: {change} by another client"
        );
        self.status
            .repaired(format!("consumer {name} of {stream}: {change}"));
    }

    /// Notes a good comparison.
    fn remember(
        &self,
        stream: &str,
        name: &str,
        consumer: &PullConsumer,
        before: Option<Verified>,
    ) {
        let info = consumer.cached_info();
        ConsumerMetrics::of(stream, name).compared(info);
        let ack_floor = info.ack_floor.stream_sequence;
        let verified = Verified {
            created: info.created,
            ack_floor: ack_floor.max(before.map_or(0, |before| before.ack_floor)),
        };
        self.consumers.with(stream, name, |one| {
            one.verified = Some(verified);
            one.replacing = None;
        });
    }

    /// Recreates a consumer of the catalogue, so that it begins with the first message of its stream. It must not be read meanwhile.
    ///
    /// # Errors
    /// If NATS refuses, or does not answer, as without the right to delete it. The consumer may still be the former one then.
    pub async fn recreate_consumer(&self, stream: &str, name: &str) -> Result<(), Error> {
        self.delete_consumer(stream, name).await?;
        self.consumers.remove(stream, name);
        self.checked_consumer(stream, name).await.map(drop)
    }

    async fn create_consumer(
        &self,
        stream: &str,
        config: pull::Config,
    ) -> Result<PullConsumer, Error> {
        let name = config.durable_name.clone().unwrap_or_default();
        let declared = self.jetstream.create_consumer_on_stream(config, stream);
        declared
            .await
            .map_err(|source| Error::jetstream("declare consumer", &name)(source.into()))
    }

    /// Deletes a consumer if it exists.
    pub(crate) async fn delete_consumer(&self, stream: &str, name: &str) -> Result<(), Error> {
        let deleted = self.jetstream.delete_consumer_from_stream(name, stream);
        match deleted.await {
            Err(error) if !is_absent(&error.kind()) => {
                Err(Error::jetstream("delete consumer", name)(error.into()))
            }
            _ => Ok(()),
        }
    }

    /// Compares a consumer every minute until the guard is dropped.
    pub(crate) fn checking(
        &self,
        stream: &str,
        name: &str,
        shutdown: &CancellationToken,
    ) -> DropGuard {
        let stop = shutdown.child_token();
        let (bus, stream, name) = (self.clone(), stream.to_owned(), name.to_owned());
        let checks = async move { bus.keep_checking(&stream, &name).await };
        tokio::spawn(stop.clone().run_until_cancelled_owned(checks));
        stop.drop_guard()
    }

    async fn keep_checking(&self, stream: &str, name: &str) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let _permit = self.declaring.acquire().await;
            if let Err(error) = self.checked_consumer(stream, name).await {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    stream,
                    consumer = name,
                    "check consumer"
                );
            }
        }
    }
}

/// The catalogue's declaration of a consumer, if it has one.
pub(crate) fn of_catalogue(stream: &str, name: &str) -> Option<pull::Config> {
    let (consumer, token) = Consumer::of_cluster(stream, name).or_else(|| {
        let mut all = catalogue::CONSUMERS.iter();
        let same = |one: &&Consumer| !one.per_cluster && one.stream == stream && one.name == name;
        Some((all.find(same)?, ""))
    })?;
    Some(consumer_config(consumer, token))
}

pub(crate) fn is_absent(kind: &ConsumerErrorKind) -> bool {
    matches!(kind, ConsumerErrorKind::JetStream(error) if error.error_code() == ErrorCode::CONSUMER_NOT_FOUND)
}
