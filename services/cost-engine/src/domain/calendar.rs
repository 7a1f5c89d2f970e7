//! Times of the week in a time zone: `Mon-Fri 08:00-20:00`.
//!
//! A window is bounded by local times, so a night with a change of the clock has one hour more or less. A local time that comes twice
//! counts when it comes first, one that does not come counts as the moment of the change.

use chrono::{DateTime, Datelike as _, Days, NaiveDate, TimeDelta, TimeZone as _, Weekday};
use chrono_tz::Tz;

const MINUTES_PER_DAY: u32 = 24 * 60;
/// Longest gap that a change of the clock leaves: a whole day (Samoa, 2011).
const MAX_GAP_MINUTES: i64 = 2 * 24 * 60;

/// A window of the week, repeated every week.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar {
    zone: Tz,
    /// Days on which the window begins, from Monday.
    days: [bool; 7],
    /// Begin in minutes of the day.
    from: u32,
    /// End in minutes of the day of the begin; above 24 hours on the next day.
    to: u32,
}

impl Calendar {
    /// Parses days, hours or both: `Mon-Fri 08:00-20:00`, `Sat,Sun`, `22:00-06:00`. Hours that end before they begin end on the next day.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str, zone: Tz) -> Result<Self, String> {
        let (mut days, mut hours) = (None, None);
        for word in text.split_whitespace() {
            if word.contains(':') {
                let read = self::hours(word).ok_or_else(|| {
                    format!("{word:?} is not a range of hours such as \"08:00-20:00\"")
                })?;
                if hours.replace(read).is_some() {
                    return Err("has two ranges of hours".to_owned());
                }
            } else {
                let read = self::days(word).ok_or_else(|| {
                    format!("{word:?} is not a list of days such as \"Mon-Fri\" or \"Sat,Sun\"")
                })?;
                if days.replace(read).is_some() {
                    return Err("has two lists of days: write \"Mon-Wed,Fri\"".to_owned());
                }
            }
        }
        if days.is_none() && hours.is_none() {
            return Err("is empty: write days, hours or both".to_owned());
        }
        let (from, to) = hours.unwrap_or((0, MINUTES_PER_DAY));
        Ok(Self {
            zone,
            days: days.unwrap_or([true; 7]),
            from,
            to,
        })
    }

    /// True if the moment is in a window.
    pub fn covers(&self, time: i64) -> bool {
        self.windows(time, 1)
            .any(|(from, to)| from <= time && time < to)
    }

    /// The first moment after this one at which a window begins or ends, or a moment before that.
    pub fn next_change(&self, time: i64) -> i64 {
        self.windows(time, 8)
            .flat_map(|(from, to)| [from, to])
            .filter(|bound| *bound > time)
            .min()
            .unwrap_or(i64::MAX)
    }

    /// Windows that begin between the day before the moment and some days after it.
    fn windows(&self, time: i64, days_after: u64) -> impl Iterator<Item = (i64, i64)> {
        let date = DateTime::from_timestamp(time, 0)
            .and_then(|time| time.with_timezone(&self.zone).date_naive().pred_opt());
        let dates =
            (0..=days_after + 1).filter_map(move |after| date?.checked_add_days(Days::new(after)));
        dates
            .filter(|date| self.days[date.weekday().num_days_from_monday() as usize])
            .filter_map(|date| {
                Some((
                    local_time(self.zone, date, self.from)?,
                    local_time(self.zone, date, self.to)?,
                ))
            })
    }
}

/// Unix seconds of a local time, in minutes of the day.
pub(super) fn local_time(zone: Tz, date: NaiveDate, minutes: u32) -> Option<i64> {
    let local = date.and_hms_opt(0, 0, 0)? + TimeDelta::minutes(minutes.into());
    let first = (0..MAX_GAP_MINUTES).find_map(|later| {
        let local = local + TimeDelta::minutes(later);
        zone.from_local_datetime(&local).earliest()
    });
    first.map(|time| time.timestamp())
}

