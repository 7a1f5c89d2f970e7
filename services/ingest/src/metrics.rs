//! Metrics of ingest.

use std::time::Duration;

use mesh_events::EventType;
use metrics::{
    Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

/// Registers the descriptions of the metrics.
pub fn describe() {
    describe_counter!("ingest_facts_total", "Facts published, by type.");
    describe_counter!(
        "ingest_doorbells_total",
        "Doorbells, by outcome: answered, left_to_sweep, limited, unknown, unusable, contradicted, accounting_away, accounting_busy, probe."
    );
    describe_gauge!(
        "ingest_hooks_silent",
        "1 if jobs start but no doorbell arrives, so that only polls find starts and ends."
    );
    describe_histogram!(
        "ingest_doorbell_seconds",
        Unit::Seconds,
        "From a doorbell's call to its facts being stored, by the two hosts' clocks."
    );
    describe_histogram!("ingest_poll_seconds", Unit::Seconds, "Duration of a poll.");
    describe_gauge!("ingest_poll_rows", "Rows of the last poll.");
    describe_counter!("ingest_changed_rows_total", "Changed rows of polls.");
    describe_gauge!("ingest_runs", "Runs in the run store.");
    describe_gauge!(
        "ingest_unproven_jobs",
        "Jobs that slurmctld no longer lists and whose end is not confirmed yet."
    );
    describe_counter!(
        "ingest_lost_runs_total",
        "Runs whose end cannot be determined any more."
    );
    describe_counter!(
        "ingest_unseen_ids_total",
        "Job ids that no poll has returned and that were looked up in accounting."
    );
    describe_counter!(
        "ingest_usage_lost_total",
        "Runs without resource usage in accounting."
    );
    describe_counter!(
        "ingest_provisional_rows_total",
        "Jobs with only a provisional row in accounting that were looked up again."
    );
    describe_counter!(
        "ingest_schema_drift_total",
        "Unknown values in Slurm's output, by kind: job_state, record."
    );
}

/// Counts a published fact, by type.
pub fn fact(kind: EventType) {
    counter!("ingest_facts_total", "type" => kind.to_string()).increment(1);
}

/// Counts a doorbell, by outcome: `answered`, `left_to_sweep`, `limited` (too many jobs that no poll has shown), `unknown` (no record of
/// Slurm knows its job), `unusable`, `contradicted`, `accounting_away`, `accounting_busy` (it is redelivered, or a poll publishes it),
/// `probe`.
pub fn doorbell(outcome: &'static str) {
    counter!("ingest_doorbells_total", "outcome" => outcome).increment(1);
}

/// Sets whether jobs start without any hook ringing.
pub fn hooks_silent(silent: bool) {
    gauge!("ingest_hooks_silent").set(f64::from(u8::from(silent)));
}

/// Records the time from a doorbell's call until its facts are stored, by the clocks of both hosts.
pub fn answered_after(time: Duration) {
    histogram!("ingest_doorbell_seconds").record(time.as_secs_f64());
}

/// Records a poll: its duration, its number of rows, and the number of changed jobs.
pub fn poll(time: Duration, rows: usize, changed: usize) {
    histogram!("ingest_poll_seconds").record(time.as_secs_f64());
    gauge!("ingest_poll_rows").set(count(rows));
    counter!("ingest_changed_rows_total").increment(u64::try_from(changed).unwrap_or(u64::MAX));
}

/// Sets the number of stored runs.
pub fn runs(runs: usize) {
    gauge!("ingest_runs").set(count(runs));
}

/// Sets the number of jobs whose end must be looked up.
pub fn unproven(jobs: usize) {
    gauge!("ingest_unproven_jobs").set(count(jobs));
}

/// Counts a run whose end cannot be known any more.
pub fn lost() {
    counter!("ingest_lost_runs_total").increment(1);
}

/// Counts ids that no poll has shown and that were looked up in accounting.
pub fn unseen(ids: usize) {
    counter!("ingest_unseen_ids_total").increment(u64::try_from(ids).unwrap_or(u64::MAX));
}

/// Counts runs whose usage accounting does not have.
pub fn usage_lost(runs: usize) {
    counter!("ingest_usage_lost_total").increment(u64::try_from(runs).unwrap_or(u64::MAX));
}

/// Counts jobs of which accounting had only a stand-in row.
pub fn provisional(jobs: usize) {
    counter!("ingest_provisional_rows_total").increment(u64::try_from(jobs).unwrap_or(u64::MAX));
}

/// Counts output of Slurm that is unknown or unreadable: `job_state`, `record`, `value`, `row`, `answer`. `look_dropped` counts dropped
/// read requests.
pub fn drift(kind: &'static str, times: u64) {
    counter!("ingest_schema_drift_total", "what" => kind).increment(times);
}

fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}
