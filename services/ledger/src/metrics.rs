//! Names, units and labels of the ledger's metrics.

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use std::time::Duration;

const APPENDED: &str = "ledger_entries_total";
const DUPLICATES: &str = "ledger_duplicates_total";
const CONFLICTS: &str = "ledger_conflicts_total";
const REJECTED: &str = "ledger_rejected_total";
const UNREAD: &str = "ledger_unread_host_lists_total";
const FAILURES: &str = "ledger_append_failures_total";
const HEAD: &str = "ledger_head_sequence";
const SECONDS: &str = "ledger_append_seconds";
const CHECKPOINTS: &str = "ledger_checkpoints_total";
const CHECKPOINT_SIZE: &str = "ledger_checkpoint_size";
const ARCHIVED: &str = "ledger_archived_sequence";
const HOLES: &str = "ledger_holes_total";
const OPEN_HOLES: &str = "ledger_holes_open";
const OPEN_HOLES_MESSAGES: &str = "ledger_holes_open_messages";
const OPEN_HOLES_SINCE: &str = "ledger_holes_open_since_seconds";
const RESTORED: &str = "ledger_restored_total";
const CHECKPOINTS_REFUSED: &str = "ledger_checkpoints_refused";
const SUBTREES_REPAIRED: &str = "ledger_subtrees_repaired_total";
const CONTRADICTED: &str = "ledger_contradictions_total";
const REPLAYED: &str = "ledger_replayed_total";
const REPLAYS: &str = "ledger_replays_running";
/// Why no checkpoint is signed.
const REASONS: [&str; 4] = ["inconsistent", "no_key", "unwitnessed", "failed"];

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
        UNREAD,
        "Events with a host list that cannot be read: they are kept, and not found by its nodes."
    );
    describe_counter!(
        FAILURES,
        "Batches that could not be stored and are tried again, by stream."
    );
    describe_gauge!(HEAD, "Sequence of the last entry.");
    describe_counter!(CHECKPOINTS, "Checkpoints signed.");
    describe_gauge!(
        CHECKPOINT_SIZE,
        "Entries that the newest checkpoint signed here counts."
    );
    describe_gauge!(
        ARCHIVED,
        "Sequence of the last entry whose content was archived or erased."
    );
    describe_counter!(
        HOLES,
        "Holes found: messages that were gone before the ledger had them, by stream."
    );
    describe_gauge!(OPEN_HOLES, "Holes of which no end was told yet.");
    describe_gauge!(
        OPEN_HOLES_MESSAGES,
        "Messages that these holes miss, of those whose size is known."
    );
    describe_gauge!(
        OPEN_HOLES_SINCE,
        "When the oldest of them was found, in seconds since 1970; 0 if none is open."
    );
    describe_counter!(
        RESTORED,
        "Entries taken in from the stream itself, as their messages were answered before, by stream."
    );
    describe_gauge!(
        CHECKPOINTS_REFUSED,
        "1 while no checkpoint is signed, by reason: inconsistent (it would contradict one that was signed: act), no_key, unwitnessed (too few cosignatures), failed."
    );
    describe_counter!(
        CONTRADICTED,
        "Times that a checkpoint with a signature of the ledger's key was found that its entries do not give."
    );
    describe_counter!(
        SUBTREES_REPAIRED,
        "Times the stored subtrees were not those of the entries and were made anew."
    );
    describe_counter!(REPLAYED, "Events that were told once more.");
    describe_gauge!(REPLAYS, "Replays that this process works on.");
    describe_histogram!(SECONDS, "Time to store one batch durably, in seconds.");
}

/// Subtrees were made anew.
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
    gauge!(HEAD).set(head as f64);
    histogram!(SECONDS).record(took.as_secs_f64());
}

pub(crate) fn rejected(stream: &'static str) {
    counter!(REJECTED, "stream" => stream).increment(1);
}

pub(crate) fn unread_host_list() {
    counter!(UNREAD).increment(1);
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

pub(crate) fn hole(stream: &str) {
    counter!(HOLES, "stream" => stream.to_owned()).increment(1);
}

/// `since`: when the oldest was found, in microseconds since 1970.
pub(crate) fn open_holes(count: usize, messages: u64, since: Option<i64>) {
    gauge!(OPEN_HOLES).set(count as f64);
    gauge!(OPEN_HOLES_MESSAGES).set(messages as f64);
    gauge!(OPEN_HOLES_SINCE).set((since.unwrap_or_default() / 1_000_000) as f64);
}

pub(crate) fn restored(stream: &'static str, entries: usize) {
    counter!(RESTORED, "stream" => stream).increment(entries as u64);
}

/// `None`: nothing stands in the way.
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
