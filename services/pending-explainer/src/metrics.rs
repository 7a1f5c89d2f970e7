//! Names of metrics.

use std::time::Duration;

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use queue_estimate::estimator::CLASS_NAMES;
use queue_estimate::quality::Outcome;

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
/// Finished estimates whose job started by the bound, by `bound` (`p50`, `p90`) and `class` of the remaining wait.
pub const COVERED: &str = "pending_explainer_eta_covered_total";
/// Finished estimates whose job started later than the bound, by the same.
pub const MISSED: &str = "pending_explainer_eta_missed_total";
/// Difference between P50 and the start.
pub const ESTIMATE_ERROR: &str = "pending_explainer_eta_error_seconds";
/// Duration of a cycle of estimates.
pub const ESTIMATE_CYCLE: &str = "pending_explainer_eta_cycle_seconds";

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
    describe_counter!(
        COVERED,
        "Finished start estimates whose job started by the bound, by bound (p50, p90) and class of the remaining wait."
    );
    describe_counter!(
        MISSED,
        "Finished start estimates whose job started later than the bound, by bound and class."
    );
    describe_histogram!(
        ESTIMATE_ERROR,
        Unit::Seconds,
        "Difference between P50 and the start."
    );
    describe_histogram!(
        ESTIMATE_CYCLE,
        Unit::Seconds,
        "Duration of a cycle of start estimates."
    );
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

pub(crate) fn estimate_cycle(took: Duration) {
    histogram!(ESTIMATE_CYCLE).record(took.as_secs_f64());
}

#[allow(clippy::cast_precision_loss, reason = "a histogram")]
pub(crate) fn estimate_finished(outcome: &Outcome) {
    let class = CLASS_NAMES[usize::from(outcome.class) % CLASS_NAMES.len()];
    for (bound, value) in [("p50", outcome.p50), ("p90", outcome.p90)] {
        let Some(value) = value else { continue };
        let name = if outcome.actual <= value {
            COVERED
        } else {
            MISSED
        };
        counter!(name, "bound" => bound, "class" => class).increment(1);
    }
    if let Some(p50) = outcome.p50 {
        histogram!(ESTIMATE_ERROR).record((outcome.actual - p50).abs() as f64);
    }
}
