//! Names, units and labels of the ledger's metrics.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};

const APPENDED: &str = "ledger_entries_total";
const DUPLICATES: &str = "ledger_duplicates_total";
const CONFLICTS: &str = "ledger_conflicts_total";
const REJECTED: &str = "ledger_rejected_total";
const UNREADABLE_HOST_LISTS: &str = "ledger_unreadable_host_lists_total";
const FAILURES: &str = "ledger_append_failures_total";
const HEAD_SEQUENCE: &str = "ledger_head_sequence";
/// Sequence of the last entry that this process has stored.
static NEWEST_HEAD: Mutex<u64> = Mutex::new(0);
const APPEND_DURATION: &str = "ledger_append_seconds";
const CHECKPOINTS: &str = "ledger_checkpoints_total";
const CHECKPOINT_SIZE: &str = "ledger_checkpoint_size";
const ARCHIVED: &str = "ledger_archived_sequence";
const GAPS: &str = "ledger_gaps_total";
const OPEN_GAPS: &str = "ledger_gaps_open";
const OPEN_GAPS_MESSAGES: &str = "ledger_gaps_open_messages";
const OPEN_GAPS_SINCE: &str = "ledger_gaps_open_since_seconds";
const RECOVERED: &str = "ledger_recovered_total";
const CHECKPOINTS_REFUSED: &str = "ledger_checkpoints_refused";
const SUBTREES_REPAIRED: &str = "ledger_subtrees_repaired_total";
const CONTRADICTED: &str = "ledger_contradictions_total";
const REPLAYED: &str = "ledger_replayed_total";
const REPLAYS: &str = "ledger_replays_running";
/// Reasons why no checkpoint is signed.
const REASONS: [&str; 4] = ["inconsistent", "no_key", "unwitnessed", "failed"];

/// Describes all metrics. Call it once per process.
pub fn describe() {
    describe_counter!(APPENDED, "Entries appended, by stream.");
    describe_counter!(
        DUPLICATES,
        "Events received again with the same bytes, by stream."
    );
    describe_counter!(
        CONFLICTS,
        "Events received again with different bytes and discarded, by stream."
    );
    describe_counter!(
        REJECTED,
        "Messages that could not be decoded and became dead letters, by stream."
    );
    describe_counter!(
        UNREADABLE_HOST_LISTS,
        "Events with an unreadable host list: stored, but not indexed by node."
    );
    describe_counter!(
        FAILURES,
        "Batches that could not be stored and are retried, by stream."
    );
    describe_gauge!(HEAD_SEQUENCE, "Sequence of the last entry.");
    describe_counter!(CHECKPOINTS, "Checkpoints signed.");
    describe_gauge!(
        CHECKPOINT_SIZE,
        "Size of the newest checkpoint signed by this process."
    );
    describe_gauge!(
        ARCHIVED,
        "Sequence of the last entry whose content was archived or erased."
    );
    describe_counter!(
        GAPS,
        "Gaps found: messages lost from the stream before the ledger received them, by stream."
    );
    describe_gauge!(OPEN_GAPS, "Gaps not closed yet.");
    describe_gauge!(
        OPEN_GAPS_MESSAGES,
        "Messages missing in open gaps of known size."
    );
    describe_gauge!(
        OPEN_GAPS_SINCE,
        "When the oldest open gap was found, in seconds since 1970; 0 if none is open."
    );
    describe_counter!(
        RECOVERED,
        "Entries recovered from the stream because their messages were not delivered, by stream."
    );
    describe_gauge!(
        CHECKPOINTS_REFUSED,
        "1 while no checkpoint is signed, by reason: inconsistent (it would contradict a signed one; act), no_key, unwitnessed (too few cosignatures), failed."
    );
    describe_counter!(
        CONTRADICTED,
        "Checkpoints found that are signed by the ledger's key but contradict its entries."
    );
    describe_counter!(
        SUBTREES_REPAIRED,
        "Times the stored subtrees did not match the entries and were rebuilt."
    );
    describe_counter!(REPLAYED, "Events replayed.");
    describe_gauge!(REPLAYS, "Replays running in this process.");
    describe_histogram!(
        APPEND_DURATION,
        "Time to store one batch durably, in seconds."
    );
}

pub(crate) fn subtrees_repaired() {
    counter!(SUBTREES_REPAIRED).increment(1);
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
    // Batches of the two streams are stored one after the other, but may come here in another order.
    let mut newest = NEWEST_HEAD.lock().unwrap_or_else(PoisonError::into_inner);
    *newest = head.max(*newest);
    gauge!(HEAD_SEQUENCE).set(*newest as f64);
    drop(newest);
    histogram!(APPEND_DURATION).record(took.as_secs_f64());
}

pub(crate) fn rejected(stream: &'static str) {
    counter!(REJECTED, "stream" => stream).increment(1);
}

pub(crate) fn unread_host_list() {
    counter!(UNREADABLE_HOST_LISTS).increment(1);
}

pub(crate) fn failed(stream: &'static str) {
    counter!(FAILURES, "stream" => stream).increment(1);
}

pub(crate) fn checkpoint(size: u64) {
    counter!(CHECKPOINTS).increment(1);
    gauge!(CHECKPOINT_SIZE).set(size as f64);
}

pub(crate) fn archived(seq: u64) {
    gauge!(ARCHIVED).set(seq as f64);
}

pub(crate) fn gap(stream: &str) {
    counter!(GAPS, "stream" => stream.to_owned()).increment(1);
}

/// `since` is the detection time of the oldest open gap, in microseconds since 1970.
pub(crate) fn set_open_gaps(count: usize, messages: u64, since: Option<i64>) {
    gauge!(OPEN_GAPS).set(count as f64);
    gauge!(OPEN_GAPS_MESSAGES).set(messages as f64);
    gauge!(OPEN_GAPS_SINCE).set((since.unwrap_or_default() / 1_000_000) as f64);
}

pub(crate) fn recovered(stream: &'static str, entries: usize) {
    counter!(RECOVERED, "stream" => stream).increment(entries as u64);
}

/// `None` means that signing works.
pub(crate) fn checkpoints_refused(because: Option<&str>) {
    for reason in REASONS {
        let refused = because == Some(reason);
        gauge!(CHECKPOINTS_REFUSED, "reason" => reason).set(f64::from(u8::from(refused)));
    }
}

pub(crate) fn contradicted() {
    counter!(CONTRADICTED).increment(1);
}

pub(crate) fn replayed(events: usize) {
    counter!(REPLAYED).increment(events as u64);
}

pub(crate) fn replays(running: usize) {
    gauge!(REPLAYS).set(running as f64);
}
