//! Keeps durable consumers as declared. Compares them every minute and whenever they are opened, and repairs those that were changed or
//! deleted. Every repair is logged and reported.
//!
//! A consumer that got other messages meanwhile is recreated. It begins after the last message acknowledged at the last good comparison, so
//! nothing is skipped. Readers recognise duplicates by their id.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::consumer::{
    Config, DeliverPolicy, Info, IntoConsumerConfig as _, PullConsumer, pull,
};
use async_nats::jetstream::stream::ConsumerErrorKind;
use mesh_events::catalogue::{self, Consumer, STREAMS};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::metrics::Pending;
use crate::provision::consumer_config;
use crate::{Bus, Error, metrics};

/// Interval of comparisons.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Stream and durable name.
type Key = (String, String);

/// The durable consumers that this connection reads.
#[derive(Default)]
pub(crate) struct Consumers(Mutex<HashMap<Key, Watched>>);

#[derive(Default)]
struct Watched {
    seen: Option<Seen>,
    /// Why it is being replaced. A request that timed out may have been done: what the next comparison finds then is our own doing.
    replacing: Option<&'static str>,
}

/// State of a consumer at the last good comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    created: time::OffsetDateTime,
    /// Every message up to this stream sequence was acknowledged.
    ack_floor: u64,
}

