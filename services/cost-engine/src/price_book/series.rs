//! Price series: `time,price` or `time,price,zone`, one line per change of price. A price is valid from its time until the next one.

use chrono::{DateTime, SecondsFormat, Utc};
use mesh_runtime::time_bound::rfc3339_or_date;
use num_traits::ToPrimitive as _;

use crate::domain::Micros;
use crate::domain::money::{decimal, integer};
use crate::domain::rates::{Rate, RatePeriod};

/// First line of a series.
const HEADER: &str = "time,price,zone";

/// A price from a moment on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeriesPrice {
    /// Availability zone of the provider. Empty if the series has none.
    pub zone: String,
    /// First second in Unix seconds.
    pub from: i64,
    /// Price per node and hour.
    pub price: Micros,
}

/// A faulty line of a series.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {key}: {problem}")]
pub struct SeriesFault {
    /// Line number, from 1.
    pub line: usize,
    /// Column.
    pub key: &'static str,
    /// The fault, and the valid form.
    pub problem: String,
}

/// Parses a series. Times must increase within each zone.
///
/// # Errors
/// The first faulty line.
pub fn parse(text: &str) -> Result<Vec<SeriesPrice>, SeriesFault> {
    let mut prices: Vec<SeriesPrice> = Vec::new();
    for (number, row) in text.lines().enumerate() {
        let line = number + 1;
        let fault = |key, problem: String| SeriesFault { line, key, problem };
        let row = row.trim();
        if row.is_empty() || (number == 0 && HEADER.starts_with(row)) {
            continue;
        }
        let cells: Vec<&str> = row.split(',').map(str::trim).collect();
        let [time, price, zone @ ..] = cells.as_slice() else {
            let problem = format!("{row:?} is not `time,price` or `time,price,zone`");
            return Err(fault("price", problem));
        };
        if zone.len() > 1 {
            return Err(fault(
                "zone",
                format!("{row:?} has more than three columns"),
            ));
        }
        let read = SeriesPrice {
            zone: zone.first().copied().unwrap_or_default().to_owned(),
            from: moment(time).map_err(|problem| fault("time", problem))?,
            price: amount(price).map_err(|problem| fault("price", problem))?,
        };
        let earlier = prices.iter().rev().find(|other| other.zone == read.zone);
        if earlier.is_some_and(|earlier| earlier.from >= read.from) {
            let problem = format!("{time} is not after the time of an earlier line");
            return Err(fault("time", problem));
        }
        prices.push(read);
    }
    if prices.is_empty() {
        return Err(SeriesFault {
            line: 1,
            key: "price",
            problem: "the series has no prices".to_owned(),
        });
    }
    Ok(prices)
}

/// A date (midnight UTC), or a time with offset, in whole seconds.
///
/// # Errors
/// What is wrong with the text.
pub fn moment(text: &str) -> Result<i64, String> {
    let time = rfc3339_or_date(text.trim(), &Utc);
    time.map(|time| time.timestamp())
        .map_err(|_| format!("{text:?} is neither a time such as 2026-07-01T08:00:00Z nor a date"))
}

/// An amount above 0, rounded up to millionths: providers print more digits.
///
/// # Errors
/// What is wrong with the text.
pub fn amount(text: &str) -> Result<Micros, String> {
    let problem = || format!("{text:?} is not an amount above 0 such as 0.68");
    let exact = decimal(text.trim()).ok_or_else(problem)?;
    let micros = (exact * integer(1_000_000)).ceil().to_integer();
    let micros = micros.to_i64().ok_or_else(problem)?;
    if !micros.is_positive() {
        return Err(problem());
    }
    Ok(Micros(micros))
}

/// Validity periods of the prices of one zone.
pub fn periods(prices: &[SeriesPrice]) -> Vec<RatePeriod> {
    let ends = prices.iter().skip(1).map(|next| Some(next.from));
    prices
        .iter()
        .zip(ends.chain([None]))
        .map(|(price, to)| RatePeriod {
            from: Some(price.from),
            to,
            rate: Rate::flat(price.price),
        })
        .collect()
}

/// Prints a series, sorted by time.
pub fn print(prices: &[SeriesPrice]) -> String {
    let mut sorted: Vec<&SeriesPrice> = prices.iter().collect();
    sorted.sort_by(|a, b| (a.from, &a.zone).cmp(&(b.from, &b.zone)));
    let has_zones = sorted.iter().any(|price| !price.zone.is_empty());
    let line = |price: &SeriesPrice| {
        let time = DateTime::<Utc>::from_timestamp(price.from, 0).unwrap_or_default();
        let time = time.to_rfc3339_opts(SecondsFormat::Secs, true);
        let (whole, rest) = (price.price.0 / 1_000_000, price.price.0 % 1_000_000);
        let zone = if has_zones {
            format!(",{}", price.zone)
        } else {
            String::new()
        };
        format!("{time},{whole}.{rest:06}{zone}\n")
    };
    let header = if has_zones { HEADER } else { "time,price" };
    let lines = sorted.into_iter().map(line);
    std::iter::once(format!("{header}\n"))
        .chain(lines)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_is_valid_until_the_next() {
        let prices =
            parse("time,price\n2026-07-01T00:00:00Z,0.10\n2026-07-01T01:00:00Z,0.2000001\n")
                .unwrap();
        let periods = periods(&prices);
        let hour = prices[0].from + 3600;
        assert_eq!(
            (periods[0].to, periods[1].from, periods[1].to),
            (Some(hour), Some(hour), None)
        );
        // Rounded up, so that the site never charges less than it pays.
        assert_eq!(periods[1].rate, Rate::flat(Micros(200_001)));
        assert_eq!(parse(&print(&prices)).unwrap(), prices);
    }

    #[test]
    fn faults_are_named_by_line_and_column() {
        for (text, line, key) in [
            ("", 1, "price"),
            ("time,price\n", 1, "price"),
            ("soon,1", 1, "time"),
            ("2026-07-01T00:00:00Z", 1, "price"),
            ("2026-07-01T00:00:00Z,-1", 1, "price"),
            ("2026-07-01T00:00:00Z,0", 1, "price"),
            ("time,price\n2026-07-01T00:00:00Z,1,a,b", 2, "zone"),
            (
                "2026-07-01T01:00:00Z,1\n\n2026-07-01T00:00:00Z,1",
                3,
                "time",
            ),
            ("2026-07-01T01:00:00Z,1\n2026-07-01T01:00:00Z,2", 2, "time"),
        ] {
            let fault = parse(text).unwrap_err();
            assert_eq!((fault.line, fault.key), (line, key), "{text:?}: {fault}");
        }
        // Each zone has its own order.
        parse("2026-07-01T01:00:00Z,1,a\n2026-07-01T00:00:00Z,1,b").unwrap();
    }
}
