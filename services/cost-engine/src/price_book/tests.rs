use super::*;
use crate::domain::{Micros, Rate};

const EXAMPLE: &str = include_str!("../../examples/price-book.toml");

const BOOK: &str = r#"
name = "site"
version = "1"
currency = "EUR"

[[node_type]]
name = "c16"
nodes = ["n[1-3]", "n7"]
cpu = 16
mem = 65_536
[[node_type.price]]
on_demand = 0.68
spot = "0.204"

[[node_type]]
name = "any"
partitions = ["debug"]
cpu = 4
mem = "8G"
[[node_type.price]]
on_demand = 1

[[node_type]]
name = "c16-night"
nodes = "n7"
partitions = "night"
cpu = 16
mem = "64G"
[[node_type.price]]
on_demand = "0.5"

[[partition]]
name = "half"
node_type = "c16"
[[partition.price]]
on_demand = "0.34"

[[spot]]
nodes = "n3"
"#;

fn rate(book: &PriceBook, node: &str, partition: &str) -> Option<(String, Market, Option<Micros>)> {
    book.node(node, partition).map(|spec| {
        (
            spec.node_type.clone(),
            spec.market,
            spec.rates.at(0).map(|rate| rate.per_hour),
        )
    })
}

#[test]
fn the_example_is_a_good_book() {
    let book = PriceBook::parse(EXAMPLE, "price-book.toml").unwrap();
    assert_eq!(book.name_and_version(), "example 2026-07");
    assert_eq!(
        book.label(),
        format!("example 2026-07 #{}", &book.digest[..8])
    );
    let july = 1_782_864_000;
    let cpu = book.node("n2", "cpu").unwrap().rates;
    assert_eq!(
        (cpu.at(july - 1), cpu.at(july)),
        (
            Some(Rate::flat(Micros(340_000))),
            Some(Rate::flat(Micros(360_000)))
        )
    );
    assert_eq!(
        rate(&book, "n4", "low"),
        Some(("a100".into(), Market::Spot, Some(Micros(4_915_890))))
    );
    assert_eq!(
        book.node("n4", "gpu").unwrap().capacity,
        Capacity {
            cpu: 4,
            mem_mib: 4000,
            gpu: 4
        }
    );
    assert!(book.node("x1", "cpu").is_none());
}

#[test]
fn the_most_precise_node_type_decides() {
    let book = PriceBook::parse(BOOK, "book").unwrap();
    let on_demand =
        |name: &str, rate| Some((name.to_owned(), Market::OnDemand, Some(Micros(rate))));
    assert_eq!(rate(&book, "n1", "cpu"), on_demand("c16", 680_000));
    assert_eq!(rate(&book, "n1", "debug"), on_demand("c16", 680_000));
    assert_eq!(rate(&book, "n9", "debug"), on_demand("any", 1_000_000));
    assert_eq!(rate(&book, "n9", "cpu"), None);
    assert_eq!(rate(&book, "n7", "night"), on_demand("c16-night", 500_000));
    assert_eq!(rate(&book, "n7", "cpu"), on_demand("c16", 680_000));
    assert_eq!(rate(&book, "n1", "half"), on_demand("c16", 340_000));
    assert_eq!(
        rate(&book, "n3", "cpu"),
        Some(("c16".into(), Market::Spot, Some(Micros(204_000))))
    );
    // A spot node without a spot price has no price. The on-demand price is never used instead.
    assert_eq!(
        rate(&book, "n3", "half"),
        Some(("c16".into(), Market::Spot, None))
    );
}

/// Replaces one text in the book. The only fault found must name this line and key.
#[track_caller]
fn check(from: &str, to: &str, line: usize, key: &str, value_text: &str) {
    assert_eq!(
        BOOK.matches(from).count().min(1),
        1,
        "{from:?} is not in the book"
    );
    let error = PriceBook::parse(&BOOK.replacen(from, to, 1), "prices.toml").unwrap_err();
    let PriceBookError::Invalid { file, faults } = &error else {
        panic!("{error}")
    };
    assert_eq!(file, "prices.toml");
    assert_eq!(faults.len(), 1, "{error}");
    assert_eq!(
        (faults[0].line, faults[0].key.as_str()),
        (line, key),
        "{error}"
    );
    assert!(faults[0].problem.contains(value_text), "{error}");
    assert!(
        error
            .to_string()
            .starts_with(&format!("price book prices.toml: line {line}: ")),
        "{error}"
    );
}

