//! Schedules: the instants at which a rule fires by itself.
//!
//! A schedule is five fields of crontab in a time zone. When the clock is put forward, a fixed time within the skipped hour comes right after
//! it; when it is put back, a fixed time within the repeated hour comes once. Schedules with a wildcard or a step in minutes or hours follow the
//! clock through both.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, LocalResult, NaiveDateTime, Offset as _, TimeDelta, TimeZone as _, Utc};
use chrono_tz::Tz;
use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use sha2::{Digest as _, Sha256};

/// An instant that is noticed later than this was missed. Longer than a restart takes.
const MISSED_AFTER: TimeDelta = TimeDelta::seconds(60);
/// At least as long as any change of a clock.
const LONGEST_CHANGE: TimeDelta = TimeDelta::hours(3);
/// Instants that are made up for after a stop.
const MAX_MISSED: usize = 24;

/// When a rule fires.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Asked about the zone's clock without its changes, which [`Schedule::instants`] knows.
    cron: Cron,
    /// Whether a wildcard or a step is in the minutes or hours.
    is_interval: bool,
    zone: Tz,
    missed: MissedInstants,
    /// How long after its instants the rule fires.
    delay: TimeDelta,
}

/// What becomes of instants at which no service ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissedInstants {
    /// They fire nothing.
    #[default]
    Skip,
    /// The latest one fires.
    Once,
    /// The latest ones fire, one by one.
    All,
}

impl MissedInstants {
    /// The word in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Once => "once",
            Self::All => "all",
        }
    }
}

/// A word that is none of them.
#[derive(Debug, thiserror::Error)]
#[error("skip, once or all")]
pub struct UnknownMissed;

impl FromStr for MissedInstants {
    type Err = UnknownMissed;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Skip, Self::Once, Self::All]
            .into_iter()
            .find(|missed| missed.as_str() == text)
            .ok_or(UnknownMissed)
    }
}

/// Why a text is no schedule.
#[derive(Debug, thiserror::Error)]
pub enum InvalidSchedule {
    /// Not the five fields.
    #[error("five fields as in a crontab, such as \"0 2 * * *\": {0}")]
    Fields(String),
    /// It has no instant.
    #[error("there is no such time")]
    Never,
}

impl Schedule {
    /// A schedule.
    ///
    /// # Errors
    /// If the text is no five fields, or no time fits them.
    pub fn new(
        text: &str,
        zone: Tz,
        missed: MissedInstants,
        now: DateTime<Utc>,
    ) -> Result<Self, InvalidSchedule> {
        let parser = CronParser::builder()
            .seconds(Seconds::Disallowed)
            .year(Year::Disallowed)
            .build();
        let cron = parser.parse(text);
        let cron = cron.map_err(|error| InvalidSchedule::Fields(error.to_string()))?;
        let mut times = text.split_whitespace().take(2);
        let is_interval = times.any(|field| field.contains(['*', '/']));
        let schedule = Self {
            cron,
            is_interval,
            zone,
            missed,
            delay: TimeDelta::zero(),
        };
        match schedule.next(now) {
            Some(_) => Ok(schedule),
            None => Err(InvalidSchedule::Never),
        }
    }

    /// The schedule with a delay from 0 to `jitter` seconds, so that rules with the same instants do not fire at once. It depends on the rule
    /// alone: replicas agree, and restarts change nothing.
    #[must_use]
    pub fn with_jitter(self, jitter: u32, rule: &str) -> Self {
        let digest = Sha256::digest(rule.as_bytes());
        let random = u64::from(u32::from_be_bytes([
            digest[0], digest[1], digest[2], digest[3],
        ]));
        let seconds = (random * (u64::from(jitter) + 1)) >> 32;
        Self {
            delay: TimeDelta::seconds(seconds.cast_signed()),
            ..self
        }
    }

    /// When the rule fires next.
    pub fn next_firing(&self, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
        self.next(after - self.delay).map(|at| at + self.delay)
    }

    /// The first instant after a time.
    pub fn next(&self, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let offset = |at: DateTime<Utc>| self.local(at).offset().fix();
        let is_near_change = offset(after - LONGEST_CHANGE) != offset(after + LONGEST_CHANGE);
        let mut clock = self.local(after).naive_local();
        if is_near_change {
            clock -= LONGEST_CHANGE;
        }
        let mut next: Option<DateTime<Utc>> = None;
        loop {
            let found = self.cron.find_next_occurrence(&clock.and_utc(), false);
            clock = found.ok()?.naive_utc();
            let instants = self.instants(clock);
            next = next
                .into_iter()
                .chain(instants.into_iter().flatten().filter(|at| *at > after))
                .min();
            // What the clock shows later comes later, but for the repeated hour.
            if next.is_some_and(|next| instants[0].is_some_and(|first| first >= next)) {
                return next;
            }
        }
    }

    /// The instants at which the clock shows a time, as far as they count.
    fn instants(&self, clock: NaiveDateTime) -> [Option<DateTime<Utc>>; 2] {
        let instant = |at: DateTime<Tz>| Some(at.with_timezone(&Utc));
        match self.zone.from_local_datetime(&clock) {
            LocalResult::Single(at) => [instant(at), None],
            LocalResult::Ambiguous(first, second) => match self.is_interval {
                true => [instant(first), instant(second)],
                false => [instant(first), None],
            },
            LocalResult::None if self.is_interval => [None; 2],
            LocalResult::None => {
                let minutes = (1..).map(|minutes| clock + TimeDelta::minutes(minutes));
                let mut shown =
                    minutes.filter_map(|at| self.zone.from_local_datetime(&at).earliest());
                [shown.next().and_then(instant), None]
            }
        }
    }

    /// When the rule fires after a time.
    pub fn upcoming(&self, after: DateTime<Utc>) -> impl Iterator<Item = DateTime<Utc>> {
        std::iter::successors(self.next_firing(after), |at| self.next_firing(*at))
    }

    /// The instants that fire now, in their order. `last` is the latest one that was handled.
    pub fn due(&self, last: DateTime<Utc>, now: DateTime<Utc>) -> Vec<DateTime<Utc>> {
        let now = now - self.delay;
        let (since, limit) = match self.missed {
            MissedInstants::Skip => (last.max(now - MISSED_AFTER), MAX_MISSED),
            MissedInstants::Once => (last, 1),
            MissedInstants::All => (last, MAX_MISSED),
        };
        // A clock that was ahead when the last one was handled.
        let mut since = since.min(now);
        let mut due = Vec::new();
        while let Some(at) = self.next(since).filter(|at| *at <= now) {
            if due.len() == limit {
                due.remove(0);
            }
            due.push(at);
            since = at;
        }
        due
    }

    /// An instant as the clock of the zone shows it.
    pub fn local(&self, at: DateTime<Utc>) -> DateTime<Tz> {
        at.with_timezone(&self.zone)
    }

    /// The fields as they were written.
    pub fn fields(&self) -> &str {
        self.cron.as_str()
    }

    /// Its time zone.
    pub const fn zone(&self) -> Tz {
        self.zone
    }

    /// How long after its instants the rule fires.
    pub const fn delay(&self) -> TimeDelta {
        self.delay
    }

    /// What becomes of missed instants.
    pub const fn missed(&self) -> MissedInstants {
        self.missed
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.fields(), self.zone)
    }
}

#[cfg(test)]
mod tests;
