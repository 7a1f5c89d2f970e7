//! Metric names of the bus.

/// Publishes by `result`: stored, duplicate, failed.
pub(crate) const PUBLISHED: &str = "mesh_bus_published_total";
/// Handled messages by `stream` and `outcome`: done, retry, reject.
pub(crate) const CONSUMED: &str = "mesh_bus_consumed_total";

/// Tells the recorder what the metrics mean.
pub(crate) fn describe() {
    metrics::describe_counter!(
        PUBLISHED,
        "Publishes, by result: stored, duplicate, failed."
    );
    metrics::describe_counter!(
        CONSUMED,
        "Messages handled, by stream and outcome: done, retry, reject."
    );
}

pub(crate) fn published(result: &'static str) {
    metrics::counter!(PUBLISHED, "result" => result).increment(1);
}

pub(crate) fn consumed(stream: &str, outcome: &'static str) {
    metrics::counter!(CONSUMED, "stream" => stream.to_owned(), "outcome" => outcome).increment(1);
}
