use mesh_events::RunKey;
use mesh_events::proto::mesh::event::v1::Owner;
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::{Event, EventId};
use pbjson_types::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::costing;
use crate::domain::suspension::SuspensionChange::{Resumed, Suspended};
use crate::price_book::PriceBook;
use crate::usage::RunHistory;

/// Monday 2026-11-02, 07:00 UTC.
const START: i64 = 1_793_602_800;
const DAY: i64 = 86_400;
/// One cent per second and node.
const FLAT: &str = "[[node_type.price]]\non_demand = \"36.00\"\n";
const WORKING_HOURS: &str = "[[node_type.price]]\nmarket = \"on_demand\"\neffective = \"72.00\"\nwhen = \"Mon-Fri 08:00-20:00\"\ntimezone = \"UTC\"
[[node_type.price]]\nmarket = \"on_demand\"\neffective = \"36.00\"\n";
/// 11 % more at 08:00, and 22 % more than at first at 09:00.
const STEPS: &str = "[[node_type.price]]\non_demand = \"36.00\"\nto = \"2026-11-02T08:00:00Z\"
[[node_type.price]]\non_demand = \"40.00\"\nfrom = \"2026-11-02T08:00:00Z\"\nto = \"2026-11-02T09:00:00Z\"
[[node_type.price]]\non_demand = \"44.00\"\nfrom = \"2026-11-02T09:00:00Z\"\n";
const GAP: &str = "[[node_type.price]]\non_demand = \"36.00\"\nto = \"2026-11-02T08:00:00Z\"\n";

fn book(prices: &str) -> PriceBook {
    let text = format!(
        "name = \"t\"\nversion = \"1\"\ncurrency = \"EUR\"\n[[node_type]]\nname = \"n\"\nnodes = \"n[1-9]\"\ncpu = 4\nmem = 4000\ngpu = 0\n{prices}"
    );
    PriceBook::parse(&text, "prices.toml").unwrap()
}

fn time(seconds: i64) -> Option<Timestamp> {
    Some(Timestamp { seconds, nanos: 0 })
}

/// A job with all CPUs of some nodes, so that it costs nothing while suspended.
fn job(nodes: i64) -> Job {
    Job {
        job_id: 7,
        display_id: "7".into(),
        run: "job/7/1793600000".into(),
        partition: "cpu".into(),
        state: "RUNNING".into(),
        start_time: time(START),
        nodes: format!("n[1-{nodes}]"),
        alloc_tres: format!("cpu={},node={nodes}", nodes * 4),
        ..Job::default()
    }
}

fn history(nodes: i64) -> RunHistory {
    RunHistory {
        start: Some(job(nodes)),
        account: "physics".into(),
        ..RunHistory::default()
    }
}

fn suspended(mut history: RunHistory, from: i64, to: i64) -> RunHistory {
    let marks = [(START + from, Suspended), (START + to, Resumed)];
    history.marks.extend(marks);
    history
}

fn resized(mut history: RunHistory, at: i64, nodes: i64) -> RunHistory {
    history.resizes.push((START + at, job(nodes)));
    history
}

fn rules(at: &[i64], every: Option<i64>) -> AccrualRules {
    AccrualRules {
        at: at.iter().map(|units| Micros(units * 1_000_000)).collect(),
        every,
    }
}

/// `<seconds since the start> <reason> <cents> <cents per hour>`.
fn written(ticks: &[AccrualPoint]) -> Vec<String> {
    let cents = |amount: Micros| amount.0 / 10_000;
    let line = |tick: &AccrualPoint| {
        let reason = match tick.reason {
            AccrualReason::Threshold(threshold) => format!("{}", threshold.0 / 1_000_000),
            other => other.as_str().to_owned(),
        };
        let (accrued, rate) = (cents(tick.accrued), cents(tick.burn_rate));
        format!("{} {reason} {accrued} {rate}", tick.as_of - START)
    };
    ticks.iter().map(line).collect()
}

fn check(prices: &str, history: &RunHistory, rules: &AccrualRules, until: i64, expected: &[&str]) {
    let (book, job) = (book(prices), history.start.clone().unwrap());
    let found = of_running(rules, &book, history, &job, START + until).unwrap();
    assert_eq!(written(&found), expected);
    // A run that ends a second later has the same.
    let record = Job {
        end_time: time(START + until + 1),
        ..job
    };
    let ended = of_ended(rules, &book, history, &record, START + until + 1).unwrap();
    assert_eq!(written(&ended), expected);
}

