//! From a run's usage and a price book to the payload of a cost event. Pure: equal inputs give equal bytes.

mod events;
mod slice;
mod waste;

use mesh_events::proto::mesh::cost::v1::{CostLine, Money};
use mesh_events::proto::mesh::job::v1::Job;
use slurm_types::HostList;

use crate::domain::money::{Exact, fraction, round_half_even};
use crate::domain::price::{self, Nodes};
use crate::domain::{CostCurve, Micros, PriceError, billing, burn};
use crate::price_book::{Charge, PriceBook};
use crate::usage::{RunHistory, Usage, charged_until, seconds, usage};

pub use events::{
    LATE_FACT, PublishedCost, USAGE, accrued, adjusted, adjusted_by_usage, estimated,
    estimated_after_resize, event, finalized,
};
pub use slice::{SlicePart, shares, slice_part};
pub use waste::WasteColumns;

/// Accrued cost of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct AccruedCost {
    /// Cost, rounded once.
    pub cost: Micros,
    /// Seconds since the start, including suspensions.
    pub seconds: u64,
    /// Cost by list prices, rounded once.
    pub list: Micros,
    /// Surcharge or discount, if there is one.
    pub factor: Option<Exact>,
    /// Lines that add up to the cost without the factor.
    pub lines: Vec<CostLine>,
}

/// Burn rate of a run, and its cost until the time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunRate {
    /// Cost per hour.
    pub burn: Micros,
    /// Cost until the time limit. `None` without one.
    pub estimate: Option<Micros>,
}

/// Burn rate and estimate of a run that has started.
///
/// # Errors
/// If there is no price.
pub fn rate(book: &PriceBook, job: &Job, account: &str) -> Result<RunRate, PriceError> {
    let at = seconds(job.start_time.as_ref()).unwrap_or_default();
    rate_at(book, job, account, at)
}

/// Burn rate and estimate at a later moment of the run. The estimate covers the whole time limit at this rate.
fn rate_at(book: &PriceBook, job: &Job, account: &str, at: i64) -> Result<RunRate, PriceError> {
    let limit = job
        .time_limit_minutes
        .map(|minutes| u64::from(minutes) * 60);
    let usage = usage(&RunHistory::default(), job, at);
    let factor = book.factor(&job.qos, &usage.partition, account);
    match &book.charge {
        Charge::Nodes(mode) => {
            let held = usage
                .run
                .segments
                .first()
                .map(|segment| segment.allocation.as_slice())
                .unwrap_or_default();
            if held.is_empty() {
                return Err(PriceError::AllocationMissing { what: "nodes" });
            }
            let nodes = book.nodes(held.iter().map(|held| held.node.as_str()), &usage.partition);
            let burn = burn(*mode, &nodes, held, usage.run.exclusive, at)?;
            let burn = match &factor {
                Some(factor) => burn.times(factor)?,
                None => burn,
            };
            Ok(RunRate {
                estimate: limit.map(|limit| burn.estimate(limit)).transpose()?,
                burn: burn.per_hour,
            })
        }
        Charge::Billing(rates) => {
            let units = units(&usage)?.first().map_or(0, |segment| segment.units);
            let per_unit = rates.at(at).ok_or(PriceError::BillingPriceMissing { at })?;
            let cost = |seconds| {
                let (exact, cost) = billing::price_held(units, per_unit.per_hour, seconds)?;
                times(exact, cost, factor.as_ref())
            };
            Ok(RunRate {
                burn: cost(3600)?,
                estimate: limit.map(cost).transpose()?,
            })
        }
    }
}

/// Cost of a run from its start to `end`.
///
/// # Errors
/// If there is no price for some part of it.
pub fn spent(
    book: &PriceBook,
    history: &RunHistory,
    newest: &Job,
    end: i64,
) -> Result<AccruedCost, PriceError> {
    let (usage, factor) = usage_and_factor(book, history, newest, end);
    let start = usage.run.start.unwrap_or(usage.run.end);
    let end = usage.run.end;
    match &book.charge {
        Charge::Nodes(mode) => {
            let nodes = nodes_held(book, &usage, start)?;
            let priced = price::price(*mode, &nodes, &usage.run)?;
            let line = |line: &crate::domain::Line| CostLine {
                nodes: HostList::compress(&line.nodes),
                node_type: line.node_type.clone(),
                market: line.market.as_str().to_owned(),
                rate_micros_per_hour: line.rate.per_hour.0,
                share: fraction(&line.share),
                seconds: line.seconds,
                list_rate_micros_per_hour: match line.rate.list {
                    list if list == line.rate.per_hour => 0,
                    list => list.0,
                },
            };
            Ok(AccruedCost {
                cost: times(priced.exact, priced.cost, factor.as_ref())?,
                list: round_half_even(&priced.list)?,
                factor,
                seconds: priced.seconds,
                lines: priced.lines.iter().map(line).collect(),
            })
        }
        Charge::Billing(rates) => {
            let (exact, list, lines) = billing::price_billing(rates, start, end, units(&usage)?)?;
            let line = |(rate, units, seconds): billing::BillingLine| CostLine {
                node_type: "billing".to_owned(),
                rate_micros_per_hour: rate.per_hour.0,
                share: format!("{units}/1"),
                seconds,
                ..CostLine::default()
            };
            Ok(AccruedCost {
                cost: times(exact, list, factor.as_ref())?,
                list,
                factor,
                seconds: start.abs_diff(end),
                lines: lines.into_iter().map(line).collect(),
            })
        }
    }
}

