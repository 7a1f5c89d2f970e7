//! Points in time as Slurm records them: whole seconds since 1970, UTC.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A point in time as Slurm stores it (`time_t`, whole seconds).
///
/// Slurm prints the text that this project parses with `SLURM_TIME_FORMAT=%s`, so neither time zones nor daylight saving matter.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct UnixTime(i64);

impl UnixTime {
    /// A time from seconds since 1970.
    pub const fn from_secs(secs: i64) -> Self {
        Self(secs)
    }

    /// Seconds since 1970.
    pub const fn as_secs(self) -> i64 {
        self.0
    }

    /// Parses a time as Slurm's commands print it under `SLURM_TIME_FORMAT=%s`, and the default form `2026-11-20T20:35:09`, taken as UTC:
    /// the commands are run with `TZ=UTC`. Only for answers that this project asked for: elsewhere that form is in an unknown time zone.
    ///
    /// An [unset](Self::is_unset) time gives `None`. Any other invalid text does as well; a caller who must distinguish them has to examine
    /// the text first.
    pub fn parse(text: &str) -> Option<Self> {
        match text.trim().parse::<i64>() {
            Ok(secs) => (secs > 0).then_some(Self(secs)),
            Err(_) => parse_iso(text.trim()).map(Self),
        }
    }

    /// True for what Slurm prints for a time that is not set or not known. Slurm stores 0 for it.
    pub fn is_unset(text: &str) -> bool {
        let text = text.trim();
        let words = ["", "0", "Unknown", "None", "N/A", "(null)"];
        words.iter().any(|word| word.eq_ignore_ascii_case(text))
    }
}

impl fmt::Display for UnixTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Parses Slurm's duration text `[days-]hh:mm:ss`, `mm:ss` or plain seconds, in seconds. `None` if it is not a duration.
///
/// `secs2time_str` and `mins2time_str` print `RunTime`, `TimeLimit` and fields like `SecsPreSuspend` in this form.
pub fn parse_duration_secs(text: &str) -> Option<u64> {
    let text = text.trim();
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (parse_digits(days)?, clock),
        None => (0, text),
    };
    let mut parts = [0_u64; 3];
    let mut count = 0;
    for part in clock.split(':') {
        *parts.get_mut(count)? = parse_digits(part)?;
        count += 1;
    }
    let (hours, minutes, seconds) = match count {
        1 => (0, 0, parts[0]),
        2 => (0, parts[0], parts[1]),
        _ => (parts[0], parts[1], parts[2]),
    };
    days.checked_mul(86_400)?
        .checked_add(hours.checked_mul(3_600)?)?
        .checked_add(minutes.checked_mul(60)?)?
        .checked_add(seconds)
}

/// A job's time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeLimit {
    /// Minutes of wall clock.
    Minutes(u32),
    /// `UNLIMITED` (`INFINITE` in Slurm).
    Unlimited,
    /// `Partition_Limit` (`NO_VAL`): the job takes the partition's limit once it starts.
    PartitionDefault,
}

impl TimeLimit {
    /// Parses `1-00:00:00`, `UNLIMITED`, `Partition_Limit`; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        match text.trim() {
            "UNLIMITED" | "INFINITE" => Some(Self::Unlimited),
            "Partition_Limit" | "NOT_SET" => Some(Self::PartitionDefault),
            other => {
                let minutes = parse_duration_secs(other)?.div_ceil(60);
                u32::try_from(minutes).ok().map(Self::Minutes)
            }
        }
    }

    /// The limit in minutes; `None` if it is not a number.
    pub const fn minutes(self) -> Option<u32> {
        match self {
            Self::Minutes(minutes) => Some(minutes),
            Self::Unlimited | Self::PartitionDefault => None,
        }
    }
}

/// `2026-11-20T20:35:09` in UTC.
fn parse_iso(text: &str) -> Option<i64> {
    let (date, clock) = text.split_once('T')?;
    let numbers = |text: &str, separator| -> Option<[i64; 3]> {
        let mut parts = text
            .split(separator)
            .map(|part| parse_digits(part).and_then(|part| i64::try_from(part).ok()));
        let three = [parts.next()??, parts.next()??, parts.next()??];
        parts.next().is_none().then_some(three)
    };
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(clock, ':')?;
    let sane = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    sane.then(|| days_since_1970(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second)
}

/// Days of the proleptic Gregorian calendar, with years that begin in March so that the leap day comes last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month > 2 { year } else { year - 1 };
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    365 * year + year / 4 - year / 100 + year / 400 + day_of_year - 719_468
}

fn parse_digits(text: &str) -> Option<u64> {
    // `str::parse` would also accept a sign.
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn unset_times_are_none() {
        for text in ["", "0", "Unknown", "None", "N/A", "NONE", "(null)", "-5"] {
            assert_eq!(UnixTime::parse(text), None, "{text}");
            assert_eq!(UnixTime::is_unset(text), text != "-5", "{text}");
        }
        assert!(!UnixTime::is_unset("Tomr 10:00"));
        assert_eq!(
            UnixTime::parse("1795305073"),
            Some(UnixTime::from_secs(1_795_305_073))
        );
    }

    #[test]
    fn limits_are_read_in_every_form() {
        assert_eq!(TimeLimit::parse("00:10:00"), Some(TimeLimit::Minutes(10)));
        assert_eq!(
            TimeLimit::parse("1-00:00:00"),
            Some(TimeLimit::Minutes(1440))
        );
        assert_eq!(TimeLimit::parse("UNLIMITED"), Some(TimeLimit::Unlimited));
        assert_eq!(
            TimeLimit::parse("Partition_Limit"),
            Some(TimeLimit::PartitionDefault)
        );
        assert_eq!(TimeLimit::parse("soon"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in ".*") {
            let _ = (parse_duration_secs(&text), TimeLimit::parse(&text), UnixTime::parse(&text));
        }

        #[test]
        fn durations_round_trip(secs in 0_u64..100_000_000) {
            let text = format!("{}-{:02}:{:02}:{:02}", secs / 86_400, secs / 3_600 % 24, secs / 60 % 60, secs % 60);
            prop_assert_eq!(parse_duration_secs(&text), Some(secs));
        }
    }
}
