//! When `cost.accrued` is due for a running job. Pure: the times follow from the run's facts, the price book and the configuration alone.
//!
//! An event is due when the cost passes an amount of `accrue_at`, at multiples of `accrue_every` counted from the run's start, and when
//! the burn rate changes by more than a fifth since the last one (a price step or a resize; suspensions do not count). Its time is that
//! second, never the time at which somebody looked. [`publisher`] evaluates running jobs; the handler of the end publishes what is still due.

mod event;
pub(crate) mod handled;
pub(crate) mod publisher;
mod run;

use std::collections::BTreeMap;

use crate::domain::{Micros, PriceError};

pub use event::{AccrualFacts, event};
pub use run::{of_ended, of_running};

/// Most events of a run in a day (UTC, by their times).
const MAX_EVENTS_PER_DAY: u32 = 24;
const DAY_SECONDS: i64 = 24 * 3600;

/// When events are due.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccrualRules {
    /// Amounts whose passing is published, ascending.
    pub at: Vec<Micros>,
    /// Seconds between events, counted from the run's start. `None`: only the others.
    pub every: Option<i64>,
}

impl AccrualRules {
    /// True if no event is ever due.
    pub fn is_off(&self) -> bool {
        self.at.is_empty() && self.every.is_none()
    }

    /// True if a run of this length and cost may have events. Its price and allocation never changed.
    pub fn concerns(&self, seconds: u64, cost: Micros) -> bool {
        self.at.first().is_some_and(|first| *first <= cost)
            || self
                .every
                .is_some_and(|every| seconds >= every.unsigned_abs())
    }
}

/// Why an event is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccrualReason {
    /// The cost has passed an amount, the highest one if it passed several in one second.
    Threshold(Micros),
    /// The burn rate has changed.
    BurnRate,
    /// A multiple of the configured interval.
    Interval,
}

impl AccrualReason {
    /// Name in events.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Threshold(_) => "threshold",
            Self::BurnRate => "burn_rate",
            Self::Interval => "interval",
        }
    }
}

/// A moment at which an event is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccrualPoint {
    /// Unix seconds.
    pub as_of: i64,
    /// Why.
    pub reason: AccrualReason,
    /// The reason if the amount was published already: a late fact moved it to this second.
    pub otherwise: Option<AccrualReason>,
    /// Cost until then.
    pub accrued: Micros,
    /// Cost per hour from then on.
    pub burn_rate: Micros,
}

/// What is known of a second of the run.
#[derive(Default)]
struct DueReasons {
    threshold: Option<Micros>,
    burn_rate: Option<Micros>,
    is_interval: bool,
}

/// The ticks of a run in `(start, until]`, by time, at most one for each second. `cost` is its cost since the start, which never
/// decreases; `burn_rates` are the rates per hour of its allocation and the times from which they apply. Of two results the one with the
/// earlier `until` is the beginning of the other.
///
/// # Errors
/// If the cost is not known.
pub fn ticks(
    rules: &AccrualRules,
    (start, until): (i64, i64),
    cost: impl Fn(i64) -> Result<Micros, PriceError>,
    burn_rates: &[(i64, Micros)],
) -> Result<Vec<AccrualPoint>, PriceError> {
    if rules.is_off() || until <= start {
        return Ok(Vec::new());
    }
    let mut moments: BTreeMap<i64, DueReasons> = BTreeMap::new();
    let total = cost(until)?;
    let mut from = start;
    for threshold in rules.at.iter().filter(|threshold| **threshold <= total) {
        let second = first_second(from, until, |second| Ok(cost(second)? >= *threshold))?;
        moments.entry(second).or_default().threshold = Some(*threshold);
        // The next amount is not passed before this one. It may be in the same second.
        from = (second - 1).max(start);
    }
    let mut burn_rate = Micros::ZERO;
    for (at, rate) in burn_rates.iter().filter(|(at, _)| *at <= until) {
        if *at <= start {
            burn_rate = *rate;
        } else {
            moments.entry(*at).or_default().burn_rate = Some(*rate);
        }
    }
    if let Some(every) = rules.every {
        let mut at = start.saturating_add(every);
        while at <= until {
            moments.entry(at).or_default().is_interval = true;
            at = at.saturating_add(every);
        }
    }
    let mut published_rate = burn_rate;
    let mut found = Vec::new();
    for (as_of, moment) in moments {
        burn_rate = moment.burn_rate.unwrap_or(burn_rate);
        let otherwise = if has_changed(published_rate, burn_rate) {
            Some(AccrualReason::BurnRate)
        } else {
            moment.is_interval.then_some(AccrualReason::Interval)
        };
        let Some(reason) = moment.threshold.map(AccrualReason::Threshold).or(otherwise) else {
            continue;
        };
        published_rate = burn_rate;
        found.push(AccrualPoint {
            as_of,
            reason,
            otherwise,
            accrued: cost(as_of)?,
            burn_rate,
        });
    }
    Ok(found)
}

