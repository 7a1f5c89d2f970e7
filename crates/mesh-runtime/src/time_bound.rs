//! The parser of times that people write: in queries, on the command line, in `mesh.toml`. Price books and budgets take only RFC 3339 or a
//! date: `rfc3339_or_date`.
//!
//! | form | meaning |
//! | --- | --- |
//! | `2026-11-22T10:00:00Z`, `2026-11-22T10:00:00+01:00` | RFC 3339 |
//! | `2026-11-22T10:00:00`, `2026-11-22T10:00`, `2026-11-22 10:00` | that time in the caller's time zone |
//! | `2026-11-22` | the first moment of that day in the caller's time zone |
//! | `today`, `yesterday`, `now` | the first moment of that day; the present moment |
//! | `30m`, `2h`, `7days`, `now-2hours` | that long ago (the last form as in `sacct --starttime`) |
//!
//! The caller's time zone is that of the `now` it passes: local time in `smesh`, UTC in services and files. Pure.

use std::time::Duration;

use chrono::offset::LocalResult;
use chrono::{DateTime, Days, NaiveDate, NaiveDateTime, SecondsFormat, TimeDelta, TimeZone, Utc};
use serde::{Deserialize, Deserializer, Serialize};

/// A bound of time: a moment, or a duration before now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum TimeBound {
    /// This moment.
    At(DateTime<Utc>),
    /// This long ago.
    Ago(Duration),
}

/// Why a text is not a time; lists the allowed forms.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseTimeError {
    /// It has none of the known forms.
    #[error(
        "{text:?} is not a time; allowed: 2026-11-22T10:00:00Z, 2026-11-22T10:00, 2026-11-22, yesterday, or a duration before now such as 30m, 2h, 7days"
    )]
    Unknown {
        /// The text.
        text: String,
    },
    /// It is relative where only a date or time makes sense.
    #[error("{text:?} is not a date or time; allowed: 2026-11-22T10:00:00Z or 2026-11-22")]
    NotAbsolute {
        /// The text.
        text: String,
    },
    /// The clocks of this time zone showed it twice.
    #[error(
        "{text:?} occurs twice in this time zone (clocks were set back); add an offset, such as Z"
    )]
    Repeated {
        /// The text.
        text: String,
    },
    /// The clocks of this time zone skipped it.
    #[error(
        "{text:?} does not exist in this time zone (clocks were set forward); add an offset, such as Z"
    )]
    Skipped {
        /// The text.
        text: String,
    },
}

impl TimeBound {
    /// Parses any of the forms above.
    ///
    /// # Errors
    /// If the text is not a time, or one that the time zone of `now` skipped.
    pub fn parse<Z: TimeZone>(text: &str, now: &DateTime<Z>) -> Result<Self, ParseTimeError> {
        let today = now.date_naive();
        match text {
            "now" => return Ok(Self::Ago(Duration::ZERO)),
            "today" => return midnight(text, today, &now.timezone()).map(Self::At),
            "yesterday" => {
                let day = today.checked_sub_days(Days::new(1)).unwrap_or(today);
                return midnight(text, day, &now.timezone()).map(Self::At);
            }
            _ => {}
        }
        match rfc3339_or_date(text, &now.timezone()) {
            Err(ParseTimeError::NotAbsolute { text }) => local_or_ago(&text, &now.timezone()),
            time => time.map(Self::At),
        }
    }

    /// The moment, given the present time.
    pub fn resolve<Z: TimeZone>(self, now: &DateTime<Z>) -> DateTime<Utc> {
        match self {
            Self::At(time) => time,
            Self::Ago(ago) => TimeDelta::from_std(ago)
                .ok()
                .and_then(|ago| now.to_utc().checked_sub_signed(ago))
                .unwrap_or(DateTime::UNIX_EPOCH),
        }
    }
}

/// Parses a time with its offset, or a date, meaning its first moment in `zone`. For files, whose meaning must not depend on the reader.
///
/// # Errors
/// If it is neither.
pub fn rfc3339_or_date<Z: TimeZone>(text: &str, zone: &Z) -> Result<DateTime<Utc>, ParseTimeError> {
    // The plus sign of an offset arrives as a space from a caller who did not encode it.
    let rfc3339 = DateTime::parse_from_rfc3339(text)
        .or_else(|_| DateTime::parse_from_rfc3339(&text.replace(' ', "+")));
    if let Ok(time) = rfc3339 {
        return Ok(time.to_utc());
    }
    let day = text.parse().map_err(|_| ParseTimeError::NotAbsolute {
        text: text.to_owned(),
    })?;
    midnight(text, day, zone)
}

/// Parses a time as a program printed it, with its offset or, without one, in `zone`. Never guesses: a time that occurs twice is refused.
///
/// # Errors
/// If it is neither, or is no single moment of `zone`.
pub fn printed<Z: TimeZone>(text: &str, zone: &Z) -> Result<DateTime<Utc>, ParseTimeError> {
    if let Ok(time) = DateTime::parse_from_rfc3339(text) {
        return Ok(time.to_utc());
    }
    let text = || text.to_owned();
    let local = NaiveDateTime::parse_from_str(&text(), "%Y-%m-%dT%H:%M:%S")
        .map_err(|_| ParseTimeError::NotAbsolute { text: text() })?;
    match local.and_local_timezone(zone.clone()) {
        LocalResult::Single(time) => Ok(time.to_utc()),
        LocalResult::Ambiguous(..) => Err(ParseTimeError::Repeated { text: text() }),
        LocalResult::None => Err(ParseTimeError::Skipped { text: text() }),
    }
}