#[test]
fn each_fault_is_named_by_line_and_key() {
    check("name = \"site\"", "name = \"\"", 2, "name", "empty");
    check("\"EUR\"", "\"euro\"", 4, "currency", "ISO 4217");
    check(
        "\"EUR\"\n",
        "\"EUR\"\nmode = \"per_cow\"\n",
        5,
        "mode",
        "per_cow",
    );
    check("cpu = 16", "cpus = 16", 9, "", "cpus");
    check("cpu = 16", "cpu = -1", 9, "node_type.cpu", "-1");
    check(
        "mem = 65_536",
        "mem = \"much\"",
        10,
        "node_type.mem",
        "much",
    );
    check("mem = 65_536\n", "\n", 7, "node_type.mem", "missing");
    check(
        "on_demand = 0.68",
        "on_demand = 0.6800001",
        12,
        "node_type.price.on_demand",
        "six decimals",
    );
    check(
        "on_demand = 0.68",
        "on_demand = -0.68",
        12,
        "node_type.price.on_demand",
        "-0.68",
    );
    check(
        "on_demand = 0.68",
        "on_demand = 6.8e-1",
        12,
        "node_type.price.on_demand",
        "6.8e-1",
    );
    check(
        "on_demand = 0.68",
        "on_demand = true",
        12,
        "node_type.price.on_demand",
        "true",
    );
    check("\"n[1-3]\"", "\"n[1-3\"", 8, "node_type.nodes", "host list");
    check(
        "spot = \"0.204\"",
        "from = \"soon\"",
        13,
        "node_type.price.from",
        "soon",
    );
    check(
        "spot = \"0.204\"",
        "from = 2026-07-01T00:00:00",
        13,
        "node_type.price.from",
        "offset",
    );
    check(
        "spot = \"0.204\"",
        "from = 2026-07-01\nto = 2026-07-01",
        12,
        "node_type.price.on_demand",
        "no validity",
    );
    check(
        "name = \"any\"",
        "name = \"c16\"",
        16,
        "node_type.name",
        "duplicate",
    );
    check(
        "partitions = [\"debug\"]",
        "nodes = \"n[2-4]\"",
        17,
        "node_type",
        "cover the same nodes",
    );
    check(
        "node_type = \"c16\"",
        "node_type = \"c17\"",
        34,
        "partition.node_type",
        "c17",
    );
    check("nodes = \"n3\"", "", 38, "spot", "neither");
    check("currency", "crurency", 4, "", "crurency");
    check("[[spot]]", "[[spot]", 38, "", "");
}

#[test]
fn overlapping_validity_is_refused() {
    let second = "spot = \"0.204\"\nto = 2026-07-01\n[[node_type.price]]\non_demand = 0.7\nfrom = 2026-06-30";
    check(
        "spot = \"0.204\"",
        second,
        16,
        "node_type.price.on_demand",
        "line 12",
    );
}

#[test]
fn weights_must_add_up() {
    let weighted = BOOK.replace(
        "currency = \"EUR\"",
        "currency = \"EUR\"\nmode = \"weighted_share\"",
    );
    let good = weighted.replace(
        "cpu = 16",
        "weights = { cpu = \"1/3\", mem = \"2/3\" }\ncpu = 16",
    );
    let good = good.replace(
        "cpu = 4\n",
        "weights = { cpu = 0.1, mem = \"0.2\", gpu = \"7/10\" }\ncpu = 4\n",
    );
    PriceBook::parse(&good, "book").unwrap();
    let error = PriceBook::parse(&good.replace("2/3", "1/3"), "book")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("node_type.weights: add up to 2/3"),
        "{error}"
    );
    let error = PriceBook::parse(&weighted, "book").unwrap_err();
    let PriceBookError::Invalid { faults, .. } = error else {
        panic!("{error}")
    };
    // All faults at once: three node types lack the value.
    assert_eq!(
        faults
            .iter()
            .filter(|fault| fault.key == "node_type.weights")
            .count(),
        3
    );
}

#[test]
fn billing_prices_belong_to_mode_billing() {
    let head = "name = \"b\"\nversion = \"1\"\ncurrency = \"USD\"\n";
    let prices = "[[billing]]\nprice = \"0.04\"\nto = \"2026-01-01\"\n[[billing]]\nprice = \"0.05\"\nfrom = \"2026-01-01T00:00:00Z\"\n";
    let book = PriceBook::parse(&format!("{head}mode = \"billing\"\n{prices}"), "book").unwrap();
    let Charge::Billing(rates) = &book.charge else {
        panic!("{book:?}")
    };
    assert_eq!(
        (rates.at(1_767_225_599), rates.at(1_767_225_600)),
        (
            Some(Rate::flat(Micros(40_000))),
            Some(Rate::flat(Micros(50_000)))
        )
    );
    let error = PriceBook::parse(&format!("{head}mode = \"billing\"\n"), "book")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("line 4: mode: mode \"billing\" needs"),
        "{error}"
    );
    let error = PriceBook::parse(&format!("{head}{prices}"), "book")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("billing: only mode") && error.contains("no [[node_type]]"),
        "{error}"
    );
}

#[test]
fn a_missing_file_is_named() {
    let error = PriceBook::load(Path::new("/nowhere/prices.toml")).unwrap_err();
    assert_eq!(error.to_string(), "read price book /nowhere/prices.toml");
}
