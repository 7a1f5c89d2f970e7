//! Names of metrics.

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};

/// Explanations published, by `cause`: `event`, `snapshot`.
pub const EXPLAINED: &str = "pending_explainer_explained_total";
/// Pending jobs.
pub const WAITING: &str = "pending_explainer_waiting_jobs";
/// Age of the newest complete queue snapshot.
pub const SNAPSHOT_AGE: &str = "pending_explainer_snapshot_age_seconds";
/// Age of the newest complete evidence.
pub const EVIDENCE_AGE: &str = "pending_explainer_evidence_age_seconds";
/// State writes refused because another instance wrote in between.
pub const CONFLICTS: &str = "pending_explainer_state_conflicts_total";
/// Reasons missing from all tables.
pub const UNKNOWN_REASONS: &str = "pending_explainer_unknown_reasons_total";

/// Registers the descriptions of the metrics.
pub(crate) fn describe() {
    describe_counter!(
        EXPLAINED,
        "Explanations published, by cause: event, snapshot."
    );
    describe_gauge!(WAITING, "Pending jobs.");
    describe_gauge!(
        SNAPSHOT_AGE,
        Unit::Seconds,
        "Age of the newest complete queue snapshot."
    );
    describe_gauge!(
        EVIDENCE_AGE,
        Unit::Seconds,
        "Age of the newest complete evidence. It grows while no job waits."
    );
    describe_counter!(
        CONFLICTS,
        "State writes refused because another instance wrote in the meantime."
    );
    describe_counter!(UNKNOWN_REASONS, "Unknown pending reasons.");
}

pub(crate) fn explained(cause: &'static str, class: &str) {
    counter!(EXPLAINED, "cause" => cause).increment(1);
    if class == "unknown" {
        counter!(UNKNOWN_REASONS).increment(1);
    }
}

pub(crate) fn conflict() {
    counter!(CONFLICTS).increment(1);
}

#[allow(clippy::cast_precision_loss, reason = "a gauge")]
pub(crate) fn waiting(jobs: usize) {
    gauge!(WAITING).set(jobs as f64);
}

#[allow(clippy::cast_precision_loss, reason = "a gauge")]
pub(crate) fn snapshot_age(seconds: i64) {
    gauge!(SNAPSHOT_AGE).set(seconds as f64);
}

#[allow(clippy::cast_precision_loss, reason = "a gauge")]
pub(crate) fn evidence_age(seconds: i64) {
    gauge!(EVIDENCE_AGE).set(seconds as f64);
}
