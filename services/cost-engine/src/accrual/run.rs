//! The ticks of a running job and of an ended run, by the costs that live queries and the final cost have.

use mesh_events::proto::mesh::job::v1::Job;

use super::{AccrualPoint, AccrualRules, ticks};
use crate::costing;
use crate::domain::PriceError;
use crate::price_book::PriceBook;
use crate::usage::{RunHistory, charged_until, seconds};

/// The ticks of a running job until a moment.
///
/// # Errors
/// If there is no price for some part of it.
pub fn of_running(
    rules: &AccrualRules,
    book: &PriceBook,
    history: &RunHistory,
    job: &Job,
    until: i64,
) -> Result<Vec<AccrualPoint>, PriceError> {
    let Some(start) = seconds(job.start_time.as_ref()) else {
        return Ok(Vec::new());
    };
    let until = costing::accrued_until(history, job, until);
    let burn_rates = costing::burn_rates(book, history, job, until + 1)?;
    let bounds = (start, until);
    if job.suspended_seconds == 0 {
        let curve = costing::curve(book, history, job, until + 1)?;
        return ticks(rules, bounds, |time| curve.until(time), &burn_rates);
    }
    // Suspended time that only a sum is known of is laid at the end of what is priced.
    let cost = |time| costing::curve(book, history, job, time)?.until(time);
    ticks(rules, bounds, cost, &burn_rates)
}

/// The ticks of an ended run before its end, by the record of the end.
///
/// # Errors
/// If there is no price for some part of it.
pub fn of_ended(
    rules: &AccrualRules,
    book: &PriceBook,
    history: &RunHistory,
    record: &Job,
    end: i64,
) -> Result<Vec<AccrualPoint>, PriceError> {
    let start = [Some(record), history.start.as_ref()].into_iter().flatten();
    let Some(start) = start
        .filter_map(|job| seconds(job.start_time.as_ref()))
        .next()
    else {
        return Ok(Vec::new());
    };
    let until = charged_until(history, record, end) - 1;
    let burn_rates = costing::burn_rates(book, history, record, end)?;
    let curve = costing::curve(book, history, record, end)?;
    ticks(rules, (start, until), |time| curve.until(time), &burn_rates)
}
