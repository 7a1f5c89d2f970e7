//! From a run's usage and a price book to the payload of a cost event. Pure: equal inputs give equal bytes.

mod slice;
mod waste;

use mesh_events::proto::mesh::cost::v1::{CostClass, CostEvent, CostLine, Money};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{Correlation, IdSource, Source};
use mesh_events::proto::mesh::job::v1::{Job, Usage as JobUsage};
use mesh_events::{Event, EventId, EventType, SCHEMA_VERSION};
use pbjson_types::Timestamp;
use slurm_types::HostList;

use crate::accrual::{Tick, TickReason};
use crate::domain::money::{Exact, fraction, round_half_even};
use crate::domain::price::{self, Nodes};
use crate::domain::{Class, CostCurve, Micros, PriceError, billing, burn};
use crate::price_book::{Charge, PriceBook};
use crate::usage::{RunHistory, Usage, charged_until, measured, seconds, usage, used};

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

fn units(usage: &Usage) -> Result<&[billing::BillingSegment], PriceError> {
    if usage.billing.is_empty() {
        Err(PriceError::AllocationMissing {
            what: "billing units",
        })
    } else {
        Ok(&usage.billing)
    }
}

/// The payload of `cost.estimated`. Without a price it has a reason instead of an amount.
pub fn estimated(book: &PriceBook, job: &Job, account: &str) -> CostEvent {
    let mut payload = CostEvent {
        job: Some(job.clone()),
        class: CostClass::Open.into(),
        ..described(book)
    };
    match rate(book, job, account) {
        Ok(rate) => {
            payload.burn_rate = Some(money(book, rate.burn));
            payload.estimated = rate.estimate.map(|estimate| money(book, estimate));
        }
        Err(error) => payload.problem = error.problem(),
    }
    payload
}

/// The payload of the `cost.estimated` after a resize: the new burn rate, and the cost until the time limit, including the part before
/// the resize. `job` is the run after the resize, and the history already contains the resize.
pub fn estimated_after_resize(
    book: &PriceBook,
    history: &RunHistory,
    job: &Job,
    at: i64,
) -> CostEvent {
    let mut payload = CostEvent {
        job: Some(job.clone()),
        class: CostClass::Open.into(),
        ..described(book)
    };
    let start = seconds(job.start_time.as_ref()).unwrap_or(at);
    let until = |minutes: u32| start + i64::from(minutes) * 60;
    let estimate =
        |minutes| spent(book, history, job, until(minutes).max(at)).map(|spent| spent.cost);
    let priced = rate_at(book, job, &history.account, at)
        .and_then(|rate| Ok((rate.burn, job.time_limit_minutes.map(estimate).transpose()?)));
    match priced {
        Ok((burn, estimate)) => {
            payload.burn_rate = Some(money(book, burn));
            payload.estimated = estimate.map(|estimate| money(book, estimate));
        }
        Err(error) => payload.problem = error.problem(),
    }
    payload
}

/// The payload of `cost.finalized`. Without a price it has a reason instead of an amount.
///
/// # Errors
/// [`PriceError::EndBeforeStart`]: a contradictory record gives no event.
pub fn finalized(
    book: &PriceBook,
    history: &RunHistory,
    job: &Job,
    end: i64,
    class: Class,
) -> Result<CostEvent, PriceError> {
    let class = match class {
        Class::Completed => CostClass::Completed,
        Class::NotCompleted => CostClass::NotCompleted,
        Class::Open => CostClass::Open,
    };
    let mut payload = CostEvent {
        job: Some(job.clone()),
        class: class.into(),
        ..described(book)
    };
    match spent(book, history, job, end) {
        Ok(spent) => {
            payload.total = Some(money(book, spent.cost));
            payload.charged_seconds = spent.seconds;
            payload.list = (spent.list != spent.cost).then(|| money(book, spent.list));
            payload.factor = spent.factor.as_ref().map(fraction).unwrap_or_default();
            payload.lines = spent.lines;
            payload.waste = waste::of_run(book, history, job, end, spent.cost)?;
        }
        Err(error @ PriceError::EndBeforeStart { .. }) => return Err(error),
        Err(error) => payload.problem = error.problem(),
    }
    Ok(payload)
}

/// The payload of the `cost.adjusted` that says what a run used, after accounting had it. Its cost stays `total`. `None` without a price,
/// and if nothing of its use is known.
///
/// # Errors
/// As [`finalized`].
pub fn adjusted_by_usage(
    book: &PriceBook,
    history: &RunHistory,
    cause: &Job,
    (total, class): (Micros, Class),
) -> Result<Option<CostEvent>, PriceError> {
    let Some((end, record)) = &history.end else {
        return Ok(None);
    };
    let mut payload = finalized(book, history, record, *end, class)?;
    if payload.total.is_none() || used(record).is_unknown() {
        return Ok(None);
    }
    payload.total = Some(money(book, total));
    payload.previous = Some(money(book, total));
    payload.delta = Some(money(book, Micros::ZERO));
    payload.reason = USAGE.to_owned();
    payload.job = Some(as_it_ended(cause, record));
    Ok(Some(payload))
}

