//! Every metric of this crate.

use std::time::Duration;

/// Histogram: how long a command took. Label `command`: squeue, scontrol, sacct.
pub const COMMAND_DURATION: &str = "slurm_client_command_duration_seconds";
/// Counter: commands without a usable answer. Labels `command`, `kind` (see `Error::kind`).
pub const COMMAND_ERRORS: &str = "slurm_client_command_errors_total";
/// Counter: items of answers that could not be read and were left out. Label `command`. More than zero means Slurm's output changed.
pub const UNREAD_ITEMS: &str = "slurm_client_unread_items_total";

/// Registers the descriptions of the metrics.
pub(crate) fn describe() {
    metrics::describe_histogram!(
        COMMAND_DURATION,
        metrics::Unit::Seconds,
        "Duration of Slurm commands, by command."
    );
    metrics::describe_counter!(
        COMMAND_ERRORS,
        "Commands without a usable answer, by command and kind of error."
    );
    metrics::describe_counter!(
        UNREAD_ITEMS,
        "Unreadable items of answers that were skipped, by command."
    );
}

pub(crate) fn took(command: &'static str, time: Duration) {
    metrics::histogram!(COMMAND_DURATION, "command" => command).record(time.as_secs_f64());
}

pub(crate) fn failed(command: &'static str, kind: &'static str) {
    metrics::counter!(COMMAND_ERRORS, "command" => command, "kind" => kind).increment(1);
}

pub(crate) fn unread(command: &'static str, items: usize) {
    if items > 0 {
        metrics::counter!(UNREAD_ITEMS, "command" => command).increment(items as u64);
    }
}
