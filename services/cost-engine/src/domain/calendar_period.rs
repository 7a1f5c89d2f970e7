//! Months, quarters and years in a time zone, rolling periods, and periods between two moments.

use chrono::{DateTime, Datelike as _, Months, NaiveDate, TimeDelta, Utc};
use chrono_tz::Tz;

use super::Interval;
use super::calendar::local_time;

/// How time is divided into periods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Periodicity {
    /// Calendar months.
    Month,
    /// Calendar quarters.
    Quarter,
    /// Calendar years.
    Year,
    /// The last seconds.
    Rolling(i64),
    /// One period `[from, to)`.
    Once(Interval),
}

/// A period `[from, to)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Period {
    /// Name, such as `2026-11`, `2026-Q4`, `2026`, `rolling`.
    pub name: String,
    /// First second.
    pub from: i64,
    /// First second after. `i64::MAX` for a rolling period, which includes what is still to come.
    pub to: i64,
}

impl Period {
    /// Its first second, and the first one after it.
    pub const fn bounds(&self) -> Interval {
        (self.from, self.to)
    }
}

impl Periodicity {
    /// The period of a moment. `None` before the first and after the last date of the calendar. A single period is that of every moment.
    pub fn period(&self, zone: Tz, time: i64) -> Option<Period> {
        let date = || Some(DateTime::from_timestamp(time, 0)?.with_timezone(&zone));
        let (name, first, months) = match self {
            Self::Month => {
                let date = date()?;
                let first = NaiveDate::from_ymd_opt(date.year(), date.month(), 1)?;
                (first.format("%Y-%m").to_string(), first, 1)
            }
            Self::Quarter => {
                let date = date()?;
                let quarter = date.month0() / 3;
                let first = NaiveDate::from_ymd_opt(date.year(), quarter * 3 + 1, 1)?;
                (format!("{}-Q{}", first.format("%Y"), quarter + 1), first, 3)
            }
            Self::Year => {
                let first = NaiveDate::from_ymd_opt(date()?.year(), 1, 1)?;
                (first.format("%Y").to_string(), first, 12)
            }
            Self::Rolling(seconds) => {
                return Some(Period {
                    name: "rolling".to_owned(),
                    from: time.saturating_sub(*seconds),
                    to: i64::MAX,
                });
            }
            Self::Once((from, to)) => {
                let text = |time| {
                    let time = DateTime::from_timestamp(time, 0)?;
                    Some(time.format("%Y-%m-%dT%H:%M:%SZ").to_string())
                };
                return Some(Period {
                    name: format!("{}/{}", text(*from)?, text(*to)?),
                    from: *from,
                    to: *to,
                });
            }
        };
        Some(Period {
            name,
            from: local_time(zone, first, 0)?,
            to: local_time(zone, first.checked_add_months(Months::new(months))?, 0)?,
        })
    }
}

/// The calendar months that `[from, to)` touches, cut at its bounds. At most `limit`; `None` if there are more.
pub fn months(zone: Tz, from: i64, to: i64, limit: usize) -> Option<Vec<Period>> {
    let (mut months, mut time) = (Vec::new(), from);
    while time < to {
        let month = Periodicity::Month.period(zone, time)?;
        if months.len() == limit {
            return None;
        }
        time = month.to;
        months.push(Period {
            from: month.from.max(from),
            to: month.to.min(to),
            ..month
        });
    }
    Some(months)
}

/// The days that `[from, to)` touches, cut at its bounds. At most `limit`; `None` if there are more.
pub fn days(zone: Tz, from: i64, to: i64, limit: usize) -> Option<Vec<Period>> {
    let (mut days, mut time) = (Vec::new(), from);
    while time < to {
        let day = day(zone, time, 0)?;
        if days.len() == limit {
            return None;
        }
        time = day.to;
        days.push(Period {
            name: day.date.to_string(),
            from: day.from.max(from),
            to: day.to.min(to),
        });
    }
    Some(days)
}

/// The period of a name: `2026-11`, `2026-Q4` or `2026`.
pub fn named(zone: Tz, name: &str) -> Option<Period> {
    let (year, part) = name.split_once('-').unwrap_or((name, ""));
    let (periodicity, month) = match (part, part.strip_prefix('Q')) {
        ("", _) => (Periodicity::Year, 1),
        (_, Some(quarter)) => (
            Periodicity::Quarter,
            quarter.parse::<u32>().ok()?.checked_mul(3)?,
        ),
        (month, None) => (Periodicity::Month, month.parse().ok()?),
    };
    let date = NaiveDate::from_ymd_opt(year.parse().ok()?, month, 15)?;
    let period = periodicity.period(zone, local_time(zone, date, 0)?)?;
    // The only spelling is its own.
    (period.name == name).then_some(period)
}

/// The name of the present month. UTC if the time zone is not known: who reads the report refuses it.
pub fn present_month(zone: Option<&str>, now: DateTime<Utc>) -> String {
    let zone = zone.and_then(|zone| zone.parse().ok()).unwrap_or(Tz::UTC);
    now.with_timezone(&zone).format("%Y-%m").to_string()
}