/// What was published of a final cost.
#[derive(Clone, Debug, PartialEq)]
pub struct PublishedCost {
    /// `None` if there was no price.
    pub total: Option<Micros>,
    /// Class.
    pub class: Class,
    /// What of it is lost or unused.
    pub waste: WasteColumns,
    /// What the run used.
    pub usage: Option<JobUsage>,
}

/// The payload of `cost.adjusted`, from a history with its end. `None` if nothing has changed or there is no price now. `cause` is the
/// job in the late event; the facts for pricing come from the end's record.
///
/// # Errors
/// If the end is before the start, or the change does not fit 64 bits.
pub fn adjusted(
    book: &PriceBook,
    history: &RunHistory,
    cause: &Job,
    before: &PublishedCost,
    class: Class,
) -> Result<Option<CostEvent>, PriceError> {
    let Some((end, record)) = &history.end else {
        return Ok(None);
    };
    let mut payload = finalized(book, history, record, *end, class)?;
    let previous = before.total;
    let Some(total) = payload.total.as_ref().map(|total| Micros(total.micros)) else {
        return Ok(None);
    };
    let now = PublishedCost {
        total: Some(total),
        class,
        waste: WasteColumns::of(&payload),
        usage: record.usage.clone(),
    };
    if *before == now {
        return Ok(None);
    }
    let delta = total
        .0
        .checked_sub(previous.map_or(0, |previous| previous.0));
    let delta = Micros(delta.ok_or(PriceError::TooLarge)?);
    payload.previous = previous.map(|previous| money(book, previous));
    payload.delta = Some(money(book, delta));
    payload.reason = LATE_FACT.to_owned();
    payload.job = Some(as_it_ended(cause, record));
    Ok(Some(payload))
}

/// Reason of adjustments: an event of the run arrived after its final cost.
pub const LATE_FACT: &str = "late_fact";
/// Reason of adjustments: accounting has what the run used. The cost is the same.
pub const USAGE: &str = "usage";

/// Names, paths and comments of one snapshot with the facts of the end's record. A lost record is restored from it.
fn as_it_ended(snapshot: &Job, record: &Job) -> Job {
    let has_usage = snapshot.usage.as_ref().map(measured) == record.usage;
    Job {
        usage: if has_usage {
            &snapshot.usage
        } else {
            &record.usage
        }
        .clone(),
        state: record.state.clone(),
        start_time: record.start_time,
        end_time: record.end_time,
        suspended_seconds: record.suspended_seconds,
        nodes: record.nodes.clone(),
        alloc_tres: record.alloc_tres.clone(),
        allocations: record.allocations.clone(),
        ..snapshot.clone()
    }
}

/// The payload of `cost.accrued`.
pub fn accrued(book: &PriceBook, history: &RunHistory, newest: &Job, tick: &Tick) -> CostEvent {
    let resized = history.resizes.iter().filter(|(at, _)| *at <= tick.as_of);
    let job = resized.max_by_key(|(at, _)| *at).map(|(_, job)| job);
    let job = job.or(history.start.as_ref()).unwrap_or(newest);
    let start = seconds(newest.start_time.as_ref()).unwrap_or(tick.as_of);
    CostEvent {
        job: Some(job.clone()),
        class: CostClass::Open.into(),
        burn_rate: Some(money(book, tick.burn_rate)),
        accrued: Some(money(book, tick.accrued)),
        as_of: timestamp(tick.as_of),
        charged_seconds: start.abs_diff(tick.as_of),
        reason: tick.reason.as_str().to_owned(),
        threshold: match tick.reason {
            TickReason::Threshold(threshold) => Some(money(book, threshold)),
            TickReason::BurnRate | TickReason::Interval => None,
        },
        ..described(book)
    }
}

fn timestamp(seconds: i64) -> Option<Timestamp> {
    Some(Timestamp { seconds, nanos: 0 })
}

fn described(book: &PriceBook) -> CostEvent {
    CostEvent {
        mode: book.mode_name().to_owned(),
        price_book: book.label(),
        ..CostEvent::default()
    }
}

fn money(book: &PriceBook, amount: Micros) -> Money {
    Money {
        micros: amount.0,
        currency: book.currency.clone(),
    }
}

/// The event around a payload. All other fields come from the job event, so the result does not depend on when or where it is built.
pub fn event(
    (id, id_source): (EventId, Option<IdSource>),
    kind: EventType,
    cause: &Event,
    payload: CostEvent,
) -> Event {
    Event {
        id: id.to_string(),
        id_source,
        cluster: cause.cluster.clone(),
        r#type: kind.to_string(),
        occurred_at: cause.occurred_at,
        observed_at: cause.observed_at,
        source: Source::Derived.into(),
        source_detail: cause.id.clone(),
        confidence: cause.confidence,
        late: cause.late,
        correlation: Some(Correlation {
            event_ids: vec![cause.id.clone()],
            entities: Vec::new(),
        }),
        owner: cause.owner.clone(),
        actor: None,
        entity: cause.entity.clone(),
        // The sequence of its cause. A receiver that has seen later events of the run can tell that this one is older.
        run_seq: cause.run_seq,
        schema_version: SCHEMA_VERSION,
        payload: Some(Payload::Cost(payload)),
    }
}

#[cfg(test)]
mod tests;