fn hours(text: &str) -> Option<(u32, u32)> {
    let minutes = |text: &str| {
        let (hours, minutes) = text.split_once(':')?;
        let is_number =
            |text: &str| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(hours) || !is_number(minutes) {
            return None;
        }
        let (hours, minutes): (u32, u32) = (hours.parse().ok()?, minutes.parse().ok()?);
        (minutes < 60 && hours * 60 + minutes <= MINUTES_PER_DAY).then_some(hours * 60 + minutes)
    };
    let (from, to) = text.split_once('-')?;
    let (from, to) = (minutes(from)?, minutes(to)?);
    if from == to || from == MINUTES_PER_DAY {
        return None;
    }
    Some((from, if to > from { to } else { to + MINUTES_PER_DAY }))
}

fn days(text: &str) -> Option<[bool; 7]> {
    let day = |name: &str| -> Option<usize> {
        let day: Weekday = name.parse().ok()?;
        Some(day.num_days_from_monday() as usize)
    };
    let mut days = [false; 7];
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (day(first)?, day(last)?);
        let length = (last + 7 - first) % 7;
        for after in 0..=length {
            days[(first + after) % 7] = true;
        }
    }
    Some(days)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn calendar(text: &str) -> Calendar {
        Calendar::parse(text, chrono_tz::Europe::Berlin).unwrap()
    }

    fn time(text: &str) -> i64 {
        DateTime::parse_from_rfc3339(text).unwrap().timestamp()
    }

    #[test]
    fn windows_are_in_local_time() {
        let working = calendar("Mon-Fri 08:00-20:00");
        // A Friday in summer, UTC+2.
        for (at, covered) in [
            ("2026-07-03T05:59:59Z", false),
            ("2026-07-03T06:00:00Z", true),
            ("2026-07-03T17:59:59Z", true),
            ("2026-07-03T18:00:00Z", false),
            ("2026-07-04T10:00:00Z", false),
            // In winter, UTC+1.
            ("2026-01-05T06:30:00Z", false),
            ("2026-01-05T07:00:00Z", true),
        ] {
            assert_eq!(working.covers(time(at)), covered, "{at}");
        }
        // Over the weekend.
        assert_eq!(
            working.next_change(time("2026-07-03T18:00:00Z")),
            time("2026-07-06T06:00:00Z")
        );
        let night = calendar("22:00-06:00");
        assert!(night.covers(time("2026-01-05T02:00:00Z")));
        let weekend = calendar("Sat-Mon");
        assert!(weekend.covers(time("2026-01-05T22:59:59Z")));
        assert!(!weekend.covers(time("2026-01-05T23:00:00Z")));
    }

    #[test]
    fn days_with_a_change_of_the_clock_have_another_length() {
        let day = calendar("Sun");
        for (begin, hours) in [
            ("2026-03-28T23:00:00Z", 23),
            ("2026-10-24T22:00:00Z", 25),
            ("2026-07-04T22:00:00Z", 24),
        ] {
            let begin = time(begin);
            assert!(day.covers(begin) && !day.covers(begin - 1));
            assert_eq!(day.next_change(begin) - begin, hours * 3600);
        }
        // 02:30 does not come on 29 March, and comes twice on 25 October.
        let odd = calendar("02:30-04:00");
        assert!(odd.covers(time("2026-03-29T01:00:00Z")));
        assert!(odd.covers(time("2026-10-25T00:30:00Z")));
    }

    #[test]
    fn faults_are_named() {
        for text in [
            "",
            "Mon-Fry",
            "8:00-20:00",
            "08:00",
            "08:00-25:00",
            "08:00-08:00",
            "Mon Tue",
            "08:00-09:00 10:00-11:00",
        ] {
            assert!(
                Calendar::parse(text, chrono_tz::UTC).is_err(),
                "{text:?} was accepted"
            );
        }
    }

    proptest! {
        #[test]
        fn nothing_changes_before_the_next_change(
            at in 1_700_000_000i64..1_900_000_000,
            part in 0i64..1000,
            text in prop::sample::select(vec!["Mon-Fri 08:00-20:00", "22:00-06:00", "Sun", "02:30-02:45", "Sat,Wed 23:00-24:00"]),
        ) {
            let calendar = calendar(text);
            let until = calendar.next_change(at);
            prop_assert!(until > at);
            let between = at + (until - 1 - at) * part / 1000;
            prop_assert_eq!(calendar.covers(between), calendar.covers(at));
        }
    }
}