/// A day in a time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalDay {
    /// The date.
    pub date: NaiveDate,
    /// First second.
    pub from: i64,
    /// First second after.
    pub to: i64,
}

/// The day of a moment, some days earlier or later.
pub fn day(zone: Tz, time: i64, offset: i64) -> Option<LocalDay> {
    let today = DateTime::from_timestamp(time, 0)?
        .with_timezone(&zone)
        .date_naive();
    let date = today.checked_add_signed(TimeDelta::try_days(offset)?)?;
    Some(LocalDay {
        date,
        from: local_time(zone, date, 0)?,
        to: local_time(zone, date.succ_opt()?, 0)?,
    })
}

#[cfg(test)]
mod tests {
    use chrono_tz::Europe::Berlin;

    use super::*;

    fn time(text: &str) -> i64 {
        DateTime::parse_from_rfc3339(text).unwrap().timestamp()
    }

    #[test]
    fn the_present_month_is_that_of_the_zone() {
        let now = DateTime::parse_from_rfc3339("2026-10-31T23:30:00Z").unwrap();
        let month = |zone| present_month(zone, now.to_utc());
        assert_eq!(month(None), "2026-10");
        assert_eq!(month(Some("Europe/Berlin")), "2026-11");
    }

    #[test]
    fn periods_are_half_open_in_their_zone() {
        let november = ("2026-10-31T23:00:00Z", "2026-11-30T23:00:00Z");
        for (periodicity, at, name, (from, to)) in [
            (
                Periodicity::Month,
                "2026-10-31T23:00:00Z",
                "2026-11",
                november,
            ),
            (
                Periodicity::Month,
                "2026-11-30T22:59:59Z",
                "2026-11",
                november,
            ),
            (
                Periodicity::Month,
                "2026-10-31T22:59:59Z",
                "2026-10",
                ("2026-09-30T22:00:00Z", "2026-10-31T23:00:00Z"),
            ),
            (
                Periodicity::Quarter,
                "2026-11-15T00:00:00Z",
                "2026-Q4",
                ("2026-09-30T22:00:00Z", "2026-12-31T23:00:00Z"),
            ),
            (
                Periodicity::Year,
                "2026-11-15T00:00:00Z",
                "2026",
                ("2025-12-31T23:00:00Z", "2026-12-31T23:00:00Z"),
            ),
        ] {
            let found = periodicity.period(Berlin, time(at));
            let expected = Period {
                name: name.to_owned(),
                from: time(from),
                to: time(to),
            };
            assert_eq!(found, Some(expected), "{at}");
        }
    }

    #[test]
    fn a_name_is_that_of_its_period() {
        let month = named(Berlin, "2026-11").unwrap();
        assert_eq!(
            (month.from, month.to),
            (time("2026-10-31T23:00:00Z"), time("2026-11-30T23:00:00Z"))
        );
        for name in ["2026-Q4", "2026", "2026-01"] {
            assert_eq!(named(Berlin, name).unwrap().name, name);
        }
        for wrong in [
            "",
            "2026-13",
            "2026-1",
            "2026-Q0",
            "2026-Q5",
            "26",
            "2026-11-01",
        ] {
            assert_eq!(named(Berlin, wrong), None, "{wrong}");
        }
        let found = days(Berlin, month.from, month.to, 30).unwrap();
        assert_eq!((found.len(), found[29].name.as_str()), (30, "2026-11-30"));
        assert_eq!(days(Berlin, month.from, month.to, 29), None);
    }

    #[test]
    fn a_day_has_23_to_25_hours() {
        let noon = time("2026-10-25T12:00:00Z");
        let hours = |offset| day(Berlin, noon, offset).map(|day| (day.to - day.from) / 3600);
        assert_eq!(
            [hours(-1), hours(0), hours(1)],
            [Some(24), Some(25), Some(24)]
        );
    }

    #[test]
    fn rolling_and_single_periods_have_no_calendar() {
        let rolling = Periodicity::Rolling(86_400).period(Berlin, 100_000);
        assert_eq!(
            rolling.map(|period| (period.from, period.to)),
            Some((13_600, i64::MAX))
        );
        let once = Periodicity::Once((0, 60)).period(Berlin, 9).unwrap();
        assert_eq!(once.name, "1970-01-01T00:00:00Z/1970-01-01T00:01:00Z");
    }

    #[test]
    fn months_are_cut_at_the_bounds_and_adjoin() {
        let (from, to) = (time("2026-01-15T00:00:00Z"), time("2026-03-02T00:00:00Z"));
        let found = months(Berlin, from, to, 3).unwrap();
        let names: Vec<_> = found.iter().map(|month| month.name.as_str()).collect();
        assert_eq!(names, ["2026-01", "2026-02", "2026-03"]);
        assert_eq!((found[0].from, found[2].to), (from, to));
        assert!(found.windows(2).all(|pair| pair[0].to == pair[1].from));
        assert_eq!(months(Berlin, from, to, 2), None);
    }
}
