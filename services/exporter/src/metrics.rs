//! Names of the metrics of the process itself.

use std::time::Duration;

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

/// Events by `outcome`: `counted`, `repeated`, `ignored`, `rejected`.
pub const EVENTS: &str = "exporter_events_total";
/// Duration of making all pages.
pub const REFRESH_SECONDS: &str = "exporter_refresh_seconds";
/// Series of the newest page, by `page`.
pub const SERIES: &str = "exporter_series";
/// Failures to make the pages.
pub const FAILURES: &str = "exporter_refresh_failures_total";

/// Registers the descriptions of the metrics.
pub(crate) fn describe() {
    describe_counter!(
        EVENTS,
        "Events by outcome: counted, repeated (counted before), ignored (nothing to count), rejected (unreadable)."
    );
    describe_histogram!(
        REFRESH_SECONDS,
        Unit::Seconds,
        "Duration of making all pages."
    );
    describe_gauge!(SERIES, "Series of the newest page, by page.");
    describe_counter!(
        FAILURES,
        "Failures to read snapshots or counters for the pages."
    );
}

pub(crate) fn events(outcome: &'static str, count: u64) {
    counter!(EVENTS, "outcome" => outcome).increment(count);
}

pub(crate) fn refreshed(took: Duration) {
    histogram!(REFRESH_SECONDS).record(took.as_secs_f64());
}

#[allow(clippy::cast_precision_loss, reason = "a gauge")]
pub(crate) fn page(page: &'static str, series: usize) {
    gauge!(SERIES, "page" => page).set(series as f64);
}

pub(crate) fn failed() {
    counter!(FAILURES).increment(1);
}
