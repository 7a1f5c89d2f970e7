use proptest::prelude::*;

use super::*;
use crate::domain::rates::{RatePeriod, RateSchedule};
use crate::domain::share::Capacity;

fn nodes(change: i64, before: i64, after: i64) -> Nodes {
    let rates = RateSchedule::new(&[
        RatePeriod {
            from: None,
            to: Some(change),
            rate: Rate::flat(Micros(before)),
        },
        RatePeriod {
            from: Some(change),
            to: None,
            rate: Rate::flat(Micros(after)),
        },
    ]);
    let spec = NodeSpec {
        node_type: "t".into(),
        market: Market::OnDemand,
        capacity: Capacity {
            cpu: 16,
            mem_mib: 1000,
            gpu: 2,
        },
        weights: None,
        rates: Arc::new(rates.unwrap()),
    };
    let spec = Arc::new(spec);
    ["a", "b"]
        .into_iter()
        .map(|name| (name.to_owned(), Arc::clone(&spec)))
        .collect()
}

fn run(start: i64, end: i64, suspensions: Vec<Interval>) -> Run {
    let held = |node: &str, cpu| NodeAmounts {
        node: node.into(),
        amounts: Amounts::new(cpu, 100, 0),
    };
    let allocation = vec![held("a", 7), held("b", 3)];
    Run {
        start: Some(start),
        end,
        segments: vec![Segment {
            from: start,
            to: None,
            allocation,
        }],
        suspensions,
        exclusive: false,
    }
}

#[test]
fn alike_nodes_share_a_line() {
    let mut run = run(0, 3600, vec![]);
    run.exclusive = true;
    let priced = price(ShareRule::MaxShare, &nodes(0, 0, 500), &run).unwrap();
    assert_eq!(priced.cost, Micros(1000));
    assert_eq!(priced.lines.len(), 1);
    assert_eq!(priced.lines[0].nodes, ["a", "b"]);
}

#[test]
fn a_run_that_never_started_costs_nothing_and_needs_no_price() {
    let run = Run {
        start: None,
        end: -5,
        ..run(0, 0, vec![])
    };
    assert_eq!(
        price(ShareRule::MaxShare, &Nodes::new(), &run)
            .unwrap()
            .cost,
        Micros::ZERO
    );
}

#[test]
fn an_end_before_the_start_is_an_error() {
    let error = price(ShareRule::MaxShare, &nodes(0, 1, 1), &run(10, 9, vec![])).unwrap_err();
    assert_eq!(error, PriceError::EndBeforeStart { start: 10, end: 9 });
}

#[test]
fn a_node_outside_the_price_book_is_an_error() {
    let error = price(ShareRule::MaxShare, &Nodes::new(), &run(0, 9, vec![])).unwrap_err();
    assert_eq!(error.code(), "price_missing");
}

fn intervals() -> impl Strategy<Value = Vec<Interval>> {
    prop::collection::vec(
        (0i64..1000, 0i64..1000).prop_map(|(a, b)| (a.min(b), a.max(b))),
        0..4,
    )
}

proptest! {
    #[test]
    fn prices_add_up_over_any_cut_of_the_run(
        (start, middle, end) in (0i64..1000, 0i64..1000, 0i64..1000).prop_map(|(a, b, c)| {
            let mut times = [a, b, c];
            times.sort_unstable();
            (times[0], times[1], times[2])
        }),
        suspensions in intervals(),
        change in 0i64..1000,
        rates in (0i64..5_000_000, 0i64..5_000_000),
    ) {
        let nodes = nodes(change, rates.0, rates.1);
        let exact = |from, to| price(ShareRule::MaxShare, &nodes, &run(from, to, suspensions.clone())).unwrap().exact;
        prop_assert_eq!(exact(start, middle) + exact(middle, end), exact(start, end));
    }

    #[test]
    fn the_lines_add_up_to_the_exact_cost(end in 0i64..1000, suspensions in intervals(), change in 0i64..1000) {
        let priced = price(ShareRule::MaxShare, &nodes(change, 1111, 2222), &run(0, end, suspensions)).unwrap();
        let sum = priced.lines.iter().fold(Exact::zero(), |sum, line| {
            sum + integer(line.nodes.len()) * integer(line.rate.per_hour.0) * integer(line.seconds) * &line.share
        });
        prop_assert_eq!(sum / integer(SECONDS_PER_HOUR), priced.exact);
    }

    #[test]
    fn a_run_without_suspensions_or_changes_costs_its_burn_rate(seconds in 0i64..1_000_000) {
        let nodes = nodes(0, 0, 1234);
        let run = run(0, seconds, vec![]);
        let burn = burn(ShareRule::MaxShare, &nodes, &run.segments[0].allocation, false, 0).unwrap();
        let priced = price(ShareRule::MaxShare, &nodes, &run).unwrap();
        prop_assert_eq!(burn.estimate(seconds.unsigned_abs()).unwrap(), priced.cost);
    }
}
