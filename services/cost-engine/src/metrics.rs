//! All metrics of this service.

/// Costs computed; labels `kind` (estimated, accrued, finalized, adjusted) and `result` (priced, no_price).
const COSTS: &str = "cost_engine_costs_total";
/// Job events handled; label `result` (used, ignored, repeated, rejected).
const JOB_EVENTS: &str = "cost_engine_job_events_total";
/// Cost events published; label `result` (stored, refused).
const PUBLISHED: &str = "cost_engine_published_total";
/// Price book reads after a change; label `result` (used, refused).
const RELOADS: &str = "cost_engine_price_book_reloads_total";
/// 1 while the price book on disk is faulty and the last good one is used, else 0.
const STALE: &str = "cost_engine_price_book_stale";

/// Budget reads after a change; label `result` (used, refused).
const BUDGET_RELOADS: &str = "cost_engine_budget_reloads_total";
/// 1 while budgets on disk are faulty and the last good ones are used, else 0.
const BUDGETS_STALE: &str = "cost_engine_budgets_stale";
/// Duration of evaluations of all budgets.
const EVALUATIONS: &str = "cost_engine_budget_evaluation_seconds";
/// Events of budgets; label `type` (user.quota_high, user.quota_exceeded, user.quota_cleared).
const QUOTA_EVENTS: &str = "cost_engine_budget_events_total";

/// Describes every metric.
pub(crate) fn describe() {
    metrics::describe_counter!(
        COSTS,
        "Costs computed, by kind and by whether there was a price"
    );
    metrics::describe_counter!(JOB_EVENTS, "Job events handled");
    metrics::describe_counter!(PUBLISHED, "Cost events published");
    metrics::describe_counter!(RELOADS, "Price book reads after a change");
    metrics::describe_gauge!(
        STALE,
        "1 while the price book on disk is faulty and the last good one is used"
    );
    metrics::describe_counter!(BUDGET_RELOADS, "Budget reads after a change");
    metrics::describe_gauge!(
        BUDGETS_STALE,
        "1 while budgets on disk are faulty and the last good ones are used"
    );
    metrics::describe_histogram!(EVALUATIONS, "Duration of evaluations of all budgets");
    metrics::describe_counter!(QUOTA_EVENTS, "Events of budgets");
}

pub(crate) fn cost(kind: &'static str, priced: bool) {
    metrics::counter!(COSTS, "kind" => kind, "result" => if priced { "priced" } else { "no_price" }).increment(1);
}

pub(crate) fn job_event(result: &'static str) {
    metrics::counter!(JOB_EVENTS, "result" => result).increment(1);
}

pub(crate) fn published(result: &'static str, count: usize) {
    metrics::counter!(PUBLISHED, "result" => result).increment(count as u64);
}

pub(crate) fn reloaded(used: bool) {
    metrics::counter!(RELOADS, "result" => if used { "used" } else { "refused" }).increment(1);
    metrics::gauge!(STALE).set(if used { 0.0 } else { 1.0 });
}

pub(crate) fn budgets_reloaded(used: bool) {
    metrics::counter!(BUDGET_RELOADS, "result" => if used { "used" } else { "refused" })
        .increment(1);
    metrics::gauge!(BUDGETS_STALE).set(if used { 0.0 } else { 1.0 });
}

pub(crate) fn budgets_evaluated(duration: std::time::Duration) {
    metrics::histogram!(EVALUATIONS).record(duration);
}

pub(crate) fn quota_event(kind: &str) {
    metrics::counter!(QUOTA_EVENTS, "type" => kind.to_owned()).increment(1);
}