/// The first second after `from` at which something is true that stays true. It is true at `until`.
fn first_second(
    from: i64,
    until: i64,
    is_true: impl Fn(i64) -> Result<bool, PriceError>,
) -> Result<i64, PriceError> {
    let (mut before, mut after) = (from, until);
    while before + 1 < after {
        let middle = before + (after - before) / 2;
        if is_true(middle)? {
            after = middle;
        } else {
            before = middle;
        }
    }
    Ok(after)
}

/// True if the rates differ by more than a fifth.
fn has_changed(before: Micros, now: Micros) -> bool {
    let difference = (i128::from(now.0) - i128::from(before.0)).abs();
    difference * 5 > i128::from(before.0)
}

/// What is published of a run. The state after some ticks does not depend on how often they were evaluated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccrualState {
    /// Time of the newest tick, Unix seconds. 0 before the first one.
    pub until: i64,
    /// Highest amount that was passed.
    pub threshold: Micros,
    /// Day of the newest tick, in days since 1970.
    pub day: i64,
    /// Number of events of that day.
    pub day_events: u32,
}

impl AccrualState {
    /// Takes in a tick. Returns it as its event is to be published.
    ///
    /// A late fact may move the time at which an amount was passed. Each amount is published once all the same, also if its time is before
    /// other events by now.
    pub fn take(&mut self, tick: &AccrualPoint) -> Option<AccrualPoint> {
        let is_new = tick.as_of > self.until;
        let reason = match tick.reason {
            AccrualReason::Threshold(threshold) if threshold > self.threshold => Some(tick.reason),
            AccrualReason::Threshold(_) => tick.otherwise.filter(|_| is_new),
            AccrualReason::BurnRate | AccrualReason::Interval => is_new.then_some(tick.reason),
        }?;
        let threshold = match reason {
            AccrualReason::Threshold(threshold) => threshold,
            AccrualReason::BurnRate | AccrualReason::Interval => Micros::ZERO,
        };
        self.note(tick.as_of, threshold);
        let is_within_cap = day_of(tick.as_of) < self.day || self.day_events <= MAX_EVENTS_PER_DAY;
        is_within_cap.then_some(AccrualPoint { reason, ..*tick })
    }

    /// Takes in a recorded event. `threshold` is 0 if it passed no amount.
    pub fn restore(&mut self, as_of: i64, threshold: Micros) {
        if as_of > self.until || threshold > self.threshold {
            self.note(as_of, threshold);
        }
    }

    /// Notes that an event with this time is published.
    fn note(&mut self, as_of: i64, threshold: Micros) {
        let day = day_of(as_of);
        if day > self.day {
            (self.day, self.day_events) = (day, 0);
        }
        if day == self.day {
            self.day_events = self.day_events.saturating_add(1);
        }
        self.until = self.until.max(as_of);
        self.threshold = self.threshold.max(threshold);
    }
}

const fn day_of(time: i64) -> i64 {
    time.div_euclid(DAY_SECONDS)
}

#[cfg(test)]
mod tests;
