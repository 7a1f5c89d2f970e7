//! Names of metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use slurm_types::Lifecycle;

use crate::domain::TrackedNode;

/// Nodes, by `lifecycle`.
pub const NODES: &str = "node_watcher_nodes";
/// Nodes that do not respond but are not down yet.
pub const SUSPECT: &str = "node_watcher_suspect_nodes";
/// Events published, by `event`.
pub const EVENTS: &str = "node_watcher_events_total";
/// Duration of polls, including storing and publishing.
pub const POLL_SECONDS: &str = "node_watcher_poll_seconds";
/// Doorbells, by `outcome`: `looked`, `left_to_next`, `probe`, `unusable`.
pub const DOORBELLS: &str = "node_watcher_doorbells_total";
/// Polls without a usable answer.
pub const FAILURES: &str = "node_watcher_poll_failures_total";
/// State writes refused because another instance has taken over.
pub const CONFLICTS: &str = "node_watcher_state_conflicts_total";

/// Registers the descriptions of the metrics.
pub(crate) fn describe() {
    describe_gauge!(NODES, "Nodes, by lifecycle.");
    describe_gauge!(SUSPECT, "Nodes that do not respond but are not down.");
    describe_counter!(EVENTS, "Events published, by event.");
    describe_histogram!(
        POLL_SECONDS,
        Unit::Seconds,
        "Duration of a poll of all nodes."
    );
    describe_counter!(
        DOORBELLS,
        "Doorbells, by outcome: looked, left_to_next, probe, unusable."
    );
    describe_counter!(FAILURES, "Polls without a usable response.");
    describe_counter!(
        CONFLICTS,
        "State writes refused because another instance has taken over."
    );
}

const STAGES: [Lifecycle; 8] = [
    Lifecycle::Provisioning,
    Lifecycle::Active,
    Lifecycle::Draining,
    Lifecycle::Drained,
    Lifecycle::Down,
    Lifecycle::Terminating,
    Lifecycle::Terminated,
    Lifecycle::Unknown,
];

#[allow(clippy::cast_precision_loss, reason = "gauges")]
pub(crate) fn polled(nodes: &BTreeMap<String, TrackedNode>, took: Duration) {
    histogram!(POLL_SECONDS).record(took.as_secs_f64());
    let present = || nodes.values().filter(|node| !node.deleted);
    for stage in STAGES {
        gauge!(NODES, "lifecycle" => stage.as_str())
            .set(present().filter(|node| node.lifecycle == stage).count() as f64);
    }
    gauge!(SUSPECT).set(present().filter(|node| node.suspect).count() as f64);
}

pub(crate) fn event(event: &'static str) {
    counter!(EVENTS, "event" => event).increment(1);
}

pub(crate) fn doorbell(outcome: &'static str) {
    counter!(DOORBELLS, "outcome" => outcome).increment(1);
}

pub(crate) fn failed() {
    counter!(FAILURES).increment(1);
}

pub(crate) fn conflict() {
    counter!(CONFLICTS).increment(1);
}
