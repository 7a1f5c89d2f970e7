//! Reads the keys of one budget.

use std::collections::BTreeSet;

use chrono_tz::Tz;
use toml::{Spanned, Value};

use super::BudgetTable;
use crate::budgets::Counts;
use crate::domain::calendar_period::Periodicity;
use crate::domain::{Interval, Micros};
use crate::price_book::value::Faults;

/// Thresholds of a budget that names none, in percent.
const DEFAULT_THRESHOLDS: [u32; 3] = [50, 80, 100];
/// Largest threshold in percent.
const MAX_PERCENT: u32 = 1000;
/// Longest rolling period in days.
const MAX_ROLLING_DAYS: i64 = 3660;
/// Longest name.
const MAX_NAME_BYTES: usize = 100;

/// The keys of one budget. Those that were read are taken out, so that the others are unknown ones.
pub(super) struct Keys<'f, 't> {
    /// The budget in faults.
    pub budget: String,
    /// Position of the first fault of this budget.
    pub first_fault: usize,
    pub table: BudgetTable,
    pub faults: &'f mut Faults<'t>,
}

impl Keys<'_, '_> {
    pub fn key(&self, key: &str) -> String {
        format!("budget {}: {key}", self.budget)
    }

    pub fn add_at(&mut self, place: std::ops::Range<usize>, key: &str, problem: impl Into<String>) {
        let key = self.key(key);
        self.faults.add(place, &key, problem);
    }

    pub fn has_fault(&self, key: &str) -> bool {
        let key = self.key(key);
        let found = &self.faults.found[self.first_fault..];
        found.iter().any(|fault| fault.key == key)
    }

    pub fn take(&mut self, key: &str) -> Option<Spanned<Value>> {
        self.table.remove(key)
    }

    /// A value that `read` accepts, or a fault.
    fn read<T>(
        &mut self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.take(key)?;
        let key = self.key(key);
        self.faults
            .value(&key, &value, expected, |value, _| read(value))
    }

    pub fn text(&mut self, key: &str) -> Option<(String, std::ops::Range<usize>)> {
        let place = self.table.get(key)?.span();
        let text = self.read(key, "a text", |value| value.as_str().map(str::to_owned));
        text.map(|text| (text, place))
    }

    pub fn name(&mut self) -> Option<String> {
        let expected = "a name of letters, digits, '-', '_' and '.'";
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        self.read("name", expected, |value| {
            let name = value.as_str()?;
            let is_name =
                (1..=MAX_NAME_BYTES).contains(&name.len()) && name.chars().all(is_allowed);
            is_name.then(|| name.to_owned())
        })
    }

    pub fn zone(&mut self) -> Tz {
        let zone = self.read(
            "timezone",
            "a time zone such as \"Europe/Berlin\"",
            |value| value.as_str()?.parse().ok(),
        );
        zone.unwrap_or(Tz::UTC)
    }

    pub fn periodicity(&mut self, zone: Tz) -> Option<Periodicity> {
        let expected =
            "\"month\", \"quarter\", \"year\" or a rolling period such as \"rolling 30d\"";
        let place = self.table.get("period").map(Spanned::span);
        let period = self.read("period", expected, |value| match value.as_str()? {
            "month" => Some(Periodicity::Month),
            "quarter" => Some(Periodicity::Quarter),
            "year" => Some(Periodicity::Year),
            text => rolling(text),
        });
        let moment = |value: &Value| {
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Datetime(time) => time.to_string(),
                _ => return None,
            };
            let time = mesh_runtime::time_bound::rfc3339_or_date(&text, &zone);
            time.ok().map(|time| time.timestamp())
        };
        let expected = "a date, or a time with offset";
        let bounds: Option<Interval> = self
            .table
            .contains_key("from")
            .then(|| {
                (
                    self.read("from", expected, moment),
                    self.table.get("to").map(Spanned::span),
                )
            })
            .and_then(|(from, place)| {
                let to = self.read("to", expected, moment);
                match (from, to, place) {
                    (Some(from), Some(to), Some(place)) if to <= from => {
                        self.add_at(place, "to", "is not after `from`");
                        None
                    }
                    (from, to, _) => from.zip(to),
                }
            });
        match (period, bounds, place) {
            (Some(_), Some(_), Some(place)) => {
                self.add_at(place, "period", "cannot be combined with `from` and `to`");
                None
            }
            (period, bounds, _) => period.or(bounds.map(Periodicity::Once)),
        }
    }

    pub fn amount(&mut self) -> Option<Micros> {
        let value = self.take("amount")?;
        let key = self.key("amount");
        let expected = "an amount above 0 with at most six decimals, such as \"3000.00\"";
        let amount = self.faults.amount(&key, &value, expected)?;
        if amount == Micros::ZERO {
            self.add_at(value.span(), "amount", format!("0 is not {expected}"));
            return None;
        }
        Some(amount)
    }

    pub fn counts(&mut self) -> Counts {
        let all = [Counts::Settled, Counts::InFlight, Counts::Committed];
        let expected = "\"settled\", \"in_flight\" or \"committed\"";
        let counts = self.read("counts", expected, |value| {
            let text = value.as_str()?;
            all.into_iter().find(|counts| counts.as_str() == text)
        });
        counts.unwrap_or_default()
    }

    pub fn thresholds(&mut self) -> Vec<u32> {
        let expected = "an array of percentages from 1 to 1000";
        let thresholds = self.read("thresholds", expected, |value| {
            let percentages = value.as_array()?.iter().map(|value| percent(value, 1));
            percentages.collect::<Option<BTreeSet<u32>>>()
        });
        match thresholds {
            Some(thresholds) => thresholds.into_iter().collect(),
            None => DEFAULT_THRESHOLDS.into(),
        }
    }

    pub fn forecast(&mut self) -> u32 {
        let expected = "a percentage from 1 to 1000, or 0 for none";
        let forecast = self.read("forecast", expected, |value| percent(value, 0));
        forecast.unwrap_or_default()
    }

    /// Whether owners, and whether coordinators may see the budget.
    pub fn notify(&mut self) -> (bool, bool) {
        let expected = "an array of \"owner\" and \"coordinators\"";
        let receivers = self.read("notify", expected, |value| {
            let names: Option<BTreeSet<&str>> =
                value.as_array()?.iter().map(Value::as_str).collect();
            let names = names?;
            let is_known = |name: &&str| ["owner", "coordinators"].contains(name);
            names
                .iter()
                .all(is_known)
                .then(|| (names.contains("owner"), names.contains("coordinators")))
        });
        receivers.unwrap_or((true, true))
    }
}

fn percent(value: &Value, min: u32) -> Option<u32> {
    let percent = u32::try_from(value.as_integer()?).ok()?;
    (min..=MAX_PERCENT).contains(&percent).then_some(percent)
}

/// `rolling 30d`, `rolling 12h`.
fn rolling(text: &str) -> Option<Periodicity> {
    let length = text.strip_prefix("rolling ")?.trim();
    let (number, hours) = match (length.strip_suffix('d'), length.strip_suffix('h')) {
        (Some(days), _) => (days, 24),
        (None, hours) => (hours?, 1),
    };
    let seconds = number.parse::<u32>().ok().map(i64::from)? * hours * 3600;
    (1..=MAX_ROLLING_DAYS * 86_400)
        .contains(&seconds)
        .then_some(Periodicity::Rolling(seconds))
}
