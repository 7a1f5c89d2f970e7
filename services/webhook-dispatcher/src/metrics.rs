//! Every metric of the dispatcher. The label `endpoint` is a configured name, or `users` for all endpoints that users made, so its
//! cardinality is small.

use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use mesh_events::webhook_name;
use metrics::{
    Counter, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};

use crate::attempt::cause::Cause;

const ATTEMPTS: &str = "webhook_dispatcher_attempts_total";
const ATTEMPT_SECONDS: &str = "webhook_dispatcher_attempt_duration_seconds";
const CIRCUIT_OPEN: &str = "webhook_dispatcher_circuit_open";
const CIRCUIT_OPENINGS: &str = "webhook_dispatcher_circuit_openings_total";
const DELIVERIES: &str = "webhook_dispatcher_deliveries_total";
const FAILURES: &str = "webhook_dispatcher_attempt_failures_total";
const LATENCY: &str = "webhook_dispatcher_delivery_latency_seconds";

/// Registers the descriptions of the metrics.
pub fn describe() {
    describe_counter!(
        ATTEMPTS,
        "Requests sent, by endpoint and result: delivered, retry, dead."
    );
    describe_counter!(
        FAILURES,
        "Requests that failed, by endpoint, cause, and side that can fix it: owner, receiver, dispatcher."
    );
    describe_gauge!(
        CIRCUIT_OPEN,
        "1 while the circuit of an endpoint is open or half-open, 0 while it is closed, at the dispatcher that runs the endpoint; by endpoint. For endpoints of users: how many are open."
    );
    describe_counter!(CIRCUIT_OPENINGS, "Openings of the circuit, by endpoint.");
    describe_histogram!(
        ATTEMPT_SECONDS,
        Unit::Seconds,
        "Time of one request, by endpoint."
    );
    describe_counter!(
        DELIVERIES,
        "Final outcomes of deliveries, by endpoint and outcome: delivered, dead, expired."
    );
    describe_histogram!(
        LATENCY,
        Unit::Seconds,
        "From the observation of an event to its delivery, by endpoint."
    );
}

/// The metrics that every successful delivery of an endpoint updates, looked up once.
#[derive(Default)]
pub struct DeliveryMetrics(OnceLock<Box<Handles>>);

struct Handles {
    attempts: Counter,
    attempt_seconds: Histogram,
    deliveries: Counter,
    latency: Histogram,
}

impl DeliveryMetrics {
    fn of(&self, endpoint: &str) -> &Handles {
        self.0.get_or_init(|| {
            let name = || label(endpoint).to_owned();
            Box::new(Handles {
                attempts: counter!(ATTEMPTS, "endpoint" => name(), "result" => "delivered"),
                attempt_seconds: histogram!(ATTEMPT_SECONDS, "endpoint" => name()),
                deliveries: counter!(DELIVERIES, "endpoint" => name(), "outcome" => "delivered"),
                latency: histogram!(LATENCY, "endpoint" => name()),
            })
        })
    }

    /// Records a request.
    pub fn attempted(&self, endpoint: &str, result: &'static str, elapsed: Duration) {
        let handles = self.of(endpoint);
        match result {
            "delivered" => handles.attempts.increment(1),
            _ => counter!(ATTEMPTS, "endpoint" => label(endpoint).to_owned(), "result" => result)
                .increment(1),
        }
        handles.attempt_seconds.record(elapsed.as_secs_f64());
    }

    /// Counts a final outcome.
    pub fn settled(&self, endpoint: &str, outcome: &'static str) {
        match outcome {
            "delivered" => self.of(endpoint).deliveries.increment(1),
            _ => {
                counter!(DELIVERIES, "endpoint" => label(endpoint).to_owned(), "outcome" => outcome)
                    .increment(1)
            }
        }
    }

    /// Records the latency of a delivered event.
    pub fn delivered(&self, endpoint: &str, observed: DateTime<Utc>, now: DateTime<Utc>) {
        if let Ok(latency) = (now - observed).to_std() {
            self.of(endpoint).latency.record(latency.as_secs_f64());
        }
    }
}

/// Counts a failed request.
pub fn failed(endpoint: &str, cause: Cause) {
    counter!(FAILURES, "endpoint" => label(endpoint).to_owned(), "cause" => cause.as_str(), "side" => cause.side().as_str())
        .increment(1);
}

/// The label of all endpoints that users made: their names are users' input, and there may be thousands.
const USERS: &str = "users";

fn label(endpoint: &str) -> &str {
    match webhook_name::owner(endpoint) {
        "" => endpoint,
        _ => USERS,
    }
}

/// Notes whether the circuit of a user's endpoint is open. Returns how many are.
fn open_circuits_of_users(endpoint: &str, open: bool) -> usize {
    static OPEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut circuits = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    match open {
        true => circuits.insert(endpoint.to_owned()),
        false => circuits.remove(endpoint),
    };
    circuits.len()
}

/// Sets whether the circuit of an endpoint is open.
#[allow(clippy::cast_precision_loss, reason = "a gauge")]
pub fn circuit(endpoint: &str, open: bool) {
    let open = match label(endpoint) {
        USERS => open_circuits_of_users(endpoint, open),
        _ => usize::from(open),
    };
    let label = label(endpoint).to_owned();
    gauge!(CIRCUIT_OPEN, "endpoint" => label).set(open as f64);
}

/// Counts an opened circuit.
pub fn circuit_opened(endpoint: &str) {
    counter!(CIRCUIT_OPENINGS, "endpoint" => label(endpoint).to_owned()).increment(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_of_users_share_one_label_and_their_open_circuits_are_counted() {
        assert_eq!(label("ops"), "ops");
        assert_eq!((label("alice/ci"), label("bob/ci")), (USERS, USERS));
        let counts = [
            ("alice/ci", true),
            ("bob/ci", true),
            ("bob/ci", true),
            ("alice/ci", false),
        ]
        .map(|(endpoint, open)| open_circuits_of_users(endpoint, open));
        assert_eq!(counts, [1, 2, 2, 1]);
    }
}