/// What has to be done about a consumer.
#[derive(Debug, PartialEq, Eq)]
enum Repair {
    /// It gets the right messages, but its limits differ.
    Update(&'static str),
    /// It got other messages, or another reader did.
    Replace(&'static str),
}

impl Consumers {
    pub(crate) fn remove(&self, stream: &str, name: &str) {
        self.lock().remove(&(stream.to_owned(), name.to_owned()));
    }

    fn with<T>(&self, stream: &str, name: &str, read: impl FnOnce(&mut Watched) -> T) -> T {
        read(
            self.lock()
                .entry((stream.to_owned(), name.to_owned()))
                .or_default(),
        )
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Watched>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bus {
    /// Opens a consumer as the catalogue declares it, after repairing it if needed.
    pub(crate) async fn checked_consumer(
        &self,
        stream: &str,
        name: &str,
    ) -> Result<PullConsumer, Error> {
        let failed = || Error::jetstream("open consumer", name);
        let found = self.jetstream.get_consumer_from_stream(name, stream).await;
        let found: Option<PullConsumer> = match found {
            Ok(consumer) => Some(consumer),
            Err(error) if is_absent(&error.kind()) => None,
            Err(error) => return Err(failed()(error.into())),
        };
        let Some(expected) = of_catalogue(stream, name) else {
            return found.ok_or_else(|| failed()("it does not exist".into()));
        };
        let mut seen = self.consumers.with(stream, name, |one| one.seen);
        let repair = match found.as_ref().map(PullConsumer::cached_info) {
            None if seen.is_none() => None,
            None => Some(Repair::Replace("it was deleted")),
            Some(info) => repair(&expected, info, seen),
        };
        let repair = repair.map(|repair| match repair {
            Repair::Replace(change) => Repair::Replace(
                self.consumers
                    .with(stream, name, |one| *one.replacing.get_or_insert(change)),
            ),
            Repair::Update(change) => Repair::Update(change),
        });
        let consumer = match (found, &repair) {
            (Some(consumer), None) => consumer,
            (Some(consumer), Some(Repair::Update(_))) => {
                let deliver_policy = consumer.cached_info().config.deliver_policy;
                self.make(
                    stream,
                    pull::Config {
                        deliver_policy,
                        ..expected
                    },
                )
                .await?
            }
            (found, _) => {
                if found.is_some() {
                    let deleted = self
                        .jetstream
                        .delete_consumer_from_stream(name, stream)
                        .await;
                    deleted.map_err(|source| failed()(source.into()))?;
                }
                let known = self.jetstream.get_stream(stream).await;
                let known = known.map_err(|source| failed()(source.into()))?;
                // A stream that was created after its consumer counts from 1 again.
                seen = seen.filter(|seen| known.cached_info().created <= seen.created);
                let deliver_policy = begin(stream, expected.deliver_policy, seen);
                self.make(
                    stream,
                    pull::Config {
                        deliver_policy,
                        ..expected
                    },
                )
                .await?
            }
        };
        if let Some(Repair::Update(change) | Repair::Replace(change)) = repair {
            metrics::repaired(stream);
            tracing::error!(
                stream,
                consumer = name,
                from_sequence = seen.map(|seen| seen.ack_floor + 1),
                "consumer repaired: {change} by another client"
            );
            self.status
                .repaired(format!("consumer {name} of {stream}: {change}"));
        }
        let info = consumer.cached_info();
        Pending::of(stream, name).set(info.num_pending);
        let seen = Seen {
            created: info.created,
            ack_floor: info
                .ack_floor
                .stream_sequence
                .max(seen.map_or(0, |seen| seen.ack_floor)),
        };
        self.consumers.with(stream, name, |one| {
            one.seen = Some(seen);
            one.replacing = None;
        });
        Ok(consumer)
    }

    /// Recreates a consumer of the catalogue, so that it begins with the first message of its stream. It must not be read meanwhile.
    ///
    /// # Errors
    /// If NATS refuses.
    pub async fn recreate_consumer(&self, stream: &str, name: &str) -> Result<(), Error> {
        let deleted = self
            .jetstream
            .delete_consumer_from_stream(name, stream)
            .await;
        if let Err(error) = deleted {
            tracing::debug!(%error, consumer = name, "delete consumer");
        }
        self.consumers.remove(stream, name);
        self.checked_consumer(stream, name).await.map(drop)
    }

    async fn make(&self, stream: &str, config: pull::Config) -> Result<PullConsumer, Error> {
        let name = config.durable_name.clone().unwrap_or_default();
        let made = self.jetstream.create_consumer_on_stream(config, stream);
        made.await
            .map_err(|source| Error::jetstream("declare consumer", &name)(source.into()))
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

/// Start of a recreated consumer.
fn begin(stream: &str, declared: DeliverPolicy, seen: Option<Seen>) -> DeliverPolicy {
    let work_queue = STREAMS
        .iter()
        .any(|one| one.name == stream && one.work_queue);
    match seen {
        // A work queue holds only unacknowledged messages, and the server allows no other start.
        Some(seen) if !work_queue && seen.ack_floor > 0 => DeliverPolicy::ByStartSequence {
            start_sequence: seen.ack_floor + 1,
        },
        _ => declared,
    }
}

/// Compares a consumer with its declaration.
fn repair(expected: &pull::Config, found: &Info, seen: Option<Seen>) -> Option<Repair> {
    let expected = expected.clone().into_consumer_config();
    let config = &found.config;
    let begins_elsewhere = match config.deliver_policy {
        DeliverPolicy::All | DeliverPolicy::ByStartSequence { .. } => false,
        other => other != expected.deliver_policy,
    };
    if seen.is_some_and(|seen| seen.created != found.created) {
        Some(Repair::Replace("it was deleted and recreated"))
    } else if config.durable_name != expected.durable_name
        || config.deliver_subject.is_some()
        || config.ack_policy != expected.ack_policy
        || begins_elsewhere
    {
        Some(Repair::Replace("its kind was changed"))
    } else if filters(config) != filters(&expected) {
        Some(Repair::Replace("its filters were changed"))
    } else if config.headers_only || config.max_deliver > 0 {
        Some(Repair::Replace("its delivery policy was changed"))
    } else if config.ack_wait != expected.ack_wait
        || config.max_ack_pending != expected.max_ack_pending
        || config.backoff != expected.backoff
        || config.inactive_threshold != expected.inactive_threshold
        || found.paused
        || config.max_batch != expected.max_batch
        || config.max_bytes != expected.max_bytes
        || config.max_expires != expected.max_expires
    {
        Some(Repair::Update("its limits were changed"))
    } else {
        None
    }
}

fn filters(config: &Config) -> Vec<&str> {
    let one = Some(config.filter_subject.as_str()).filter(|one| !one.is_empty());
    let many = config.filter_subjects.iter().map(String::as_str);
    let mut filters: Vec<&str> = one.into_iter().chain(many).collect();
    filters.sort_unstable();
    filters
}

pub(crate) fn is_absent(kind: &ConsumerErrorKind) -> bool {
    matches!(kind, ConsumerErrorKind::JetStream(error) if error.error_code() == ErrorCode::CONSUMER_NOT_FOUND)
}
