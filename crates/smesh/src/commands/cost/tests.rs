//! What tables of costs say where there is no price, and of whom.

use serde_json::json;

use super::*;

#[test]
fn a_sum_names_the_users_it_covers_and_those_without_a_person() {
    let amounts = |total: &str| {
        json!([{"currency": "EUR", "runs": 2, "open_runs": 1, "unpriced_runs": 0, "settled_micros": total,
            "in_flight_micros": "0", "total_micros": total, "burn_rate_micros": "360000"}])
    };
    let person = json!({"key": "https://id#p", "name": "priya@example.org", "linked": true, "amounts": amounts("1020000"),
        "users": [{"cluster": "a", "user": "priya"}, {"cluster": "b", "user": "praman"}]});
    let user = json!({"key": "unix:priya@c", "linked": false, "amounts": amounts("340000"),
        "users": [{"cluster": "c", "user": "priya"}]});
    let mut answer =
        json!({"since": "2026-11-01T00:00:00Z", "amounts": amounts("1020000"), "people": [person]});
    let head = |total: &str| {
        format!(
            "{total} EUR since 2026-11-01\n  settled    {total} EUR for 2 ended runs\n  in flight  0.00 EUR for 1 running jobs, 0.36 EUR per hour\n"
        )
    };
    assert_eq!(
        personal(&answer),
        format!(
            "{}  priya@example.org: priya on a, praman on b",
            head("1.02")
        )
    );
    answer["amounts"] = amounts("1360000");
    answer["people"] = json!([person, user]);
    assert_eq!(
        personal(&answer),
        format!(
            "{}  priya@example.org: priya on a, praman on b: 1.02 EUR\n  priya on c: not linked to a person: 0.34 EUR",
            head("1.36")
        )
    );
}

/// The cells of a table's row.
fn cells(line: &str) -> Vec<&str> {
    let cells = line.split("  ").map(str::trim);
    cells.filter(|cell| !cell.is_empty()).collect()
}

#[test]
fn runs_without_a_price_cost_no_price_and_not_zero() {
    let row = |key: &str, [runs, unpriced]: [u64; 2], [ended, open, total]: [Value; 3]| {
        json!({"key": key, "currency": "EUR", "runs": runs, "unpriced_runs": unpriced, "completed_micros": ended,
            "not_completed_micros": "0", "open_micros": open, "total_micros": total})
    };
    let none = || json!(null);
    let one = || json!("1000000");
    let rows = [
        row("alice", [3, 3], [none(), json!("0"), none()]),
        row("bob", [4, 1], [one(), none(), one()]),
    ];
    let table = spent(&json!({ "rows": rows }), cli::CostBy::User);
    let lines: Vec<_> = table.lines().map(cells).collect();
    assert_eq!(
        lines[1],
        ["alice", "3", "no price", "no price", "no price", "no price"]
    );
    assert_eq!(
        lines[2],
        ["bob", "4", "1.00 EUR", "0.00 EUR", "no price", "1.00 EUR"]
    );
    assert_eq!(lines[3], ["4 runs have no price and are not included"]);
    // An older service without a price book.
    let zero = || json!("0");
    let mut old = row("carol", [1, 1], [zero(), zero(), zero()]);
    old["currency"] = Value::Null;
    let table = spent(&json!({ "rows": [old] }), cli::CostBy::User);
    assert!(
        table.contains("no price") && !table.contains("0.00"),
        "{table}"
    );
}

#[test]
fn a_persons_runs_without_a_price_cost_no_price_and_not_zero() {
    let amounts = |settled: Value, total: Value, unpriced: u64| {
        json!([{"currency": "EUR", "runs": 3, "open_runs": 0, "unpriced_runs": unpriced, "settled_micros": settled,
            "in_flight_micros": "0", "total_micros": total, "burn_rate_micros": "0"}])
    };
    let none = amounts(Value::Null, Value::Null, 3);
    let person = json!({"key": "unix:a@c", "linked": false, "amounts": none, "users": [{"cluster": "c", "user": "a"}]});
    let other = json!({"key": "unix:a@d", "linked": false, "amounts": none, "users": [{"cluster": "d", "user": "a"}]});
    let answer =
        json!({"since": "2026-11-01T00:00:00Z", "amounts": none, "people": [person, other]});
    assert_eq!(
        personal(&answer),
        "no price for 3 runs since 2026-11-01\n  a on c: not linked to a person: no price\n  a on d: not linked to a person: no price"
    );
    assert_eq!(
        sums(&amounts(json!("5000000"), json!("5000000"), 1), "x"),
        [
            "5.00 EUR since x",
            "  settled    5.00 EUR for 3 ended runs",
            "  in flight  0.00 EUR for 0 running jobs, 0.00 EUR per hour",
            "  1 run has no price and is not included"
        ]
    );
}

#[test]
fn running_jobs_without_a_price_cost_no_price_per_hour() {
    let job = json!({"job": "7", "problem": "price_missing: x", "burn_rate_micros": null});
    let text = live(
        &json!({"currency": "EUR", "jobs": [job], "burn_rate_micros": null, "unpriced_runs": 1}),
    );
    let last = text.lines().last();
    assert_eq!(last, Some("1 run has no price and is not included"));
    assert!(!text.contains("per hour now"), "{text}");
}

#[test]
fn a_running_job_may_have_a_cost_so_far_and_no_price_per_hour() {
    let priced = json!({"job": "7", "burn_rate_micros": "2000000", "accrued_micros": "1000000", "estimated_micros": "4000000"});
    let large = json!({"job": "8", "problem": "arithmetic: too large", "burn_rate_micros": null, "accrued_micros": "3000000",
        "estimated_micros": null});
    let text = live(
        &json!({"currency": "EUR", "jobs": [priced, large], "burn_rate_micros": "2000000", "unpriced_runs": 0}),
    );
    let lines: Vec<_> = text.lines().map(cells).collect();
    assert_eq!(lines[1], ["7", "2.00 EUR", "1.00 EUR", "4.00 EUR"]);
    assert_eq!(lines[2], ["8", "no price", "3.00 EUR", "no price"]);
    assert_eq!(lines[3], ["2.00 EUR per hour now"]);
    assert_eq!(lines[4], ["1 run has no price and is not included"]);
}
