//! Parses single values: amounts of money, dates, memory, fractions, lists of names.

use std::collections::BTreeSet;
use std::ops::Range;

use chrono::Utc;
use num_traits::{ToPrimitive as _, Zero as _};
use slurm_types::HostList;
use toml::{Spanned, Value};

use super::Fault;
use crate::domain::money::{Exact, decimal, integer};
use crate::domain::{Micros, money};

/// Collects the faults of a text.
pub(crate) struct Faults<'a> {
    text: &'a str,
    pub found: Vec<Fault>,
}

impl<'a> Faults<'a> {
    pub const fn new(text: &'a str) -> Self {
        Self {
            text,
            found: Vec::new(),
        }
    }

    /// Line number of a position in the text, from 1.
    pub fn line(&self, place: &Range<usize>) -> usize {
        self.text
            .bytes()
            .take(place.start)
            .filter(|byte| *byte == b'\n')
            .count()
            + 1
    }

    pub fn add(&mut self, place: Range<usize>, key: &str, problem: impl Into<String>) {
        let line = self.line(&place);
        self.found.push(Fault {
            line,
            key: key.to_owned(),
            problem: problem.into(),
        });
    }

    /// Parses a value with `reader`, or records a fault.
    pub fn value<T>(
        &mut self,
        key: &str,
        value: &Spanned<Value>,
        expected: &str,
        reader: impl FnOnce(&Value, &str) -> Option<T>,
    ) -> Option<T> {
        let raw = self.text.get(value.span()).unwrap_or_default();
        let read = reader(value.get_ref(), raw);
        if read.is_none() {
            self.add(value.span(), key, format!("{raw} is not {expected}"));
        }
        read
    }

    /// An amount per hour.
    pub fn rate(&mut self, key: &str, value: &Spanned<Value>) -> Option<Micros> {
        let expected = "an amount per hour with at most six decimals, such as \"0.68\"";
        self.amount(key, value, expected)
    }

    /// Cost of a job.
    pub fn cost(&mut self, key: &str, value: &Spanned<Value>) -> Option<Micros> {
        let expected = "an amount with at most six decimals, such as \"0.68\", nor \"none\"";
        self.amount(key, value, expected)
    }

    /// An amount of money. A number is parsed from its text, because `0.1` has no exact binary form.
    pub fn amount(&mut self, key: &str, value: &Spanned<Value>, expected: &str) -> Option<Micros> {
        self.value(key, value, expected, |value, raw| {
            let micros = number(value, raw)? * integer(1_000_000);
            micros
                .is_integer()
                .then(|| micros.to_integer().to_i64().map(Micros))?
        })
    }

    /// A weight: `"1/10"`, `"0.1"` or `0.1`.
    pub fn weight(&mut self, key: &str, value: Option<&Spanned<Value>>) -> Exact {
        let Some(value) = value else {
            return Exact::zero();
        };
        let weight = self.value(
            key,
            value,
            "a weight such as 0.1 or \"1/10\"",
            |value, raw| match value {
                Value::String(text) => match text.split_once('/') {
                    Some((above, below)) => money::ratio(
                        above.trim().parse::<u32>().ok()?,
                        below.trim().parse::<u32>().ok()?,
                    ),
                    None => decimal(text),
                },
                value => number(value, raw),
            },
        );
        weight.unwrap_or_default()
    }

    pub fn count(&mut self, key: &str, value: &Spanned<Value>) -> Option<u64> {
        self.value(key, value, "a whole number", |value, _| {
            value.as_integer()?.try_into().ok()
        })
    }

    /// Memory in MiB: a number of MiB, or a text as in Slurm's tools (`"64G"`).
    pub fn memory(&mut self, key: &str, value: &Spanned<Value>) -> Option<u64> {
        self.value(
            key,
            value,
            "an amount of memory: MiB, or \"64G\"",
            |value, _| match value {
                Value::Integer(mib) => u64::try_from(*mib).ok(),
                Value::String(text) => slurm_types::parse_mem_mib(text),
                _ => None,
            },
        )
    }

    /// A moment: an offset date-time, or a date, meaning its first second in UTC.
    pub fn time(&mut self, key: &str, value: Option<&Spanned<Value>>) -> Option<i64> {
        self.value(
            key,
            value?,
            "a date, or a time with offset such as 2026-07-01T00:00:00+02:00",
            |value, _| match value {
                Value::String(text) => moment(text),
                Value::Datetime(time) => moment(&time.to_string()),
                _ => None,
            },
        )
    }

    /// Node names: a host list, or an array of host lists.
    pub fn hosts(&mut self, key: &str, value: &Spanned<Value>) -> BTreeSet<String> {
        let names = self.value(key, value, "a host list such as \"n[1-8]\"", |value, _| {
            let mut names = BTreeSet::new();
            for text in texts(value)? {
                names.extend(HostList::expand(text).ok()?);
            }
            (!names.is_empty()).then_some(names)
        });
        names.unwrap_or_default()
    }

    /// Names: a single name, or an array of names.
    pub fn names(&mut self, key: &str, value: &Spanned<Value>) -> BTreeSet<String> {
        let names = self.value(key, value, "a name or an array of names", |value, _| {
            let names: BTreeSet<String> = texts(value)?.into_iter().map(str::to_owned).collect();
            (!names.is_empty() && names.iter().all(|name| !name.is_empty())).then_some(names)
        });
        names.unwrap_or_default()
    }
}

fn number(value: &Value, raw: &str) -> Option<Exact> {
    match value {
        Value::String(text) => decimal(text),
        Value::Integer(whole) => (*whole >= 0).then(|| integer(*whole)),
        Value::Float(_) => decimal(raw),
        _ => None,
    }
}

fn texts(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::String(text) => Some(vec![text]),
        Value::Array(values) => values.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

fn moment(text: &str) -> Option<i64> {
    let time = mesh_runtime::time_bound::rfc3339_or_date(text, &Utc);
    time.ok().map(|time| time.timestamp())
}
