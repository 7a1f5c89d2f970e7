//! Costs as rows of FOCUS 1.2 (<https://focus.finops.org>), the format of cloud bills: one for each ended run and calendar month.
//!
//! All 21 mandatory columns are there, some recommended ones, and own ones that begin with `x_`.

use chrono::DateTime;
use num_traits::Zero as _;

use crate::adapters::{FinalizedRun, Person};
use crate::costing::SlicePart;
use crate::domain::money::{Exact, decimal_text};
use crate::domain::{Class, Interval, Micros};

/// Names of the columns, in their order.
pub const COLUMNS: [&str; 49] = [
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ContractedCost",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "ServiceCategory",
    "ServiceName",
    "ChargeFrequency",
    "CommitmentDiscountCategory",
    "CommitmentDiscountId",
    "CommitmentDiscountName",
    "CommitmentDiscountStatus",
    "CommitmentDiscountType",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedUnitPrice",
    "ListUnitPrice",
    "PricingCategory",
    "RegionId",
    "RegionName",
    "ResourceId",
    "ResourceName",
    "ResourceType",
    "SkuId",
    "SkuPriceId",
    "SubAccountId",
    "SubAccountName",
    "Tags",
    "x_Cluster",
    "x_Identity",
    "x_Partition",
    "x_PriceBook",
    "x_Qos",
    "x_RunKey",
    "x_User",
];

/// Decimal places of quantities and unit prices, so that their product is the cost to a millionth.
const PLACES: usize = 12;

/// When `BilledCost` is the effective cost. Otherwise it is 0, because nothing is invoiced yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BilledCostPolicy {
    /// In closed periods.
    #[default]
    Closed,
    /// Always.
    Effective,
}

/// What a row needs beside the run.
pub struct RowContext<'a> {
    /// The site, as who bills.
    pub site: &'a str,
    /// True if `BilledCost` is the effective cost.
    pub is_billed: bool,
    /// The calendar month.
    pub billing_period: Interval,
    /// The part of the month that is asked for.
    pub slice: Interval,
    /// The owner.
    pub person: &'a Person,
}

/// The cells of a run in a month. `part` is what of it lies in the month; without it quantities, unit prices and the SKU are empty, and the
/// list cost is the cost.
pub fn row(
    run: &FinalizedRun,
    cost: Micros,
    part: Option<&SlicePart>,
    context: &RowContext<'_>,
) -> Vec<String> {
    let effective = amount(cost);
    let billed = match context.is_billed {
        false => amount(Micros::ZERO),
        true => effective.clone(),
    };
    let list = part.map_or(cost, |part| part.list);
    let unit_price = |total: Micros| {
        let priced = part.filter(|part| !part.quantity.is_zero());
        priced.map_or_else(String::new, |part| {
            decimal_text(&(exact(total) / &part.quantity), PLACES)
        })
    };
    let quantity = part.map_or_else(String::new, |part| decimal_text(&part.quantity, PLACES));
    let unit = part.map_or("", |part| part.unit).to_owned();
    let (from, to) = charged(run, context.slice);
    let category = match part {
        Some(part) if part.market == "spot" => "Dynamic",
        _ => "Standard",
    };
    let keys = &run.keys;
    vec![
        billed,
        keys.account.clone(),
        String::new(),
        run.currency.clone(),
        time(context.billing_period.1),
        time(context.billing_period.0),
        "Usage".to_owned(),
        String::new(),
        description(run, part),
        time(to),
        time(from),
        effective.clone(),
        effective,
        context.site.to_owned(),
        amount(list),
        quantity.clone(),
        unit.clone(),
        context.site.to_owned(),
        context.site.to_owned(),
        "Compute".to_owned(),
        format!("Slurm {}", keys.cluster),
        "Usage-Based".to_owned(),
        // The price book has no commitments.
        String::new(),
        String::new(),
        String::new(),
        String::new(),
        String::new(),
        quantity,
        unit,
        unit_price(cost),
        unit_price(list),
        category.to_owned(),
        // The region is not known.
        String::new(),
        String::new(),
        run.run.clone(),
        format!("Job {}", run.display_id),
        "Slurm Job".to_owned(),
        part.map(|part| part.node_type.clone()).unwrap_or_default(),
        part.map(sku_price).unwrap_or_default(),
        keys.account.clone(),
        String::new(),
        tags(run),
        keys.cluster.clone(),
        context.person.key.clone(),
        keys.partition.clone(),
        run.price_book.clone(),
        keys.qos.clone(),
        run.run.clone(),
        keys.user.clone(),
    ]
}

fn description(run: &FinalizedRun, part: Option<&SlicePart>) -> String {
    let job = format!("Job {}", run.display_id);
    part.map_or(job.clone(), |part| {
        let node_type = or(&part.node_type, "billing units");
        format!("{job} on {node_type} ({})", or(&part.market, "on_demand"))
    })
}

/// The part of the run's time in the slice. A run of no time is charged the second of its end.
fn charged(run: &FinalizedRun, (from, to): Interval) -> Interval {
    let (from, to) = (run.started.max(from), run.ended.min(to));
    (from, to.max(from + 1))
}

