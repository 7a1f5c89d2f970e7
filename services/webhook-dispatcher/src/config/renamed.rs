//! Renamed configuration keys.

use mesh_runtime::RenamedKeys;
use serde_json::Value;

use super::Fault;

/// Old and new names of the section's keys.
pub const RENAMED_KEYS: RenamedKeys = &[
    ("first_wait", "retry.initial_interval"),
    ("growth", "retry.multiplier"),
    ("longest_wait", "retry.max_interval"),
    ("circuit_after", "circuit_breaker.failure_threshold"),
    ("cost_wait", "cost_join_timeout"),
    ("remember", "retention"),
    ("pause_after", "auto_disable_after"),
    ("most_per_user", "max_endpoints_per_user"),
    ("most_requests", "max_in_flight"),
    (
        "endpoints[].first_wait",
        "endpoints[].retry.initial_interval",
    ),
    ("endpoints[].growth", "endpoints[].retry.multiplier"),
    ("endpoints[].longest_wait", "endpoints[].retry.max_interval"),
    (
        "endpoints[].circuit_after",
        "endpoints[].circuit_breaker.failure_threshold",
    ),
];

/// Renamed keys of an endpoint.
fn of_endpoint() -> impl Iterator<Item = (&'static str, &'static str)> {
    let own = |path: &'static str| path.strip_prefix("endpoints[].");
    RENAMED_KEYS
        .iter()
        .filter_map(move |(old, new)| Some((own(old)?, own(new)?)))
}

/// Renames old keys in the definition of a stored endpoint.
pub(crate) fn rename_old_keys(spec: &mut Value) {
    for (old, new) in of_endpoint() {
        let stored = spec.as_object_mut().and_then(|spec| spec.remove(old));
        if let Some(stored) = stored {
            *new.split('.')
                .fold(&mut *spec, |table, key| &mut table[key]) = stored;
        }
    }
}

/// Rejects old keys in a request to the API.
///
/// # Errors
/// A fault for each old key, naming the new one.
pub(crate) fn refuse_old_keys(spec: &Value) -> Result<(), Vec<Fault>> {
    let faults: Vec<Fault> = of_endpoint()
        .filter(|(old, _)| spec.get(old).is_some())
        .map(|(old, new)| Fault::new(old, format!("renamed to {new}")))
        .collect();
    if faults.is_empty() {
        Ok(())
    } else {
        Err(faults)
    }
}
