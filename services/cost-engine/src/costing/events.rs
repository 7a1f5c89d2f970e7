//! Payloads of cost events, and the events around them.

use mesh_events::proto::mesh::cost::v1::{CostClass, CostEvent};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{Correlation, IdSource, Source};
use mesh_events::proto::mesh::job::v1::{Job, Usage as JobUsage};
use mesh_events::{Event, EventId, EventType, SCHEMA_VERSION};
use pbjson_types::Timestamp;

use super::{WasteColumns, money, rate, rate_at, spent, waste};
use crate::accrual::{AccrualPoint, AccrualReason};
use crate::domain::money::fraction;
use crate::domain::{Class, Micros, PriceError};
use crate::price_book::PriceBook;
use crate::usage::{RunHistory, measured, seconds, used};

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
pub fn accrued(
    book: &PriceBook,
    history: &RunHistory,
    newest: &Job,
    tick: &AccrualPoint,
) -> CostEvent {
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
            AccrualReason::Threshold(threshold) => Some(money(book, threshold)),
            AccrualReason::BurnRate | AccrualReason::Interval => None,
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
