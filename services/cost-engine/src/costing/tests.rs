use pbjson_types::Timestamp;

use super::*;
use crate::domain::Class;

const BILLING: &str = "name = \"b\"\nversion = \"1\"\ncurrency = \"USD\"\nmode = \"billing\"\n\
    [[billing]]\nprice = \"0.04\"\nto = 1970-01-02\n[[billing]]\nprice = \"0.08\"\nfrom = 1970-01-02\n";

fn job() -> Job {
    Job {
        start_time: Some(Timestamp {
            seconds: 86_400 - 1800,
            nanos: 0,
        }),
        nodes: "anywhere".into(),
        alloc_tres: "cpu=4,billing=5".into(),
        time_limit_minutes: Some(90),
        ..Job::default()
    }
}

#[test]
fn billing_units_are_charged_through_a_price_change() {
    let book = PriceBook::parse(BILLING, "book").unwrap();
    let rate = rate(&book, &job(), "").unwrap();
    assert_eq!(
        rate,
        RunRate {
            burn: Micros(200_000),
            estimate: Some(Micros(300_000))
        }
    );
    // Half an hour at each price. Suspended time is charged like any other.
    let suspended = Job {
        suspended_seconds: 1800,
        ..job()
    };
    let spent = spent(&book, &RunHistory::default(), &suspended, 86_400 + 1800).unwrap();
    assert_eq!(
        (spent.cost, spent.seconds),
        (Micros(100_000 + 200_000), 3600)
    );
    let lines: Vec<_> = spent
        .lines
        .iter()
        .map(|line| (line.rate_micros_per_hour, line.share.as_str(), line.seconds))
        .collect();
    assert_eq!(lines, [(40_000, "5/1", 1800), (80_000, "5/1", 1800)]);
}

#[test]
fn a_run_whose_nodes_did_not_boot_costs_nothing() {
    let nodes = Job {
        nodes: "n1".into(),
        ..job()
    };
    for (book, started) in [(crate::EXAMPLE_PRICE_BOOK, nodes), (BILLING, job())] {
        let book = PriceBook::parse(book, "book").unwrap();
        let history = RunHistory {
            start: Some(started.clone()),
            ..RunHistory::default()
        };
        let cost = |state: &str| {
            let record = Job {
                state: state.to_owned(),
                ..started.clone()
            };
            finalized(&book, &history, &record, 86_400, Class::NotCompleted).unwrap()
        };
        assert!(cost("NODE_FAIL").total.unwrap().micros > 0);
        let failed = cost("BOOT_FAIL");
        assert_eq!(failed.total.as_ref().map(|total| total.micros), Some(0));
        assert_eq!((failed.charged_seconds, failed.problem.as_str()), (0, ""));
        assert!(failed.lines.is_empty(), "{failed:?}");
    }
}

#[test]
fn unknown_resources_have_no_price() {
    let book = PriceBook::parse(BILLING, "book").unwrap();
    let unknown = Job {
        alloc_tres: "cpu=4".into(),
        ..job()
    };
    let payload = estimated(&book, &unknown, "");
    assert!(
        payload.problem.starts_with("allocation_missing: ") && payload.burn_rate.is_none(),
        "{payload:?}"
    );

    let book = PriceBook::parse(crate::EXAMPLE_PRICE_BOOK, "book").unwrap();
    let nowhere = Job {
        nodes: String::new(),
        ..job()
    };
    let payload = finalized(
        &book,
        &RunHistory::default(),
        &nowhere,
        86_400,
        Class::Completed,
    )
    .unwrap();
    assert!(
        payload.problem.starts_with("allocation_missing: ") && payload.total.is_none(),
        "{payload:?}"
    );
    let error = finalized(&book, &RunHistory::default(), &job(), 0, Class::Completed).unwrap_err();
    assert_eq!(error.code(), "end_before_start");
}
