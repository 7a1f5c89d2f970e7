//! Values of filters: as text in a query string, and as a field of a gRPC message.

use std::str::FromStr;

use chrono::{DateTime, Utc};
use mesh_events::{from_timestamp, timestamp};
use mesh_runtime::TimeBound;
use pbjson_types::Timestamp;

use super::InvalidFilter;

/// A filter that may be unset.
pub(super) trait FilterValue: Sized {
    /// Its field in `mesh.ledger.v1.EventFilter`.
    type Message;

    /// Sets it from a query string, or adds to it if it is a list.
    fn read(&mut self, field: &'static str, text: &str) -> Result<(), InvalidFilter>;
    /// Its form in a query string, if it is set.
    fn text(&self) -> Option<String>;
    fn from_message(field: &'static str, value: Self::Message) -> Result<Self, InvalidFilter>;
    fn into_message(self) -> Self::Message;
}

impl FilterValue for Vec<String> {
    type Message = Self;

    fn read(&mut self, _: &'static str, text: &str) -> Result<(), InvalidFilter> {
        self.extend(list(text));
        Ok(())
    }

    fn text(&self) -> Option<String> {
        (!self.is_empty()).then(|| self.join(","))
    }

    fn from_message(_: &'static str, value: Self) -> Result<Self, InvalidFilter> {
        Ok(value)
    }

    fn into_message(self) -> Self {
        self
    }
}

impl FilterValue for Option<String> {
    type Message = String;

    fn read(&mut self, _: &'static str, text: &str) -> Result<(), InvalidFilter> {
        *self = Some(text.to_owned());
        Ok(())
    }

    fn text(&self) -> Option<String> {
        self.clone()
    }

    fn from_message(_: &'static str, value: String) -> Result<Self, InvalidFilter> {
        Ok((!value.is_empty()).then_some(value))
    }

    fn into_message(self) -> String {
        self.unwrap_or_default()
    }
}

/// Numbers: 0 in a message is an unset filter.
macro_rules! number {
    ($number:ty) => {
        impl FilterValue for Option<$number> {
            type Message = $number;

            fn read(&mut self, field: &'static str, text: &str) -> Result<(), InvalidFilter> {
                *self = Some(number(field, text)?);
                Ok(())
            }

            fn text(&self) -> Option<String> {
                self.map(|number| number.to_string())
            }

            fn from_message(_: &'static str, value: $number) -> Result<Self, InvalidFilter> {
                Ok((value > 0).then_some(value))
            }

            fn into_message(self) -> $number {
                self.unwrap_or_default()
            }
        }
    };
}

number!(u32);
number!(u64);

impl FilterValue for Option<TimeBound> {
    type Message = Option<Timestamp>;

    fn read(&mut self, field: &'static str, text: &str) -> Result<(), InvalidFilter> {
        *self = Some(time_bound(field, text)?);
        Ok(())
    }

    fn text(&self) -> Option<String> {
        self.map(String::from)
    }

    fn from_message(field: &'static str, value: Option<Timestamp>) -> Result<Self, InvalidFilter> {
        Ok(time(field, value)?.map(TimeBound::At))
    }

    /// A message cannot express a time relative to now; filters of stored replays have none.
    fn into_message(self) -> Option<Timestamp> {
        match self {
            Some(TimeBound::At(time)) => Some(timestamp(time)),
            Some(TimeBound::Ago(_)) | None => None,
        }
    }
}

/// Splits a comma-separated list.
pub fn list(text: &str) -> impl Iterator<Item = String> {
    text.split(',').map(|word| word.trim().to_owned())
}

/// Parses a number of a query string.
///
/// # Errors
/// If it is none, or out of range.
pub fn number<T: FromStr>(field: &'static str, text: &str) -> Result<T, InvalidFilter> {
    text.parse()
        .map_err(|_| InvalidFilter::new(field, format!("{text:?} is not a whole number from 0")))
}

/// Parses a time of a query string.
///
/// # Errors
/// If it is none.
pub fn time_bound(field: &'static str, text: &str) -> Result<TimeBound, InvalidFilter> {
    TimeBound::parse(text, &Utc::now())
        .map_err(|error| InvalidFilter::new(field, error.to_string()))
}

/// Converts a time of a message.
///
/// # Errors
/// If it is out of range.
pub fn time(
    field: &'static str,
    time: Option<Timestamp>,
) -> Result<Option<DateTime<Utc>>, InvalidFilter> {
    match time.as_ref().map(from_timestamp) {
        None => Ok(None),
        Some(Some(time)) => Ok(Some(time)),
        Some(None) => Err(InvalidFilter::new(
            field,
            "out of range; allowed: a time a calendar can show",
        )),
    }
}
