//! Tests of list prices, calendar prices, series and factors.

use chrono::DateTime;
use mesh_events::proto::mesh::job::v1::Job;
use pbjson_types::Timestamp;

use super::*;
use crate::costing::{AccruedCost, finalized, rate, spent};
use crate::domain::{Class, Micros, PriceError};
use crate::usage::RunHistory;

const HEAD: &str = "name = \"b\"\nversion = \"1\"\ncurrency = \"EUR\"\n";

/// A book with one node type of 8 CPUs.
fn book(prices: &str) -> String {
    format!("{HEAD}[[node_type]]\nname = \"t\"\ncpu = 8\nmem = 1000\n{prices}")
}

fn parse(prices: &str) -> PriceBook {
    PriceBook::parse(&book(prices), "book").unwrap()
}

fn seconds(time: &str) -> i64 {
    DateTime::parse_from_rfc3339(time).unwrap().timestamp()
}

fn job(cpus: u32, start: &str) -> Job {
    Job {
        nodes: "n1".into(),
        alloc_tres: format!("cpu={cpus}"),
        start_time: Some(Timestamp {
            seconds: seconds(start),
            nanos: 0,
        }),
        ..Job::default()
    }
}

fn cost(book: &PriceBook, cpus: u32, start: &str, end: &str) -> Result<AccruedCost, PriceError> {
    let history = RunHistory::default();
    spent(book, &history, &job(cpus, start), seconds(end))
}

fn faults(prices: &str) -> Vec<(usize, String)> {
    let error = PriceBook::parse(&book(prices), "book").unwrap_err();
    let PriceBookError::Invalid { faults, .. } = error else {
        panic!("{error}");
    };
    faults
        .into_iter()
        .map(|fault| (fault.line, fault.key))
        .collect()
}

const DAY_AND_NIGHT: &str = "[[node_type.price]]\non_demand = \"1.0\"\nwhen = \"08:00-20:00\"\ntimezone = \"Europe/Berlin\"\n\
    [[node_type.price]]\non_demand = \"0.5\"\n";

#[test]
fn one_rounding_per_run() {
    let book = parse("[[node_type.price]]\non_demand = \"1.000001\"\n");
    let total = cost(&book, 3, "2026-10-31T23:00:07Z", "2026-11-01T01:30:00Z").unwrap();
    assert_eq!(total.cost, Micros(936_772));
    let total = cost(&book, 3, "2026-11-01T00:00:00Z", "2026-11-01T00:30:02Z").unwrap();
    assert_eq!(total.cost, Micros(187_709));
}

#[test]
fn calendar_prices_are_cut_at_local_times() {
    let book = parse(DAY_AND_NIGHT);
    // The night of the end of summer time has an hour more: 3 h by day, 13 h by night.
    let priced = cost(&book, 8, "2026-10-24T17:00:00Z", "2026-10-25T09:00:00Z").unwrap();
    let mut lines: Vec<_> = priced
        .lines
        .iter()
        .map(|line| (line.rate_micros_per_hour, line.seconds / 3600))
        .collect();
    lines.sort_unstable();
    assert_eq!(lines, [(500_000, 13), (1_000_000, 3)]);
    assert_eq!(priced.cost, Micros(9_500_000));
}

#[test]
fn the_first_matching_entry_counts() {
    let book = parse(
        "[[node_type.price]]\non_demand = 3\nwhen = \"Sat,Sun\"\ntimezone = \"UTC\"\n\
         [[node_type.price]]\non_demand = 2\nwhen = \"08:00-20:00\"\ntimezone = \"UTC\"\nfrom = 2026-07-01\n\
         [[node_type.price]]\non_demand = 1\n",
    );
    let spec = book.node("n1", "p").unwrap();
    for (at, price) in [
        ("2026-07-04T10:00:00Z", 3),
        ("2026-07-03T10:00:00Z", 2),
        ("2026-07-03T07:59:59Z", 1),
        ("2026-06-30T10:00:00Z", 1),
    ] {
        let found = spec.rates.at(seconds(at)).map(|rate| rate.per_hour.0);
        assert_eq!(found, Some(price * 1_000_000), "{at}");
    }
}

