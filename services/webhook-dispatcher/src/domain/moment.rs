//! A time as people write it: RFC 3339, a day, or how long ago.

use chrono::{DateTime, NaiveDate, NaiveTime, TimeDelta, Utc};
use serde::{Deserialize as _, Deserializer};

/// Reads a time.
///
/// # Errors
/// What would be one.
pub fn parse(text: &str, now: DateTime<Utc>) -> Result<DateTime<Utc>, String> {
    // A plus sign of an offset arrives as a space when the caller did not encode it.
    if let Ok(time) = DateTime::parse_from_rfc3339(&text.replace(' ', "+")) {
        return Ok(time.to_utc());
    }
    if let Ok(day) = text.parse::<NaiveDate>() {
        return Ok(day.and_time(NaiveTime::MIN).and_utc());
    }
    humantime::parse_duration(text)
        .ok()
        .and_then(|ago| now.checked_sub_signed(TimeDelta::from_std(ago).ok()?))
        .ok_or_else(|| {
            format!("{text:?} is no time; 2026-11-22T10:00:00Z, 2026-11-22, or how long ago, as 2h or 7days")
        })
}

/// Reads a time where there may be none.
///
/// # Errors
/// If what is there is no time.
pub fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<DateTime<Utc>>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.map(|text| parse(&text, Utc::now()).map_err(serde::de::Error::custom))
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        let now = DateTime::from_timestamp(1_763_805_600, 0).unwrap();
        let read = |text: &str| parse(text, now).map(|time| time.timestamp());
        assert_eq!(read("2025-11-22T11:00:00+01:00"), Ok(1_763_805_600));
        assert_eq!(read("2025-11-22T11:00:00 01:00"), Ok(1_763_805_600));
        assert_eq!(read("2025-11-22"), Ok(1_763_769_600));
        assert_eq!(read("2h"), Ok(1_763_805_600 - 7_200));
        assert!(read("yesterday").unwrap_err().contains("no time"));
        assert!(read("99999999999years").is_err());
    }
}
