use proptest::prelude::*;

use super::*;

fn utc(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

fn schedule(fields: &str, zone: &str, missed: MissedInstants) -> Schedule {
    let now = utc("2026-01-01T00:00:00Z");
    Schedule::new(fields, zone.parse().unwrap(), missed, now).unwrap()
}

/// The instants in a range, as the clock of the zone shows them.
fn between(schedule: &Schedule, from: &str, to: &str) -> Vec<String> {
    schedule
        .upcoming(utc(from))
        .take_while(|at| *at < utc(to))
        .map(|at| schedule.local(at).to_rfc3339())
        .collect()
}

#[test]
fn a_time_in_a_skipped_hour_comes_once_after_it() {
    let nightly = schedule("30 2 * * *", "Europe/Berlin", MissedInstants::Skip);
    assert_eq!(
        between(&nightly, "2026-03-28T12:00:00Z", "2026-03-30T12:00:00Z"),
        ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]
    );
    let new_york = schedule("30 2 * * *", "America/New_York", MissedInstants::Skip);
    assert_eq!(
        between(&new_york, "2026-03-07T12:00:00Z", "2026-03-08T12:00:00Z"),
        ["2026-03-08T03:00:00-04:00"]
    );
}

#[test]
fn a_time_in_a_repeated_hour_comes_once() {
    let nightly = schedule("30 2 * * *", "Europe/Berlin", MissedInstants::Skip);
    assert_eq!(
        between(&nightly, "2026-10-24T12:00:00Z", "2026-10-26T12:00:00Z"),
        ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]
    );
}

#[test]
fn several_times_in_a_skipped_hour_are_one() {
    let twice = schedule("0,30 2,3 * * *", "Europe/Berlin", MissedInstants::Skip);
    assert_eq!(
        between(&twice, "2026-03-28T12:00:00Z", "2026-03-29T12:00:00Z"),
        ["2026-03-29T03:00:00+02:00", "2026-03-29T03:30:00+02:00"]
    );
}

#[test]
fn a_wildcard_follows_the_clock_through_both_changes() {
    let hourly = schedule("0 * * * *", "Europe/Berlin", MissedInstants::Skip);
    let hours = |day: &str, next: &str| {
        let (from, to) = (format!("{day}T11:59:00Z"), format!("{next}T11:59:00Z"));
        between(&hourly, &from, &to).len()
    };
    assert_eq!(hours("2026-03-28", "2026-03-29"), 24);
    let lines = between(&hourly, "2026-10-24T23:30:00Z", "2026-10-25T02:30:00Z");
    let repeated = ["02:00:00+02:00", "02:00:00+01:00", "03:00:00+01:00"];
    assert_eq!(lines, repeated.map(|time| format!("2026-10-25T{time}")));
    assert_eq!(hours("2026-10-24", "2026-10-25"), 24);
}

#[test]
fn missed_instants_follow_the_policy() {
    let last = utc("2026-05-01T00:00:00Z");
    // A stop of 26 hours.
    let now = utc("2026-05-02T02:00:05Z");
    let due = |missed| schedule("0 * * * *", "UTC", missed).due(last, now);
    let at_two = utc("2026-05-02T02:00:00Z");
    // The last one was five seconds ago: it is late, not missed.
    assert_eq!(due(MissedInstants::Skip), [at_two]);
    assert_eq!(due(MissedInstants::Once), [at_two]);
    let all = due(MissedInstants::All);
    assert_eq!(all.len(), MAX_MISSED);
    assert_eq!(all.first(), Some(&utc("2026-05-01T03:00:00Z")));
    assert_eq!(all.last(), Some(&at_two));
    let later = now + TimeDelta::minutes(2);
    let skipping = schedule("0 * * * *", "UTC", MissedInstants::Skip);
    assert!(skipping.due(last, later).is_empty());
    let once = schedule("0 * * * *", "UTC", MissedInstants::Once);
    assert_eq!(once.due(last, later), [at_two]);
}

#[test]
fn a_clock_that_goes_back_stops_no_schedule() {
    let minutely = schedule("* * * * *", "UTC", MissedInstants::All);
    let now = utc("2026-05-01T00:00:00Z");
    let ahead = now + TimeDelta::days(400);
    assert!(minutely.due(ahead, now).is_empty());
    assert!(minutely.next(now).is_some_and(|at| at < ahead));
}

#[test]
fn what_is_no_schedule_is_refused() {
    let now = utc("2026-05-01T00:00:00Z");
    for text in [
        "",
        "* * * *",
        "0 0 2 * * *",
        "@daily x",
        "60 * * * *",
        "0 0 30 2 *",
        "0 2 * * * 2026",
        "a b c d e",
    ] {
        let read = Schedule::new(text, Tz::UTC, MissedInstants::Skip, now);
        assert!(read.is_err(), "{text:?}");
    }
}

proptest! {
    /// However often, and at whatever times a service looks, each instant is due exactly once.
    #[test]
    fn looks_at_any_times_find_each_instant_once(
        minute in 0_u32..60,
        step in 1_u32..13,
        start in 0_i64..31_536_000,
        looks in proptest::collection::vec(1_i64..7_200, 1..40),
    ) {
        let fields = format!("{minute} */{step} * * *");
        let schedule = schedule(&fields, "Europe/Berlin", MissedInstants::All);
        let start = utc("2026-01-01T00:00:00Z") + TimeDelta::seconds(start);
        let (mut last, mut now, mut found) = (start, start, Vec::new());
        for seconds in looks {
            now += TimeDelta::seconds(seconds);
            found.extend(schedule.due(last, now));
            last = found.last().copied().unwrap_or(start);
        }
        let expected: Vec<_> = schedule.upcoming(start).take_while(|at| *at <= now).collect();
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn jitter_delays_every_firing_of_a_rule_alike() {
    let delay = |jitter, rule: &str| {
        let hourly = schedule("0 * * * *", "UTC", MissedInstants::Once);
        hourly.with_jitter(jitter, rule).delay().num_seconds()
    };
    assert_eq!(delay(0, "c/alice/nightly"), 0);
    let delays: std::collections::BTreeSet<i64> = (0..400)
        .map(|n| delay(59, &format!("c/alice/{n}")))
        .collect();
    assert_eq!(delays.first(), Some(&0));
    assert_eq!(delays.last(), Some(&59));
    assert!(delays.len() > 50, "{delays:?}");

    let hourly = schedule("0 * * * *", "UTC", MissedInstants::Once);
    let late = hourly.with_jitter(3_600, "c/alice/nightly");
    let by = late.delay();
    assert_eq!(by, TimeDelta::seconds(delay(3_600, "c/alice/nightly")));
    let at_two = utc("2026-05-02T02:00:00Z");
    let fires = at_two + by;
    let before = fires - TimeDelta::seconds(1);
    assert_eq!(late.next_firing(before), Some(fires));
    assert_eq!(late.next_firing(fires), Some(fires + TimeDelta::hours(1)));
    // Instants stay those of the schedule.
    let last = at_two - TimeDelta::hours(1);
    assert!(late.due(last, before).is_empty());
    assert_eq!(late.due(last, fires), [at_two]);
    assert!(late.due(at_two, fires).is_empty());
    assert_eq!(late.upcoming(before).next(), Some(fires));
}
