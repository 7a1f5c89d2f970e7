//! What of a run lies in a slice, and on which nodes.

use std::collections::BTreeMap;

use mesh_events::proto::mesh::job::v1::Job;
use num_traits::Zero as _;

use super::{nodes_held, units, usage_and_factor};
use crate::domain::money::{Exact, integer, round_half_even};
use crate::domain::price::{self, Shares};
use crate::domain::{Interval, Micros, PriceError, billing};
use crate::price_book::{Charge, PriceBook};
use crate::usage::{RunHistory, Usage, charged_until, usage};

/// What of a run lies in a slice, for bills.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlicePart {
    /// Cost by list prices, without surcharge or discount. The parts of all slices add up.
    pub list: Micros,
    /// Node-hours times shares, or billing units times hours.
    pub quantity: Exact,
    /// Unit of the quantity.
    pub unit: &'static str,
    /// Node type of the largest part. Empty in mode `billing`.
    pub node_type: String,
    /// Market of that part. Empty in mode `billing`.
    pub market: String,
}

/// The part of a run in a slice.
///
/// # Errors
/// If there is no price for some part of it.
pub fn slice_part(
    book: &PriceBook,
    history: &RunHistory,
    record: &Job,
    end: i64,
    (from, to): Interval,
) -> Result<SlicePart, PriceError> {
    let until = |time: i64| {
        let (mut usage, _) = usage_and_factor(book, history, record, end);
        let start = usage.run.start.unwrap_or(usage.run.end);
        usage.run.end = usage.run.end.min(time).max(start);
        held_and_list(book, &usage, start)
    };
    let (before, after) = (until(from)?, until(to)?);
    let quantity = |held: &HeldQuantities| held.values().fold(Exact::zero(), |sum, of| sum + of);
    let part_of = |key: &(String, String)| {
        let before = before.1.get(key).cloned().unwrap_or_else(Exact::zero);
        after
            .1
            .get(key)
            .map_or_else(Exact::zero, |after| after - before)
    };
    let largest = after.1.keys().max_by_key(|key| part_of(key));
    let (node_type, market) = largest.cloned().unwrap_or_default();
    let list = round_half_even(&after.0)?.saturating_sub(round_half_even(&before.0)?);
    Ok(SlicePart {
        list,
        quantity: quantity(&after.1) - quantity(&before.1),
        unit: match &book.charge {
            Charge::Nodes(_) => "Node-Hours",
            // FOCUS: `<singular-unit>-<plural-time-units>`.
            Charge::Billing(_) => "Unit-Hours",
        },
        node_type,
        market,
    })
}

/// Quantities by node type and market.
type HeldQuantities = BTreeMap<(String, String), Exact>;

/// Exact cost by list prices, and what was held.
fn held_and_list(
    book: &PriceBook,
    usage: &Usage,
    start: i64,
) -> Result<(Exact, HeldQuantities), PriceError> {
    let hours = |seconds: u64| integer(seconds) / integer(3600u32);
    let mut held = HeldQuantities::new();
    match &book.charge {
        Charge::Nodes(mode) => {
            let priced = price::price(*mode, &nodes_held(book, usage, start)?, &usage.run)?;
            for line in priced.lines {
                let key = (line.node_type, line.market.as_str().to_owned());
                *held.entry(key).or_insert_with(Exact::zero) +=
                    integer(line.nodes.len()) * line.share * hours(line.seconds);
            }
            Ok((priced.list, held))
        }
        Charge::Billing(rates) => {
            let (exact, _, lines) =
                billing::price_billing(rates, start, usage.run.end, units(usage)?)?;
            let key = (String::new(), String::new());
            let sum = lines
                .iter()
                .fold(Exact::zero(), |sum, (_, units, seconds)| {
                    sum + integer(*units) * hours(*seconds)
                });
            held.insert(key, sum);
            Ok((exact, held))
        }
    }
}

/// The shares of nodes that a run held until `end`: node, time and share. `None` in mode `billing`, which charges no nodes.
///
/// # Errors
/// If there is no price for some part of it.
pub fn shares(
    book: &PriceBook,
    history: &RunHistory,
    newest: &Job,
    end: i64,
) -> Result<Option<Shares>, PriceError> {
    let Charge::Nodes(mode) = &book.charge else {
        return Ok(None);
    };
    let usage = usage(history, newest, charged_until(history, newest, end));
    let start = usage.run.start.unwrap_or(usage.run.end);
    let nodes = nodes_held(book, &usage, start)?;
    price::shares(*mode, &nodes, &usage.run).map(Some)
}
