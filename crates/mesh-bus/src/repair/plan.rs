//! Plans the repair of a consumer, by its declaration, what is found, and what the last good comparison saw.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_nats::jetstream::consumer::{Config, DeliverPolicy, Info, IntoConsumerConfig as _, pull};
use mesh_events::catalogue::STREAMS;

/// Stream and durable name.
type Key = (String, String);

/// The durable consumers that this connection reads.
#[derive(Default)]
pub(crate) struct Consumers(Mutex<HashMap<Key, Watched>>);

#[derive(Default)]
pub(super) struct Watched {
    pub(super) verified: Option<Verified>,
    /// Why it is being replaced. A request that timed out may have been done: what the next comparison finds then is our own doing.
    pub(super) replacing: Option<&'static str>,
}

/// State of a consumer at the last good comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verified {
    pub(super) created: time::OffsetDateTime,
    /// Every message up to this stream sequence was acknowledged.
    pub(super) ack_floor: u64,
}

/// What has to be done about a consumer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Repair {
    /// It was never declared.
    Create,
    /// It gets the right messages, but its limits differ.
    Update(&'static str),
    /// It got other messages, or another reader did.
    Replace(&'static str),
}

impl Consumers {
    pub(super) fn remove(&self, stream: &str, name: &str) {
        self.lock().remove(&(stream.to_owned(), name.to_owned()));
    }

    pub(super) fn with<T>(
        &self,
        stream: &str,
        name: &str,
        read: impl FnOnce(&mut Watched) -> T,
    ) -> T {
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

/// Start of a recreated consumer.
pub(super) fn begin(
    stream: &str,
    declared: DeliverPolicy,
    verified: Option<Verified>,
) -> DeliverPolicy {
    let work_queue = STREAMS
        .iter()
        .any(|one| one.name == stream && one.work_queue);
    match verified {
        // A work queue holds only unacknowledged messages, and the server allows no other start.
        Some(verified) if !work_queue && verified.ack_floor > 0 => DeliverPolicy::ByStartSequence {
            start_sequence: verified.ack_floor + 1,
        },
        _ => declared,
    }
}

/// What makes a consumer what it is declared to be; `None` if it is.
pub(super) fn plan_repair(
    expected: &pull::Config,
    found: Option<&Info>,
    verified: Option<Verified>,
) -> Option<Repair> {
    match (found, verified) {
        (Some(found), verified) => difference(expected, found, verified),
        (None, Some(_)) => Some(Repair::Replace("it was deleted")),
        (None, None) => Some(Repair::Create),
    }
}

/// Compares a consumer with its declaration.
fn difference(expected: &pull::Config, found: &Info, verified: Option<Verified>) -> Option<Repair> {
    let expected = expected.clone().into_consumer_config();
    let config = &found.config;
    let begins_elsewhere = match config.deliver_policy {
        DeliverPolicy::All | DeliverPolicy::ByStartSequence { .. } => false,
        other => other != expected.deliver_policy,
    };
    if verified.is_some_and(|verified| verified.created != found.created) {
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

/// The subjects that a consumer gets; none for all.
pub(crate) fn filters(config: &Config) -> Vec<&str> {
    let one = Some(config.filter_subject.as_str()).filter(|one| !one.is_empty());
    let many = config.filter_subjects.iter().map(String::as_str);
    let mut filters: Vec<&str> = one.into_iter().chain(many).collect();
    filters.sort_unstable();
    filters
}
