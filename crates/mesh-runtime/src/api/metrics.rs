//! Metric names of the API.

/// Callers by `auth_method` (unix, token, oidc) and `outcome`: let_in, refused, unavailable.
const CALLERS: &str = "mesh_api_callers_total";
/// Fetches of an issuer's keys by `outcome`: done, failed.
const KEYS_FETCHED: &str = "mesh_api_oidc_key_fetches_total";
/// Responses with other people's data by `outcome`: audited, covered, refused.
const READS: &str = "mesh_api_audited_reads_total";

/// Registers the descriptions of the metrics.
pub(crate) fn describe() {
    metrics::describe_counter!(
        CALLERS,
        "Requests by authentication method (unix, token, oidc) and outcome: let_in, refused, unavailable."
    );
    metrics::describe_counter!(
        KEYS_FETCHED,
        "Fetches of the keys of OIDC issuers, by outcome: done, failed."
    );
    metrics::describe_counter!(
        READS,
        "Responses with data of other users, by outcome: audited, covered by the audit entry of the same query within the minute, or refused because NATS did not store the entry."
    );
}

pub(super) fn caller(auth_method: &'static str, outcome: &'static str) {
    metrics::counter!(CALLERS, "auth_method" => auth_method, "outcome" => outcome).increment(1);
}

pub(super) fn keys_fetched(done: bool) {
    let outcome = if done { "done" } else { "failed" };
    metrics::counter!(KEYS_FETCHED, "outcome" => outcome).increment(1);
}

pub(super) fn read(outcome: &'static str) {
    metrics::counter!(READS, "outcome" => outcome).increment(1);
}
