//! Cost by Slurm's billing units.
//!
//! Slurm weighs a job's allocation with the partition's `TRESBillingWeights` and stores the result truncated to an integer (TRES
//! `billing`). Mode `billing` charges that integer for the whole time of the allocation: Slurm's own roll-up subtracts suspended time
//! from CPUs only, never from billing.
//! The weighing itself is here to check Slurm's value (`assoc_mgr_tres_weighted`, Slurm 22.05 to 26.05).

use std::collections::BTreeMap;

use num_traits::{ToPrimitive as _, Zero as _};

use super::curve::{CostCurve, CurveBuilder};
use super::money::{Exact, integer, round_half_even};
use super::{Micros, PriceError, Rate, RateSchedule};

/// Rule that combines the weighted amounts: `PriorityFlags` of slurm.conf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WeightRule {
    /// The sum of all amounts.
    #[default]
    Sum,
    /// `MAX_TRES`: the largest node-specific amount, plus the global ones (licenses, burst buffers).
    MaxTres,
    /// `MAX_TRES_GRES` (Slurm 25.05): all generic resources, plus the largest of the other node-specific amounts, plus the global
    /// ones.
    MaxTresGres,
}

/// Weighs amounts by TRES name. Without weights, Slurm bills CPUs.
pub fn weigh(
    combine: WeightRule,
    weights: &BTreeMap<String, Exact>,
    amounts: &BTreeMap<String, Exact>,
) -> Exact {
    if weights.is_empty() {
        return amounts.get("cpu").cloned().unwrap_or_else(Exact::zero);
    }
    let (mut largest, mut gres, mut all_nodes, mut global) =
        (Exact::zero(), Exact::zero(), Exact::zero(), Exact::zero());
    // The billing TRES is the result, never an input.
    for (tres, weight) in weights
        .iter()
        .filter(|(tres, _)| tres.as_str() != "billing")
    {
        let Some(amount) = amounts.get(tres) else {
            continue;
        };
        let value = weight * amount;
        let is_gres = tres.starts_with("gres/");
        if is_gres || matches!(tres.as_str(), "cpu" | "mem" | "node") {
            all_nodes += &value;
            if is_gres && combine == WeightRule::MaxTresGres {
                gres += value;
            } else {
                largest = largest.max(value);
            }
        } else {
            global += value;
        }
    }
    match combine {
        WeightRule::Sum => all_nodes + global,
        WeightRule::MaxTres | WeightRule::MaxTresGres => gres + largest + global,
    }
}

/// The integer that Slurm stores: the fraction is truncated.
///
/// # Errors
/// If it does not fit 64 bits.
pub fn truncate(billing: &Exact) -> Result<u64, PriceError> {
    billing
        .trunc()
        .to_integer()
        .to_u64()
        .ok_or(PriceError::TooLarge)
}

/// Cost of billing units held for some seconds at one price, exact and rounded once.
///
/// # Errors
/// If the amount does not fit 64 bits.
pub fn price_held(
    units: u64,
    rate: Micros,
    held_seconds: u64,
) -> Result<(Exact, Micros), PriceError> {
    let exact = integer(units) * integer(rate.0) * integer(held_seconds) / integer(3600);
    let cost = round_half_even(&exact)?;
    Ok((exact, cost))
}

/// Billing units in a part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BillingSegment {
    /// First second.
    pub from: i64,
    /// First second after. `None` means the run's end.
    pub to: Option<i64>,
    /// Units as computed by Slurm.
    pub units: u64,
}

/// A part of a billed run: price per unit and hour, units, seconds.
pub type BillingLine = (Rate, u64, u64);

/// Prices a run by its billing units, across price changes and resizes. Rounded once.
///
/// # Errors
/// A [`PriceError`] if some part has no price or the run ends before it starts.
pub fn price_billing(
    rates: &RateSchedule,
    start: i64,
    end: i64,
    segments: &[BillingSegment],
) -> Result<(Exact, Micros, Vec<BillingLine>), PriceError> {
    if end < start {
        return Err(PriceError::EndBeforeStart { start, end });
    }
    let (mut exact, mut lines) = (Exact::zero(), Vec::new());
    for segment in segments {
        let (from, to) = (segment.from.max(start), segment.to.unwrap_or(end).min(end));
        for (rate, seconds) in rates
            .within(from, to)
            .map_err(|at| PriceError::BillingPriceMissing { at })?
        {
            exact += integer(segment.units) * integer(rate.per_hour.0) * integer(seconds)
                / integer(3600);
            lines.push((rate, segment.units, seconds));
        }
    }
    let cost = round_half_even(&exact)?;
    Ok((exact, cost, lines))
}

/// Cost of a run by its billing units over time, before rounding.
///
/// # Errors
/// If some part has no price.
pub fn curve(
    rates: &RateSchedule,
    start: i64,
    end: i64,
    segments: &[BillingSegment],
) -> Result<CostCurve, PriceError> {
    let mut builder = CurveBuilder::default();
    for segment in segments {
        let (from, to) = (segment.from.max(start), segment.to.unwrap_or(end).min(end));
        let mut begin = from;
        for (rate, seconds) in rates
            .within(from, to)
            .map_err(|at| PriceError::BillingPriceMissing { at })?
        {
            let until = begin.saturating_add_unsigned(seconds);
            let per_hour = integer(segment.units) * integer(rate.per_hour.0);
            builder.add(begin, until, per_hour);
            begin = until;
        }
    }
    Ok(builder.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::money::decimal;

    fn amounts(pairs: &[(&str, &str)]) -> BTreeMap<String, Exact> {
        pairs
            .iter()
            .map(|(tres, amount)| ((*tres).to_owned(), decimal(amount).unwrap()))
            .collect()
    }

    #[test]
    fn globals_are_added_to_the_largest() {
        let weights = amounts(&[
            ("cpu", "1"),
            ("mem", "0.5"),
            ("gres/gpu", "2"),
            ("gres/ssd", "1"),
            ("license/a", "3"),
            ("billing", "9"),
        ]);
        let given = amounts(&[
            ("cpu", "4"),
            ("mem", "10"),
            ("gres/gpu", "2"),
            ("gres/ssd", "3"),
            ("license/a", "1"),
            ("billing", "5"),
        ]);
        for (combine, units) in [
            (WeightRule::Sum, 19),
            (WeightRule::MaxTres, 8),
            (WeightRule::MaxTresGres, 15),
        ] {
            assert_eq!(
                weigh(combine, &weights, &given),
                integer(units),
                "{combine:?}"
            );
        }
    }

    #[test]
    fn without_weights_cpus_are_billed() {
        assert_eq!(
            weigh(
                WeightRule::MaxTres,
                &BTreeMap::new(),
                &amounts(&[("cpu", "4"), ("mem", "9")])
            ),
            integer(4)
        );
    }
}