#[test]
fn ticks_have_the_exact_second() {
    let one = history(1);
    let of = |at: &[i64]| rules(at, None);
    check(FLAT, &one, &of(&[10, 100]), 999, &[]);
    check(FLAT, &one, &of(&[10, 100]), 1_000, &["1000 10 1000 3600"]);
    check(
        FLAT,
        &one,
        &of(&[10, 100]),
        20_000,
        &["1000 10 1000 3600", "10000 100 10000 3600"],
    );
    check(FLAT, &one, &AccrualRules::default(), 20_000, &[]);
    // Several amounts in one second are one event.
    let dear = FLAT.replace("36.00", "720000.00");
    check(&dear, &one, &of(&[10, 100]), 5, &["1 100 20000 72000000"]);
}

#[test]
fn suspensions_delay_amounts_and_are_no_change_of_the_rate() {
    let stopped = suspended(history(1), 500, 800);
    let amounts = rules(&[10], None);
    check(FLAT, &stopped, &amounts, 9_000, &["1300 10 1000 3600"]);
    // Still suspended: nothing grows.
    let mut open = history(1);
    open.marks.push((START + 500, Suspended));
    check(FLAT, &open, &amounts, 9_000, &[]);
    // Of a job that was suspended before it was known, only the sum.
    let mut known = history(1);
    known.start.as_mut().unwrap().suspended_seconds = 300;
    let found = of_running(
        &amounts,
        &book(FLAT),
        &known,
        known.start.as_ref().unwrap(),
        START + 9_000,
    );
    assert_eq!(written(&found.unwrap()), ["1300 10 1000 3600"]);
}

#[test]
fn prices_and_resizes_that_change_the_rate_by_more_than_a_fifth_are_told() {
    let amounts = rules(&[100], None);
    let expected = ["3600 burn_rate 3600 7200", "6800 100 10000 7200"];
    check(WORKING_HOURS, &history(1), &amounts, 7_000, &expected);
    let expected = ["7200 burn_rate 7600 4400", "9164 100 10000 4400"];
    check(STEPS, &history(1), &amounts, 10_000, &expected);
    // The rate of an event in between is known: 10 % more is no news.
    let often = rules(&[50], None);
    check(STEPS, &history(1), &often, 8_000, &["4860 50 5000 4000"]);
    let smaller = resized(history(2), 600, 1);
    let expected = ["600 burn_rate 1200 3600"];
    check(FLAT, &smaller, &rules(&[50], None), 1_000, &expected);
    check(
        FLAT,
        &resized(history(5), 600, 4),
        &rules(&[500], None),
        1_000,
        &[],
    );
}

#[test]
fn intervals_count_from_the_start_and_coincide_with_amounts() {
    let expected = ["3600 36 3600 3600", "7200 interval 7200 3600"];
    check(
        FLAT,
        &history(1),
        &rules(&[36], Some(3_600)),
        8_000,
        &expected,
    );
    let stopped = suspended(history(1), 0, 3_600);
    let expected = ["3600 interval 0 3600", "7200 36 3600 3600"];
    check(FLAT, &stopped, &rules(&[36], Some(3_600)), 8_000, &expected);
}

#[test]
fn without_a_price_nothing_is_told() {
    let (book, history) = (book(GAP), history(1));
    let job = history.start.clone().unwrap();
    let until = |until| of_running(&rules(&[10], None), &book, &history, &job, START + until);
    assert_eq!(written(&until(3_599).unwrap()), ["1000 10 1000 3600"]);
    assert!(until(3_600).is_err());
}

#[test]
fn a_day_has_at_most_twenty_four_events() {
    let rules = rules(&[10, 100, 1000], Some(3_600));
    let (book, history) = (book(FLAT), history(1));
    let job = history.start.clone().unwrap();
    let ticks = of_running(&rules, &book, &history, &job, START + 3 * DAY).unwrap();
    let (_, published) = take_all(AccrualState::default(), &ticks);
    let on = |day: i64| {
        let first = (START / DAY + day) * DAY;
        published
            .iter()
            .filter(|tick| (first..first + DAY).contains(&tick.as_of))
            .count()
    };
    // From 07:00 on 16 hours and two amounts, then 24, 24 of 25, and until 07:00 eight.
    assert_eq!([0, 1, 2, 3].map(on), [18, 24, 24, 8]);
}

#[test]
fn a_run_beyond_its_limit_has_no_ticks_after_it() {
    let mut history = history(1);
    history.start.as_mut().unwrap().time_limit_minutes = Some(60);
    let job = history.start.clone().unwrap();
    let found = of_running(
        &rules(&[10, 100], None),
        &book(FLAT),
        &history,
        &job,
        START + 90_000,
    );
    assert_eq!(written(&found.unwrap()), ["1000 10 1000 3600"]);
}