fn local_or_ago<Z: TimeZone>(text: &str, zone: &Z) -> Result<TimeBound, ParseTimeError> {
    let forms = ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%dT%H:%M"];
    let local = forms
        .iter()
        .find_map(|form| NaiveDateTime::parse_from_str(&text.replacen(' ', "T", 1), form).ok());
    if let Some(local) = local {
        return in_zone(text, local, zone).map(TimeBound::At);
    }
    let ago = humantime::parse_duration(text.strip_prefix("now-").unwrap_or(text));
    ago.map(TimeBound::Ago)
        .map_err(|_| ParseTimeError::Unknown {
            text: text.to_owned(),
        })
}

fn midnight<Z: TimeZone>(
    text: &str,
    day: NaiveDate,
    zone: &Z,
) -> Result<DateTime<Utc>, ParseTimeError> {
    let begin = day.and_time(chrono::NaiveTime::MIN);
    // Some zones skip midnight when their clocks are set forward: the day begins an hour later.
    in_zone(text, begin, zone).or_else(|_| in_zone(text, begin + TimeDelta::hours(1), zone))
}

/// A time that occurs twice, as clocks are set back, means the first occurrence.
fn in_zone<Z: TimeZone>(
    text: &str,
    local: NaiveDateTime,
    zone: &Z,
) -> Result<DateTime<Utc>, ParseTimeError> {
    let time = local.and_local_timezone(zone.clone()).earliest();
    time.map(|time| time.to_utc())
        .ok_or_else(|| ParseTimeError::Skipped {
            text: text.to_owned(),
        })
}

/// Deserializes an optional bound of a request and resolves it against the clock; dates are days in UTC.
///
/// # Errors
/// If a value is present that is not a time.
pub fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<DateTime<Utc>>, D::Error> {
    let bound = Option::<TimeBound>::deserialize(deserializer)?;
    Ok(bound.map(|bound| bound.resolve(&Utc::now())))
}

impl TryFrom<String> for TimeBound {
    type Error = ParseTimeError;

    fn try_from(text: String) -> Result<Self, ParseTimeError> {
        Self::parse(&text, &Utc::now())
    }
}

impl From<TimeBound> for String {
    fn from(bound: TimeBound) -> Self {
        match bound {
            TimeBound::At(time) => time.to_rfc3339_opts(SecondsFormat::AutoSi, true),
            TimeBound::Ago(ago) => humantime::format_duration(ago).to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::FixedOffset;
    use proptest::prelude::*;

    use super::*;

    /// 10:30 on 22 November 2026 in a zone one hour ahead of UTC.
    fn now() -> DateTime<FixedOffset> {
        DateTime::parse_from_rfc3339("2026-11-22T10:30:00+01:00").unwrap()
    }

    fn check(text: &str, expected: &str) {
        let read = TimeBound::parse(text, &now()).map(|bound| bound.resolve(&now()));
        let read = read.map(|time| time.to_rfc3339_opts(SecondsFormat::AutoSi, true));
        assert_eq!(read.as_deref(), Ok(expected), "{text}");
    }

    #[test]
    fn every_documented_form_is_read() {
        check("2026-11-22T10:00:00Z", "2026-11-22T10:00:00Z");
        check("2026-11-22T10:00:00+02:00", "2026-11-22T08:00:00Z");
        check("2026-11-22T10:00:00 02:00", "2026-11-22T08:00:00Z");
        check("2026-11-22T10:00:00", "2026-11-22T09:00:00Z");
        check("2026-11-22T10:00", "2026-11-22T09:00:00Z");
        check("2026-11-22 10:00", "2026-11-22T09:00:00Z");
        check("2026-11-01", "2026-10-31T23:00:00Z");
        check("now", "2026-11-22T09:30:00Z");
        check("today", "2026-11-21T23:00:00Z");
        check("yesterday", "2026-11-20T23:00:00Z");
        check("2h", "2026-11-22T07:30:00Z");
        check("7days", "2026-11-15T09:30:00Z");
        check("now-2hours", "2026-11-22T07:30:00Z");
        check("999999999years", "1970-01-01T00:00:00Z");
    }

    #[test]
    fn invalid_times_are_refused_with_the_allowed_forms() {
        for text in [
            "",
            "tomorrow",
            "2026-13-01",
            "10",
            "now-",
            "-2h",
            "2026-11-22T",
        ] {
            let error = TimeBound::parse(text, &now()).unwrap_err();
            assert!(
                error.to_string().contains("2026-11-22T10:00:00Z"),
                "{error}"
            );
        }
        let error = rfc3339_or_date("2h", &Utc).unwrap_err();
        assert!(matches!(error, ParseTimeError::NotAbsolute { .. }));
    }

    #[test]
    fn printed_times_are_whole_and_never_guessed() {
        let zone = now().timezone();
        for (text, expected) in [
            ("2026-11-22T10:00:00", Some("2026-11-22T09:00:00Z")),
            ("2026-11-22T10:00:00+05:00", Some("2026-11-22T05:00:00Z")),
            ("2026-11-22", None),
            ("2026-11-22T10:00", None),
            ("2026-02-30T10:00:00", None),
            ("2h", None),
        ] {
            let read = printed(text, &zone).ok();
            let read = read.map(|time| time.to_rfc3339_opts(SecondsFormat::AutoSi, true));
            assert_eq!(read.as_deref(), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn written_values_are_read_back(secs in 0_i64..4_000_000_000, ago in 0_u64..4_000_000_000) {
            let at = TimeBound::At(DateTime::from_timestamp(secs, 0).unwrap());
            let ago = TimeBound::Ago(Duration::from_secs(ago));
            for bound in [at, ago] {
                let text = String::from(bound);
                prop_assert_eq!(TimeBound::parse(&text, &now()), Ok(bound));
            }
        }

        #[test]
        fn any_text_is_survived(text in ".{0,40}") {
            drop(TimeBound::parse(&text, &now()));
        }
    }
}