fn sku_price(part: &SlicePart) -> String {
    if part.node_type.is_empty() {
        return String::new();
    }
    format!("{}/{}", part.node_type, part.market)
}

/// The tags as a JSON object. Own ones begin with `slurm-mesh/`.
fn tags(run: &FinalizedRun) -> String {
    let own = run.keys.tags.lines().filter_map(|tag| tag.split_once('='));
    let mut tags: serde_json::Map<_, _> = own
        .map(|(key, value)| (key.to_owned(), value.into()))
        .collect();
    let class = match run.class {
        Class::Completed => "completed",
        Class::NotCompleted | Class::Open => "not_completed",
    };
    tags.insert("slurm-mesh/class".to_owned(), class.into());
    if !run.lost.is_empty() {
        tags.insert("slurm-mesh/lost".to_owned(), run.lost.as_str().into());
    }
    serde_json::Value::Object(tags).to_string()
}

fn or<'a>(text: &'a str, other: &'a str) -> &'a str {
    if text.is_empty() { other } else { text }
}

fn exact(amount: Micros) -> Exact {
    Exact::new(amount.0.into(), 1_000_000.into())
}

/// `12.345678`, without a separator or a sign before positive amounts.
fn amount(amount: Micros) -> String {
    decimal_text(&exact(amount), 6)
}

fn time(seconds: i64) -> String {
    let time = DateTime::from_timestamp(seconds, 0).unwrap_or_default();
    time.format("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapters::RunKeys;
    use crate::domain::money::ratio;
    use crate::usage::RunHistory;

    fn run() -> FinalizedRun {
        FinalizedRun {
            keys: RunKeys {
                cluster: "hpc".into(),
                user: "alice".into(),
                account: "nlp".into(),
                partition: "gpu".into(),
                qos: "normal".into(),
                tags: "project=atlas".into(),
            },
            run: "56789/1".into(),
            display_id: "56789".into(),
            class: Class::NotCompleted,
            currency: "EUR".into(),
            current: Micros(3_000_000),
            price_book: "site 1 #00".into(),
            started: 0,
            ended: 5400,
            lost: "oom".into(),
            unused: Micros::ZERO,
            history: RunHistory::default(),
        }
    }

    #[test]
    fn a_run_whose_quantity_is_not_known_has_its_cost() {
        let person = Person {
            key: "https://id#a".into(),
            display_name: String::new(),
        };
        let context = RowContext {
            site: "Example University",
            is_billed: true,
            billing_period: (0, 2_678_400),
            slice: (0, 2_678_400),
            person: &person,
        };
        let cells = row(&run(), Micros(3_000_000), None, &context);
        for (column, value) in [
            ("BilledCost", "3.000000"),
            ("EffectiveCost", "3.000000"),
            ("ListCost", "3.000000"),
            ("PricingQuantity", ""),
            ("PricingUnit", ""),
            ("ConsumedQuantity", ""),
            ("ConsumedUnit", ""),
            ("ListUnitPrice", ""),
            ("ContractedUnitPrice", ""),
            ("SkuId", ""),
            ("SkuPriceId", ""),
            ("ChargeDescription", "Job 56789"),
        ] {
            let at = COLUMNS.iter().position(|known| *known == column).unwrap();
            assert_eq!(cells[at], value, "{column}");
        }
    }

    #[test]
    fn a_row_has_every_column_and_prices_times_quantities_are_costs() {
        let person = Person {
            key: "https://id#a".into(),
            display_name: String::new(),
        };
        let context = RowContext {
            site: "Example University",
            is_billed: false,
            billing_period: (0, 2_678_400),
            slice: (1800, 2_678_400),
            person: &person,
        };
        let part = SlicePart {
            list: Micros(2_500_001),
            quantity: ratio(1, 3).unwrap(),
            unit: "Node-Hours",
            node_type: "a100".into(),
            market: "spot".into(),
        };
        let cells = row(&run(), Micros(2_000_000), Some(&part), &context);
        assert_eq!(cells.len(), COLUMNS.len());
        let cell = |name: &str| {
            let at = COLUMNS.iter().position(|column| *column == name).unwrap();
            cells[at].as_str()
        };
        for (column, value) in [
            ("BilledCost", "0.000000"),
            ("EffectiveCost", "2.000000"),
            ("ListCost", "2.500001"),
            ("PricingQuantity", "0.333333333333"),
            ("ListUnitPrice", "7.500003000000"),
            ("ChargePeriodStart", "1970-01-01T00:30:00Z"),
            ("ChargePeriodEnd", "1970-01-01T01:30:00Z"),
            ("BillingPeriodEnd", "1970-02-01T00:00:00Z"),
            ("ChargeDescription", "Job 56789 on a100 (spot)"),
            ("PricingCategory", "Dynamic"),
            (
                "Tags",
                r#"{"project":"atlas","slurm-mesh/class":"not_completed","slurm-mesh/lost":"oom"}"#,
            ),
            ("x_Identity", "https://id#a"),
        ] {
            assert_eq!(cell(column), value, "{column}");
        }
        let number = |name: &str| cell(name).parse::<f64>().unwrap();
        let product = number("ListUnitPrice") * number("PricingQuantity");
        assert!((product - number("ListCost")).abs() < 1e-6);
    }
}
