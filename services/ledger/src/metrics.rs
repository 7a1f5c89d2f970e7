//! Names, units and labels of the ledger's metrics.

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use std::time::Duration;

const APPENDED: &str = "ledger_entries_total";
const DUPLICATES: &str = "ledger_duplicates_total";
const CONFLICTS: &str = "ledger_conflicts_total";
const REJECTED: &str = "ledger_rejected_total";
const FAILURES: &str = "ledger_append_failures_total";
const HEAD: &str = "ledger_head_sequence";
const SECONDS: &str = "ledger_append_seconds";

/// Describes every metric; once per process.
pub fn describe() {
    describe_counter!(APPENDED, "Entries appended, by stream.");
    describe_counter!(
        DUPLICATES,
        "Facts that came again with the same bytes, by stream."
    );
    describe_counter!(
        CONFLICTS,
        "Facts that came again with other bytes and were not kept, by stream."
    );
    describe_counter!(
        REJECTED,
        "Messages that are no fact and were parked, by stream."
    );
    describe_counter!(
        FAILURES,
        "Batches that could not be stored and are tried again, by stream."
    );
    describe_gauge!(HEAD, "Sequence of the last entry.");
    describe_histogram!(SECONDS, "Time to store one batch durably, in seconds.");
}

pub(crate) fn appended(
    stream: &'static str,
    entries: usize,
    duplicates: u64,
    conflicts: usize,
    head: u64,
    took: Duration,
) {
    counter!(APPENDED, "stream" => stream).increment(entries as u64);
    counter!(DUPLICATES, "stream" => stream).increment(duplicates);
    counter!(CONFLICTS, "stream" => stream).increment(conflicts as u64);
    gauge!(HEAD).set(head as f64);
    histogram!(SECONDS).record(took.as_secs_f64());
}

pub(crate) fn rejected(stream: &'static str) {
    counter!(REJECTED, "stream" => stream).increment(1);
}

pub(crate) fn failed(stream: &'static str) {
    counter!(FAILURES, "stream" => stream).increment(1);
}