#[test]
fn few_runs_are_looked_at_when_they_end() {
    let amounts = rules(&[10], Some(3_600));
    assert!(!amounts.concerns(3_599, Micros(9_999_999)));
    assert!(amounts.concerns(3_600, Micros(0)));
    assert!(amounts.concerns(1, Micros(10_000_000)));
    assert!(!AccrualRules::default().concerns(u64::MAX, Micros(i64::MAX)));
}

/// The state afterwards, and what is published.
fn take_all(mut state: AccrualState, ticks: &[AccrualPoint]) -> (AccrualState, Vec<AccrualPoint>) {
    let published = ticks.iter().filter_map(|tick| state.take(tick));
    let published = published.collect();
    (state, published)
}

fn events(
    book: &PriceBook,
    history: &RunHistory,
    record: &Job,
    ticks: &[AccrualPoint],
) -> Vec<Event> {
    let run = RunKey::parse("c", &record.run).unwrap();
    let envelope = Event {
        owner: Some(Owner {
            user: "alice".into(),
            ..Owner::default()
        }),
        run_seq: 2,
        ..Event::default()
    };
    let facts = AccrualFacts {
        is_open: true,
        envelope,
        numbers: history.marks.iter().map(|(at, _)| (*at, 3)).collect(),
        state: AccrualState::default(),
    };
    let made = |tick: &AccrualPoint| {
        let payload = costing::accrued(book, history, record, tick);
        event(&run, &facts, tick, payload, false)
    };
    ticks.iter().map(made).collect()
}

