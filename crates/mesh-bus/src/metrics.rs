//! Metric names of the bus.

use async_nats::jetstream::consumer;
use chrono::Utc;

use crate::Message;

/// Publishes by `result`: stored, duplicate, failed.
pub(crate) const PUBLISHED: &str = "mesh_bus_published_total";
/// Handled messages by `stream` and `outcome`: done, retry, reject.
pub(crate) const CONSUMED: &str = "mesh_bus_consumed_total";

/// Messages that a consumer has still to deliver, by `stream` and `consumer`.
pub(crate) const PENDING: &str = "mesh_bus_pending";

/// Messages delivered to a consumer and not settled yet, by `stream` and `consumer`.
const UNACKNOWLEDGED: &str = "mesh_bus_unacknowledged";

/// Age of messages at their first delivery, by `stream` and `consumer`.
const MESSAGE_AGE: &str = "mesh_bus_message_age_seconds";

/// Consumers, streams and buckets found changed or deleted, by `stream`.
pub(crate) const REPAIRED: &str = "mesh_bus_repairs_total";

/// Times that messages were found removed before their time, by `stream`.
pub(crate) const REMOVED: &str = "mesh_bus_removals_total";

/// Whether this replica leads, by `service` and `cluster`.
pub(crate) const LEADER: &str = "mesh_leader";

/// Registers the descriptions of the metrics.
pub(crate) fn describe() {
    metrics::describe_counter!(
        PUBLISHED,
        "Publishes, by result: stored, duplicate, failed."
    );
    metrics::describe_counter!(
        CONSUMED,
        "Messages handled, by stream and outcome: done, retry, reject."
    );
    metrics::describe_gauge!(
        PENDING,
        "Messages not delivered to the consumer yet, by stream and consumer. Updated at each message and once a minute."
    );
    metrics::describe_gauge!(
        UNACKNOWLEDGED,
        "Messages delivered to the consumer and not settled yet, by stream and consumer. Updated once a minute."
    );
    metrics::describe_histogram!(
        MESSAGE_AGE,
        metrics::Unit::Seconds,
        "From the storage of a message to its first delivery, by stream and consumer."
    );
    metrics::describe_counter!(
        REPAIRED,
        "Consumers, streams and buckets that other clients changed or deleted and that were repaired, by stream."
    );
    metrics::describe_counter!(
        REMOVED,
        "Times that messages were found removed before their time, as by a purge, by stream. They are lost."
    );
    metrics::describe_gauge!(
        LEADER,
        "1 while this replica leads, by service and cluster; 0 on standby or while NATS does not answer."
    );
}

pub(crate) fn published(result: &'static str, count: u64) {
    metrics::counter!(PUBLISHED, "result" => result).increment(count);
}

pub(crate) fn consumed(stream: &str, outcome: &'static str) {
    metrics::counter!(CONSUMED, "stream" => stream.to_owned(), "outcome" => outcome).increment(1);
}

/// The metrics of a consumer of the catalogue. Consumers of endpoints are left out: users would control the number of labels.
#[derive(Clone)]
pub(crate) struct ConsumerMetrics {
    pending: metrics::Gauge,
    unacknowledged: metrics::Gauge,
    message_age: metrics::Histogram,
}

impl ConsumerMetrics {
    pub(crate) fn of(stream: &str, consumer: &str) -> Self {
        let labels = [
            metrics::Label::new("stream", stream.to_owned()),
            metrics::Label::new("consumer", consumer.to_owned()),
        ];
        Self {
            pending: metrics::gauge!(PENDING, labels.iter()),
            unacknowledged: metrics::gauge!(UNACKNOWLEDGED, labels.iter()),
            message_age: metrics::histogram!(MESSAGE_AGE, labels.iter()),
        }
    }

    /// A message came, after which this number is still to be delivered.
    pub(crate) fn received(&self, message: &Message) {
        self.pending(message.pending);
        if message.delivery == 1 {
            // Never negative: the clocks of two hosts may differ.
            let age = (Utc::now() - message.published).to_std();
            self.message_age.record(age.unwrap_or_default());
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "no stream has 2^53 messages")]
    pub(crate) fn pending(&self, messages: u64) {
        self.pending.set(messages as f64);
    }

    /// What the server says about the consumer.
    #[expect(clippy::cast_precision_loss, reason = "no stream has 2^53 messages")]
    pub(crate) fn compared(&self, info: &consumer::Info) {
        self.pending(info.num_pending);
        self.unacknowledged.set(info.num_ack_pending as f64);
    }
}

pub(crate) fn repaired(stream: &str) {
    metrics::counter!(REPAIRED, "stream" => stream.to_owned()).increment(1);
}

pub(crate) fn removed(stream: &str) {
    metrics::counter!(REMOVED, "stream" => stream.to_owned()).increment(1);
}

pub(crate) fn leader(service: &str, cluster: &str, is_leader: bool) {
    let leads = if is_leader { 1.0 } else { 0.0 };
    metrics::gauge!(LEADER, "service" => service.to_owned(), "cluster" => cluster.to_owned())
        .set(leads);
}