#[test]
fn hours_without_any_price_have_none() {
    let book =
        parse("[[node_type.price]]\non_demand = 1\nwhen = \"08:00-20:00\"\ntimezone = \"UTC\"\n");
    assert!(cost(&book, 8, "2026-07-03T08:00:00Z", "2026-07-03T20:00:00Z").is_ok());
    let error = cost(&book, 8, "2026-07-03T08:00:00Z", "2026-07-03T20:00:01Z").unwrap_err();
    assert_eq!(error.code(), "price_missing");
}

#[test]
fn runs_are_charged_the_effective_price_and_state_the_list_price() {
    let book = parse("[[node_type.price]]\nlist = \"3.00\"\neffective = \"2.00\"\n");
    let job = job(8, "2026-07-01T00:00:00Z");
    let end = seconds("2026-07-01T01:00:00Z");
    let history = RunHistory::default();
    let event = finalized(&book, &history, &job, end, Class::Completed).unwrap();
    let micros = |money: Option<mesh_events::proto::mesh::cost::v1::Money>| money.map(|m| m.micros);
    assert_eq!(
        (micros(event.total), micros(event.list)),
        (Some(2_000_000), Some(3_000_000))
    );
    assert_eq!(event.lines[0].list_rate_micros_per_hour, 3_000_000);
    // Without a discount nothing is stated twice, as before.
    for same in ["on_demand = 2", "effective = 2"] {
        let book = parse(&format!("[[node_type.price]]\n{same}\n"));
        let event = finalized(&book, &history, &job, end, Class::Completed).unwrap();
        assert_eq!(micros(event.total), Some(2_000_000));
        assert_eq!(
            (event.list, event.lines[0].list_rate_micros_per_hour),
            (None, 0)
        );
    }
}

#[test]
fn all_matching_factors_are_multiplied() {
    let factors = "[[factor]]\nqos = \"urgent\"\nfactor = \"3/2\"\n[[factor]]\naccount = \"guests\"\nfactor = \"1.1\"\n";
    let book = parse(&format!("[[node_type.price]]\non_demand = 1\n{factors}"));
    let cost = |qos: &str, account: &str| {
        let job = Job {
            qos: qos.into(),
            time_limit_minutes: Some(60),
            ..job(8, "2026-07-01T00:00:00Z")
        };
        let history = RunHistory {
            account: account.into(),
            ..RunHistory::default()
        };
        let end = seconds("2026-07-01T01:00:00Z");
        let event = finalized(&book, &history, &job, end, Class::Completed).unwrap();
        // The burn rate has the same factor.
        let total = event.total.unwrap().micros;
        let rate = rate(&book, &job, account).unwrap();
        assert_eq!(
            (rate.burn, rate.estimate),
            (Micros(total), Some(Micros(total)))
        );
        (total, event.factor)
    };
    assert_eq!(cost("normal", "physics"), (1_000_000, String::new()));
    assert_eq!(cost("urgent", "physics"), (1_500_000, "3/2".into()));
    assert_eq!(cost("urgent", "guests"), (1_650_000, "33/20".into()));
    for (factor, line) in [
        (
            "[[factor]]\nqos = \"a\"\npartition = \"b\"\nfactor = 2\n",
            11,
        ),
        ("[[factor]]\nqos = \"a\"\nfactor = 0\n", 13),
        ("[[factor]]\nqos = \"a\"\nfactor = -1\n", 13),
        (
            "[[factor]]\nqos = \"a\"\nfactor = 1\n[[factor]]\nqos = \"a\"\nfactor = 2\n",
            14,
        ),
    ] {
        let found = faults(&format!("[[node_type.price]]\non_demand = 1\n\n{factor}"));
        assert_eq!(found.len(), 1, "{factor}: {found:?}");
        assert!(
            found[0].0 == line && found[0].1.starts_with("factor"),
            "{found:?}"
        );
    }
}