prop_compose! {
    /// A run with suspensions and resizes.
    fn lives()(
        nodes in 1i64..5,
        pauses in prop::collection::btree_set(1i64..3 * DAY, 0..6),
        resizes in prop::collection::btree_map(1i64..3 * DAY, 1i64..6, 0..4),
    ) -> RunHistory {
        let mut life = history(nodes);
        let pauses: Vec<i64> = pauses.into_iter().collect();
        for pause in pauses.chunks_exact(2) {
            life = suspended(life, pause[0], pause[1]);
        }
        for (at, nodes) in resizes {
            life = resized(life, at, nodes);
        }
        life
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However often a run is evaluated, and whenever it is restarted, the same events are published, byte for byte.
    #[test]
    fn each_event_is_told_once_and_has_the_same_bytes(
        life in lives(),
        prices in prop::sample::select(vec![FLAT, WORKING_HOURS, STEPS]),
        every in prop::option::of(3_600i64..20_000),
        end in 2i64..3 * DAY,
        mut evaluations in prop::collection::vec(1i64..3 * DAY, 0..12),
    ) {
        let (book, rules) = (book(prices), rules(&[10, 100, 1000], every));
        let job = life.start.clone().unwrap();
        let record = Job { end_time: time(START + end), ..job.clone() };
        let at_once = of_ended(&rules, &book, &life, &record, START + end).unwrap();
        let (last, at_once) = take_all(AccrualState::default(), &at_once);
        evaluations.sort_unstable();
        let (mut state, mut piecewise) = (AccrualState::default(), Vec::new());
        for until in evaluations.into_iter().filter(|until| *until < end) {
            let ticks = of_running(&rules, &book, &life, &job, START + until).unwrap();
            let (next, new) = take_all(state, &ticks);
            (state, piecewise) = (next, [piecewise, new].concat());
        }
        let ticks = of_ended(&rules, &book, &life, &record, START + end).unwrap();
        let (state, rest) = take_all(state, &ticks);
        piecewise.extend(rest);
        prop_assert_eq!(state, last);
        prop_assert_eq!(events(&book, &life, &record, &piecewise), events(&book, &life, &record, &at_once));

        for tick in &at_once {
            // The cost that live queries have at that moment.
            let live = costing::spent(&book, &life, &job, tick.as_of).unwrap();
            prop_assert_eq!(tick.accrued, live.cost);
            if let AccrualReason::Threshold(threshold) = tick.reason {
                let before = costing::spent(&book, &life, &job, tick.as_of - 1).unwrap();
                prop_assert!(before.cost < threshold && threshold <= live.cost);
            }
        }
        for day in at_once.chunk_by(|one, next| one.as_of.div_euclid(DAY) == next.as_of.div_euclid(DAY)) {
            prop_assert!(day.len() <= 24);
        }
    }

    /// A suspension or a resize that becomes known later moves amounts. Each is published once all the same, and no two events have one id.
    #[test]
    fn late_facts_repeat_no_amount_and_no_id(
        life in lives(),
        later in lives(),
        every in prop::option::of(3_600i64..20_000),
        until in 1i64..3 * DAY,
    ) {
        let (book, rules) = (book(FLAT), rules(&[10, 100, 1000], every));
        let job = life.start.clone().unwrap();
        let all = RunHistory {
            marks: [life.marks.clone(), later.marks].concat(),
            resizes: [life.resizes.clone(), later.resizes].concat(),
            ..life.clone()
        };
        let first = of_running(&rules, &book, &life, &job, START + until).unwrap();
        let (state, mut published) = take_all(AccrualState::default(), &first);
        let rest = of_running(&rules, &book, &all, &job, START + 3 * DAY).unwrap();
        let (_, rest) = take_all(state, &rest);
        published.extend(rest);
        let ids: std::collections::BTreeSet<String> =
            events(&book, &all, &job, &published).into_iter().map(|event| event.id).collect();
        prop_assert_eq!(ids.len(), published.len());
        let mut amounts: Vec<Micros> = published
            .iter()
            .filter_map(|tick| match tick.reason {
                AccrualReason::Threshold(threshold) => Some(threshold),
                AccrualReason::BurnRate | AccrualReason::Interval => None,
            })
            .collect();
        let published = amounts.len();
        amounts.dedup();
        prop_assert_eq!(amounts.len(), published);
        prop_assert!(amounts.is_sorted());
    }
}

#[test]
fn the_id_is_derived_from_the_estimate() {
    let (book, history) = (book(FLAT), history(1));
    let record = history.start.clone().unwrap();
    let ticks = of_running(
        &rules(&[10], Some(3_600)),
        &book,
        &history,
        &record,
        START + 4_000,
    );
    let events = events(&book, &history, &record, &ticks.unwrap());
    let run = RunKey::parse("c", "job/7/1793600000").unwrap();
    let estimate = EventId::recorded(&run, mesh_events::Slot::CostEstimated);
    let numbers = [20_000_001, 2 * (START as u64 + 3_600)];
    for (event, n) in events.iter().zip(numbers) {
        let id = EventId::derived(estimate, mesh_events::EventType::CostAccrued, n);
        assert_eq!(event.id, id.to_string());
        assert_eq!(EventId::recomputed(event), Some(id));
    }
    assert_eq!(events.len(), 2);
}

#[test]
fn a_moved_amount_hides_no_interval() {
    let moved = AccrualPoint {
        as_of: START + 3_600,
        reason: AccrualReason::Threshold(Micros(10_000_000)),
        otherwise: Some(AccrualReason::Interval),
        accrued: Micros(10_000_000),
        burn_rate: Micros(36_000_000),
    };
    let mut state = AccrualState {
        until: START + 1_000,
        threshold: Micros(10_000_000),
        day: START / DAY,
        day_events: 1,
    };
    let taken = state.take(&moved).unwrap();
    assert_eq!(taken.reason, AccrualReason::Interval);
    assert_eq!((state.until, state.day_events), (START + 3_600, 2));
    assert_eq!(state.take(&moved), None);
}

#[test]
fn restored_events_count_once_and_on_their_day() {
    let mut state = AccrualState::default();
    state.restore(START + 3_600, Micros(10_000_000));
    let restored = state;
    // The same event again, and one of the same run that is older.
    state.restore(START + 3_600, Micros(10_000_000));
    state.restore(START + 1_800, Micros::ZERO);
    assert_eq!(state, restored);
    // An amount of the day before.
    state.restore(START - DAY, Micros(100_000_000));
    assert_eq!(
        (state.threshold, state.day_events),
        (Micros(100_000_000), 1)
    );
}

#[test]
fn a_run_is_due_only_until_its_events_are_published() {
    use super::publisher::next_tick;

    let (book, mut history) = (book(FLAT), history(1));
    let plan = |history: &RunHistory, done_until: i64, until: i64| {
        let job = history.start.clone().unwrap();
        let times = (START + done_until, START + until, START + until + 3_600);
        let plan = next_tick(&rules(&[10, 100], None), &book, (history, &job), times);
        let next = (plan.next < i64::MAX).then_some(plan.next - START);
        (plan.is_due, next)
    };
    assert_eq!(plan(&history, -1, 999), (false, Some(1_000)));
    assert_eq!(plan(&history, 999, 1_000), (true, Some(4_600)));
    assert_eq!(plan(&history, 1_000, 4_600), (false, Some(8_200)));
    assert_eq!(plan(&history, 4_600, 8_200), (false, Some(10_000)));
    // Past its limit of an hour, with another hour of grace, it has no more.
    history.start.as_mut().unwrap().time_limit_minutes = Some(60);
    assert_eq!(plan(&history, -1, 6_000), (true, Some(7_201)));
    assert_eq!(plan(&history, 6_000, 7_201), (false, None));
    assert_eq!(plan(&history, -1, 90_000), (true, None));
}
