//! The service's metrics.

use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

const EVENTS: &str = "workflow_trigger_events_total";
const FIRINGS: &str = "workflow_trigger_firings_total";
const RUNS: &str = "workflow_trigger_runs_total";
const INCOMING: &str = "workflow_trigger_incoming_total";
const REQUESTS: &str = "workflow_trigger_requests_total";
const RULES: &str = "workflow_trigger_rules";
const RULE_CHANGES: &str = "workflow_trigger_rule_changes_total";
const LATENCY: &str = "workflow_trigger_submit_seconds";

/// Describes all metrics of this service.
pub(crate) fn describe() {
    describe_counter!(
        EVENTS,
        Unit::Count,
        "Events read, by result: evaluated, too_old, rejected"
    );
    describe_counter!(
        FIRINGS,
        Unit::Count,
        "Firings of rules, by result: planned, approval (waits for a person), dry_run, joined (the run of its array), repeated, or the guard that refused"
    );
    describe_counter!(
        RUNS,
        Unit::Count,
        "Ends of runs, by state: released, done, refused, given_up"
    );
    describe_counter!(
        INCOMING,
        Unit::Count,
        "Requests with events from outside, by result: accepted, refused (signature), invalid, limited (rate of the sender), full (people have used their share of the stream), unavailable"
    );
    describe_counter!(
        REQUESTS,
        Unit::Count,
        "Requests to Slurm, by result: done, refused, transient, unknown"
    );
    describe_gauge!(
        RULES,
        Unit::Count,
        "Rules, by state: used, unusable (by API, and superseded or made invalid by mesh.toml)"
    );
    describe_counter!(
        RULE_CHANGES,
        Unit::Count,
        "Requests to change rules by API, by result: created, changed, unchanged, deleted, refused"
    );
    describe_histogram!(
        LATENCY,
        Unit::Seconds,
        "Time from the event's firing to the acceptance of its job by Slurm"
    );
}

pub(crate) fn events(result: &'static str, count: u64) {
    counter!(EVENTS, "result" => result).increment(count);
}

pub(crate) fn firing(result: &'static str) {
    counter!(FIRINGS, "result" => result).increment(1);
}

pub(crate) fn run(state: &'static str) {
    counter!(RUNS, "state" => state).increment(1);
}

pub(crate) fn incoming(result: &'static str) {
    counter!(INCOMING, "result" => result).increment(1);
}

pub(crate) fn request(result: &'static str) {
    counter!(REQUESTS, "result" => result).increment(1);
}

pub(crate) fn rules(used: usize, unusable: usize) {
    gauge!(RULES, "state" => "used").set(used as f64);
    gauge!(RULES, "state" => "unusable").set(unusable as f64);
}

pub(crate) fn rule_change(result: &'static str) {
    counter!(RULE_CHANGES, "result" => result).increment(1);
}

pub(crate) fn accepted_after(seconds: f64) {
    histogram!(LATENCY).record(seconds);
}
