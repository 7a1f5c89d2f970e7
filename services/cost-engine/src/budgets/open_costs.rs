//! Costs over time of running jobs, and of ended runs that a bound of a period cuts. Computed once, and again when a run changes.

use std::collections::HashMap;

use super::usage::Amounts;
use crate::adapters::{FinalizedRun, OpenRun, PriceBooks};
use crate::costing;
use crate::domain::{CostCurve, Interval, Micros, PriceError, RunsCost};
use crate::error::Error;
use crate::price_book::PriceBook;
use crate::usage::{RunHistory, seconds};

/// How far the cost of a running job is computed at least.
const HORIZON_SECONDS: i64 = 24 * 3600;
const HOUR_SECONDS: i64 = 3600;

type RunId = (String, String);

/// Costs over time, by cluster and run.
#[derive(Default)]
pub(crate) struct CostCurves {
    open: HashMap<RunId, OpenCost>,
    cut: HashMap<RunId, (Micros, Option<CostCurve>)>,
}

/// A running job's cost over time.
struct OpenCost {
    history: RunHistory,
    price_book: String,
    /// Until when `ahead` is computed.
    horizon: i64,
    /// Beyond now, as if the run went on. `None` if there is no price.
    ahead: Option<CostCurve>,
}

impl CostCurves {
    /// Computes the costs of all running jobs, and removes those of others.
    pub fn set_open(&mut self, book: &PriceBook, open: &[OpenRun], now: i64) {
        let label = book.label();
        let mut before = std::mem::take(&mut self.open);
        for run in open {
            let id = (run.keys.cluster.clone(), run.job.run.clone());
            let is_current = |cost: &OpenCost| {
                cost.history == run.history
                    && cost.price_book == label
                    && now + HOUR_SECONDS <= cost.horizon
            };
            let cost = before
                .remove(&id)
                .filter(is_current)
                .unwrap_or_else(|| OpenCost::new(book, &label, run, now));
            self.open.insert(id, cost);
        }
    }

    /// Costs of a running job in a period.
    pub fn amounts(
        &self,
        book: &PriceBook,
        run: &OpenRun,
        (from, to): Interval,
        now: i64,
    ) -> Result<Amounts, PriceError> {
        let unpriced = Amounts {
            in_flight: RunsCost::of(None),
            burn_rate: RunsCost::of(None),
            ..Amounts::default()
        };
        let id = (run.keys.cluster.clone(), run.job.run.clone());
        let start = seconds(run.job.start_time.as_ref()).unwrap_or(now);
        if start >= to {
            return Ok(Amounts::default());
        }
        let until = costing::accrued_until(&run.history, &run.job, now);
        // Suspended time that only a sum is known of is laid at the end of what is priced, so the cost until now is computed separately.
        let accrued = match run.job.suspended_seconds {
            0 => None,
            _ => costing::curve(book, &run.history, &run.job, until).ok(),
        };
        let Some(ahead) = self.open.get(&id).and_then(|cost| cost.ahead.as_ref()) else {
            return Ok(unpriced);
        };
        let limit = costing::limit_end(&run.job, start).unwrap_or(until);
        let spent = accrued.as_ref().unwrap_or(ahead);
        let spent = spent.part(from, until.min(to).max(from))?;
        let rate = match until < now {
            true => Micros::ZERO,
            false => ahead.part(now, now.saturating_add(HOUR_SECONDS))?,
        };
        Ok(Amounts {
            in_flight: RunsCost::of(Some(spent)),
            remaining: ahead.part(until.max(from), limit.min(to).max(until).max(from))?,
            burn_rate: RunsCost::of(Some(rate)),
            ..Amounts::default()
        })
    }

    /// The part of an ended run in a period.
    pub async fn part(
        &mut self,
        books: &mut PriceBooks,
        run: &FinalizedRun,
        period: Interval,
    ) -> Result<Micros, Error> {
        let id = (run.keys.cluster.clone(), run.run.clone());
        let known = self.cut.get(&id);
        if known.is_none_or(|(current, _)| *current != run.current) {
            let curve = books.curve(run).await?;
            self.cut.insert(id.clone(), (run.current, curve));
        }
        let curve = self.cut.get(&id).and_then(|(_, curve)| curve.as_ref());
        // An amount beyond 64 bits has no final cost.
        Ok(run.part(curve, period).unwrap_or_default())
    }

    /// Removes ended runs that no period cuts any more.
    pub fn retain_cut(&mut self, is_used: impl Fn(&RunId) -> bool) {
        self.cut.retain(|id, _| is_used(id));
    }
}

impl OpenCost {
    fn new(book: &PriceBook, label: &str, run: &OpenRun, now: i64) -> Self {
        let start = seconds(run.job.start_time.as_ref()).unwrap_or(now);
        let limit = costing::limit_end(&run.job, start).unwrap_or(now);
        let horizon = limit.max(now + HORIZON_SECONDS).max(start);
        let mut job = run.job.clone();
        job.suspended_seconds = 0;
        let ahead = |until| costing::curve(book, &run.history, &job, until).ok();
        let (horizon, ahead) = match ahead(horizon) {
            Some(curve) => (horizon, Some(curve)),
            // A price is missing in the future. What is known until now counts, and is computed again next time.
            None => (now, ahead(now.max(start))),
        };
        Self {
            history: run.history.clone(),
            price_book: label.to_owned(),
            horizon,
            ahead,
        }
    }
}