/// Cost of a run over time, from its start to `end`. Its last value is the cost that [`spent`] computes.
///
/// # Errors
/// If there is no price for some part of it.
pub fn curve(
    book: &PriceBook,
    history: &RunHistory,
    newest: &Job,
    end: i64,
) -> Result<CostCurve, PriceError> {
    let (usage, factor) = usage_and_factor(book, history, newest, end);
    let start = usage.run.start.unwrap_or(usage.run.end);
    let curve = match &book.charge {
        Charge::Nodes(mode) => {
            let nodes = nodes_held(book, &usage, start)?;
            price::curve(*mode, &nodes, &usage.run)?
        }
        Charge::Billing(rates) => billing::curve(rates, start, usage.run.end, units(&usage)?)?,
    };
    Ok(match &factor {
        Some(factor) => curve.times(factor),
        None => curve,
    })
}

/// Rates per hour of what a run holds, each with the second from which it applies, as if the run was never suspended.
///
/// # Errors
/// If there is no price for some part of it.
pub fn burn_rates(
    book: &PriceBook,
    history: &RunHistory,
    newest: &Job,
    end: i64,
) -> Result<Vec<(i64, Micros)>, PriceError> {
    let history = RunHistory {
        marks: Vec::new(),
        ..history.clone()
    };
    let newest = Job {
        suspended_seconds: 0,
        ..newest.clone()
    };
    curve(book, &history, &newest, end)?.rates_per_hour()
}

/// How long after its time limit a run may still appear as running, because termination and clean-up take time.
pub(crate) const LIMIT_GRACE_SECONDS: i64 = 3_600;

/// End of the charged time of a running job. A start slightly ahead of our clock costs nothing yet and is not an error. A run far past
/// its time limit has ended even without a Slurm record, so it is charged up to the limit. Suspended time does not count towards the
/// limit, so a run that was suspended is charged up to now.
pub fn accrued_until(history: &RunHistory, job: &Job, now: i64) -> i64 {
    let start = seconds(job.start_time.as_ref()).unwrap_or(now);
    let is_limited = history.marks.is_empty() && job.suspended_seconds == 0;
    let until = match limit_end(job, start) {
        Some(limit) if is_limited && now > limit + LIMIT_GRACE_SECONDS => limit,
        _ => now,
    };
    until.max(start)
}

/// End of the time limit of a run that started at `start`. `None` without a limit.
pub fn limit_end(job: &Job, start: i64) -> Option<i64> {
    let minutes = job.time_limit_minutes?;
    Some(start + i64::from(minutes) * 60)
}

/// What a run held until `end`, and its surcharge or discount.
fn usage_and_factor(
    book: &PriceBook,
    history: &RunHistory,
    newest: &Job,
    end: i64,
) -> (Usage, Option<Exact>) {
    let usage = usage(history, newest, charged_until(history, newest, end));
    let qos = match newest.qos.as_str() {
        "" => history.start.as_ref().map_or("", |job| &job.qos),
        qos => qos,
    };
    let factor = book.factor(qos, &usage.partition, &history.account);
    (usage, factor)
}

/// The price-relevant facts of the nodes that a run held.
fn nodes_held(book: &PriceBook, usage: &Usage, start: i64) -> Result<Nodes, PriceError> {
    let segments = &usage.run.segments;
    let held = || segments.iter().flat_map(|segment| &segment.allocation);
    if start < usage.run.end && held().next().is_none() {
        return Err(PriceError::AllocationMissing { what: "nodes" });
    }
    Ok(book.nodes(held().map(|held| held.node.as_str()), &usage.partition))
}

/// An exact amount with a factor, rounded once. `rounded` is the amount without one.
fn times(exact: Exact, rounded: Micros, factor: Option<&Exact>) -> Result<Micros, PriceError> {
    factor.map_or(Ok(rounded), |factor| round_half_even(&(exact * factor)))
}

fn money(book: &PriceBook, amount: Micros) -> Money {
    Money {
        micros: amount.0,
        currency: book.currency.clone(),
    }
}

fn units(usage: &Usage) -> Result<&[billing::BillingSegment], PriceError> {
    if usage.billing.is_empty() {
        Err(PriceError::AllocationMissing {
            what: "billing units",
        })
    } else {
        Ok(&usage.billing)
    }
}

#[cfg(test)]
mod tests;