#[test]
fn a_series_is_read_beside_the_book_and_stored_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("prices.toml");
    let series = "[[node_type.series]]\nmarket = \"spot\"\nfile = \"spot.csv\"\nzone = \"b\"\n[[spot]]\nnodes = \"n1\"\n";
    std::fs::write(&path, book(series)).unwrap();
    let write = |text: &str| std::fs::write(folder.path().join("spot.csv"), text).unwrap();
    let first = "time,price,zone\n2026-07-01T00:00:00Z,0.10,b\n2026-07-01T00:00:00Z,9,a\n";
    write(first);
    let early = PriceBook::load(&path).unwrap();
    write(&format!("{first}2026-07-01T01:00:00Z,0.40,b\n"));
    let late = PriceBook::load(&path).unwrap();
    let two_hours = |book: &PriceBook| {
        cost(book, 8, "2026-07-01T00:00:00Z", "2026-07-01T02:00:00Z").map(|spent| spent.cost)
    };
    assert_eq!(two_hours(&early), Ok(Micros(200_000)));
    assert_eq!(two_hours(&late), Ok(Micros(500_000)));
    // Before the first price there is none.
    let error = cost(&late, 8, "2026-06-30T23:59:59Z", "2026-07-01T01:00:00Z").unwrap_err();
    assert_eq!(error.code(), "price_missing");
    // The same book with another series: same version, other digest.
    assert_eq!(early.text_digest, late.text_digest);
    assert_ne!(early.label(), late.label());
    assert_eq!(early.series_files, [folder.path().join("spot.csv")]);
    // Its stored content needs no file.
    let stored = PriceBook::parse(&early.content, "stored").unwrap();
    assert_eq!(
        (stored.label(), two_hours(&stored)),
        (early.label(), Ok(Micros(200_000)))
    );

    write("2026-07-01T01:00:00Z,1,b\n2026-07-01T00:00:00Z,1,b\n");
    let error = PriceBook::load(&path).unwrap_err().to_string();
    for part in [
        "prices.toml",
        "line 10: node_type.series.file",
        "spot.csv: line 2: time",
    ] {
        assert!(error.contains(part), "{error}");
    }
    std::fs::remove_file(folder.path().join("spot.csv")).unwrap();
    let error = PriceBook::load(&path).unwrap_err().to_string();
    assert!(
        error.contains("read ") && error.contains("spot.csv"),
        "{error}"
    );
}

#[test]
fn faulty_prices_are_named_by_line_and_key() {
    let when = |when: &str, zone: &str| {
        format!("[[node_type.price]]\non_demand = 1\nwhen = \"{when}\"\ntimezone = \"{zone}\"\n")
    };
    let rest = "[[node_type.price]]\non_demand = 1\n";
    for (prices, line, key) in [
        (when("Mon-Fry", "Europe/Berlin"), 10, "node_type.price.when"),
        (
            when("Mon-Fri", "Europe/Bonn"),
            11,
            "node_type.price.timezone",
        ),
        (
            "[[node_type.price]]\non_demand = 1\nwhen = \"Sun\"\n".to_owned(),
            10,
            "node_type.price.when",
        ),
        (
            when("Sun", "UTC").replace("= 1", "= 0"),
            9,
            "node_type.price.on_demand",
        ),
        (format!("{rest}{rest}"), 11, "node_type.price.on_demand"),
        (
            "[[node_type.price]]\nlist = 3\n".to_owned(),
            8,
            "node_type.price",
        ),
        (
            "[[node_type.price]]\non_demand = 1\nlist = 3\n".to_owned(),
            8,
            "node_type.price",
        ),
        (
            "[[node_type.price]]\nmarket = \"free\"\neffective = 3\n".to_owned(),
            9,
            "node_type.price.market",
        ),
        (
            "[[node_type.price]]\neffective = -3\n".to_owned(),
            9,
            "node_type.price.effective",
        ),
        (
            format!(
                "{rest}[[node_type.series]]\nmarket = \"on_demand\"\ncsv = \"2026-07-01T00:00:00Z,1\"\n"
            ),
            10,
            "node_type.series",
        ),
        (
            "[[node_type.series]]\nmarket = \"spot\"\n".to_owned(),
            9,
            "node_type.series",
        ),
    ] {
        let found = faults(&prices);
        assert_eq!(found, [(line, key.to_owned())], "{prices}");
    }
}
