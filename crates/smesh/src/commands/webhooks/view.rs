//! Formats endpoints for display.

use serde_json::{Value, json};

use super::deliveries;
use crate::show;

fn types(endpoint: &Value) -> String {
    let types: Vec<String> = endpoint["types"]
        .as_array()
        .into_iter()
        .flatten()
        .map(show::value)
        .collect();
    if types.is_empty() {
        "all".into()
    } else {
        types.join(",")
    }
}

/// Delivery counts with their labels.
fn counts(endpoint: &Value) -> [(&'static str, String); 4] {
    ["waiting", "delivered", "dead", "expired"]
        .map(|name| (name, show::value(&endpoint["counts"][name])))
}

/// Why few or no deliveries are sent. Empty if there is no fault.
fn problem(endpoint: &Value) -> String {
    let clean = |value: &Value| show::clean(&show::value(value));
    let (circuit, held) = (&endpoint["circuit"], &endpoint["held"]);
    if endpoint["state"] != "active" {
        let since = show::time(&endpoint["since"]);
        let state = format!("{} since {since}", show::value(&endpoint["state"]));
        return match clean(&endpoint["reason"]) {
            reason if reason.is_empty() => state,
            reason => format!("{state}: {reason}"),
        };
    }
    if !held.is_null() {
        let until = show::time(&held["until"]);
        return format!(
            "on hold until {until}, as requested by its receiver: {}",
            clean(&held["reason"])
        );
    }
    if !circuit["since"].is_null() {
        return format!(
            "circuit is {} since {}, next attempt at {}: {}",
            show::value(&circuit["state"]),
            show::time(&circuit["since"]),
            show::time(&circuit["probe_at"]),
            clean(&circuit["reason"])
        );
    }
    match clean(&endpoint["counts"]["last_error"]) {
        error if error.is_empty() => String::new(),
        error => format!("last error: {error}"),
    }
}

/// Endpoints, one per line.
pub(super) fn list(answer: &Value) -> String {
    let endpoints: Vec<&Value> = answer["webhooks"]
        .as_array()
        .into_iter()
        .flatten()
        .collect();
    if endpoints.is_empty() {
        return "no endpoints; create one with `smesh webhooks add`".into();
    }
    let heading = [
        "name",
        "owner",
        "state",
        "format",
        "types",
        "waiting",
        "delivered",
        "dead",
        "expired",
        "url",
        "trouble",
    ];
    let mut rows = vec![heading.map(str::to_uppercase).to_vec()];
    for endpoint in endpoints {
        let mut row = vec![
            show::value(&endpoint["name"]),
            show::value(&endpoint["owner"]),
            show::value(&endpoint["state"]),
            format(endpoint),
            types(endpoint),
        ];
        row.extend(counts(endpoint).into_iter().map(|(_, count)| count));
        row.push(show::value(&endpoint["url"]));
        row.push(problem(endpoint));
        rows.push(row);
    }
    show::table(&rows)
}

/// An endpoint, with its deliveries if present.
pub(super) fn endpoint(answer: &Value) -> String {
    let mut lines = vec![
        show::bold(&show::value(&answer["full_name"])),
        format!(
            "  {} to {}, types {}",
            format(answer),
            show::value(&answer["url"]),
            types(answer)
        ),
        state(answer),
    ];
    for (name, key) in [
        ("for", "description"),
        ("owner", "owner"),
        ("users", "users"),
    ] {
        let value = &answer[key];
        if !value.is_null() && *value != "" && *value != json!([]) {
            lines.push(format!("  {name} {}", show::clean(&show::value(value))));
        }
    }
    let counts = counts(answer).map(|(name, count)| format!("{count} {name}"));
    lines.push(format!("  {}", counts.join(", ")));
    let missed = &answer["missed"];
    if !missed.is_null() {
        lines.push(format!(
            "  up to {} events missed: the bus no longer had them; last sequences {} to {}, found at {}",
            show::value(&missed["count"]),
            show::value(&missed["first_sequence"]),
            show::value(&missed["last_sequence"]),
            show::time(&missed["at"])
        ));
    }
    let settings = settings(answer);
    if !settings.is_empty() {
        lines.push(format!("  {settings}"));
    }
    let rows = deliveries::rows(answer);
    if rows.len() > 1 {
        lines.push(show::table(&rows));
    }
    lines.join("\n")
}

fn state(answer: &Value) -> String {
    let problem = problem(answer);
    if answer["state"] != "active" {
        return format!("  {problem}");
    }
    let active = format!("  active since {}", show::time(&answer["since"]));
    if problem.is_empty() {
        active
    } else {
        format!("{active}; {problem}")
    }
}

/// Delivery settings that differ from the defaults.
fn settings(answer: &Value) -> String {
    let keys = [
        "rate_limit",
        "burst",
        "success",
        "timeout",
        "concurrency",
        "max_attempts",
        "give_up_after",
        "retry.initial_interval",
        "retry.multiplier",
        "retry.max_interval",
        "max_event_age",
        "max_retry_after",
        "pending_threshold",
        "circuit_breaker.failure_threshold",
        "arrays",
        "when",
    ];
    let value = |path: &str| path.split('.').fold(answer, |table, key| &table[key]);
    let given = keys.into_iter().filter(|key| !value(key).is_null());
    let settings: Vec<String> = given
        .map(|key| format!("{key} {}", show::clean(&show::value(value(key)))))
        .collect();
    settings.join(", ")
}

fn format(endpoint: &Value) -> String {
    show::value(&endpoint["format"]["type"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_the_bus_no_longer_had_are_shown() {
        let mut webhook = json!({
            "full_name": "alice/ci", "state": "active", "since": "2026-01-02T03:04:05Z", "circuit": {"state": "closed"},
            "counts": {"waiting": 0, "delivered": 1, "dead": 0, "expired": 0},
        });
        assert!(!endpoint(&webhook).contains("missed"));
        webhook["missed"] = json!({
            "count": 7, "first_sequence": 3, "last_sequence": 6, "at": "2026-01-02T03:04:05Z",
        });
        let shown = endpoint(&webhook);
        assert!(
            shown.contains("up to 7 events missed") && shown.contains("sequences 3 to 6"),
            "{shown}"
        );
    }
}
