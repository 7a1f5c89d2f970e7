//! Reads the prices of a node type: amounts per market, validity, times of the week, and series from files.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use chrono_tz::Tz;
use toml::{Spanned, Value};

use super::file::{PriceFile, SeriesFile, beside};
use super::value::Faults;
use super::{Prices, series};
use crate::domain::calendar::Calendar;
use crate::domain::rates::{CalendarRate, Rate, RatePeriod, ScheduleError};
use crate::domain::{Market, Micros, RateSchedule};

/// Prices of one market while they are read.
#[derive(Default)]
struct MarketPrices {
    periods: Vec<(Range<usize>, RatePeriod)>,
    calendar: Vec<CalendarRate>,
    series: Option<Vec<RatePeriod>>,
}

/// Reads prices and series. Series files are relative to `folder`.
pub(super) fn prices(
    key: &str,
    files: &[Spanned<PriceFile>],
    series_files: &[Spanned<SeriesFile>],
    folder: Option<&Path>,
    faults: &mut Faults<'_>,
) -> Prices {
    let (mut on_demand, mut spot) = (MarketPrices::default(), MarketPrices::default());
    for file in files {
        price(key, file, &mut on_demand, &mut spot, faults);
    }
    for file in series_files {
        let Some(market) = market("node_type.series.market", &file.get_ref().market, faults) else {
            continue;
        };
        let prices = match market {
            Market::OnDemand => &mut on_demand,
            Market::Spot => &mut spot,
        };
        if !prices.periods.is_empty() || !prices.calendar.is_empty() || prices.series.is_some() {
            let problem = format!("market {market} has other prices or another series");
            faults.add(file.span(), "node_type.series", problem);
        }
        prices.series = Some(read_series(file.get_ref(), folder, faults));
    }
    Prices {
        on_demand: on_demand.schedule(&format!("{key}.on_demand"), faults),
        spot: spot.schedule(&format!("{key}.spot"), faults),
    }
}

impl MarketPrices {
    fn schedule(self, key: &str, faults: &mut Faults<'_>) -> Arc<RateSchedule> {
        let periods = match self.series {
            // Its order was checked line by line.
            Some(series) => RateSchedule::new(&series).unwrap_or_default(),
            None => schedule(key, self.periods, faults),
        };
        Arc::new(periods.with_calendar(self.calendar))
    }
}

/// A price as written: key and value, and its list price.
struct Amount<'a> {
    key: String,
    value: &'a Spanned<Value>,
    list: Option<Micros>,
    market: Market,
}

fn price(
    key: &str,
    file: &Spanned<PriceFile>,
    on_demand: &mut MarketPrices,
    spot: &mut MarketPrices,
    faults: &mut Faults<'_>,
) {
    let amounts = amounts(key, file, faults);
    let file = file.get_ref();
    let from = faults.time(&format!("{key}.from"), file.from.as_ref());
    let to = faults.time(&format!("{key}.to"), file.to.as_ref());
    let calendar = calendar(key, file, faults);
    for amount in amounts {
        let Some(per_hour) = faults.rate(&amount.key, amount.value) else {
            continue;
        };
        let rate = Rate {
            per_hour,
            list: amount.list.unwrap_or(per_hour),
        };
        let period = RatePeriod { from, to, rate };
        let prices = match amount.market {
            Market::OnDemand => &mut *on_demand,
            Market::Spot => &mut *spot,
        };
        match &calendar {
            None => prices.periods.push((amount.value.span(), period)),
            // The price of other times would count instead.
            Some(_) if per_hour == Micros::ZERO => {
                faults.add(amount.value.span(), &amount.key, "is 0, which is no price");
            }
            Some(calendar) => prices.calendar.push(CalendarRate {
                calendar: calendar.clone(),
                period,
            }),
        }
    }
}

/// The amounts of an entry: `on_demand` and `spot`, or `effective` with `list` of one `market`.
fn amounts<'a>(
    key: &str,
    file: &'a Spanned<PriceFile>,
    faults: &mut Faults<'_>,
) -> Vec<Amount<'a>> {
    let (span, file) = (file.span(), file.get_ref());
    let mut amounts = Vec::new();
    for (market, value) in [
        (Market::OnDemand, &file.on_demand),
        (Market::Spot, &file.spot),
    ] {
        amounts.extend(value.as_ref().map(|value| Amount {
            key: format!("{key}.{market}"),
            value,
            list: None,
            market,
        }));
    }
    let has_list = file.list.is_some() || file.effective.is_some() || file.market.is_some();
    if !has_list {
        if amounts.is_empty() {
            faults.add(
                span,
                key,
                "has neither `on_demand` nor `spot` nor `effective`",
            );
        }
        return amounts;
    }
    if !amounts.is_empty() {
        let problem = "has `on_demand` or `spot` beside `market`, `list` or `effective`: write one entry per market";
        faults.add(span, key, problem);
        return amounts;
    }
    let list = file.list.as_ref();
    let list = list.and_then(|value| faults.rate(&format!("{key}.list"), value));
    let market = match &file.market {
        Some(name) => market(&format!("{key}.market"), name, faults),
        None => Some(Market::OnDemand),
    };
    if file.effective.is_none() {
        faults.add(span, key, "has no `effective`, the price that is charged");
    }
    let effective = file.effective.as_ref().zip(market);
    amounts.extend(effective.map(|(value, market)| Amount {
        key: format!("{key}.effective"),
        value,
        list,
        market,
    }));
    amounts
}

/// Times of the week at which a price counts. `None` if it always does.
fn calendar(key: &str, file: &PriceFile, faults: &mut Faults<'_>) -> Option<Calendar> {
    let (when, zone) = (file.when.as_ref(), file.timezone.as_ref());
    let (Some(when), Some(zone)) = (when, zone) else {
        if let Some(when) = when {
            let problem = "needs `timezone`, such as \"Europe/Berlin\"";
            faults.add(when.span(), &format!("{key}.when"), problem);
        }
        if let Some(zone) = zone {
            let problem = "is the time zone of `when`, which is missing";
            faults.add(zone.span(), &format!("{key}.timezone"), problem);
        }
        return None;
    };
    let Ok(named) = zone.get_ref().parse::<Tz>() else {
        let problem = format!(
            "{:?} is not a time zone such as \"Europe/Berlin\"",
            zone.get_ref()
        );
        faults.add(zone.span(), &format!("{key}.timezone"), problem);
        return None;
    };
    Calendar::parse(when.get_ref(), named)
        .map_err(|problem| faults.add(when.span(), &format!("{key}.when"), problem))
        .ok()
}

fn market(key: &str, name: &Spanned<String>, faults: &mut Faults<'_>) -> Option<Market> {
    let found = [Market::OnDemand, Market::Spot]
        .into_iter()
        .find(|market| market.as_str() == name.get_ref());
    if found.is_none() {
        let problem = format!("{:?} is neither on_demand nor spot", name.get_ref());
        faults.add(name.span(), key, problem);
    }
    found
}

fn read_series(
    file: &SeriesFile,
    folder: Option<&Path>,
    faults: &mut Faults<'_>,
) -> Vec<RatePeriod> {
    let (place, name, text) = match (&file.file, &file.csv) {
        (Some(name), None) => {
            let path = beside(folder, name.get_ref());
            match std::fs::read_to_string(&path) {
                Ok(text) => (name.span(), name.get_ref().as_str(), text),
                Err(error) => {
                    let problem = format!("read {}: {error}", path.display());
                    faults.add(name.span(), "node_type.series.file", problem);
                    return Vec::new();
                }
            }
        }
        (None, Some(csv)) => (csv.span(), "csv", csv.get_ref().clone()),
        _ => {
            let problem = "has not exactly one of `file` and `csv`";
            faults.add(file.market.span(), "node_type.series", problem);
            return Vec::new();
        }
    };
    let prices = match series::parse(&text) {
        Ok(prices) => prices,
        Err(fault) => {
            faults.add(place, "node_type.series.file", format!("{name}: {fault}"));
            return Vec::new();
        }
    };
    let zone = file.zone.as_ref().map(|zone| zone.get_ref().as_str());
    let first = prices.first().map(|price| price.zone.clone());
    let zone = match zone {
        Some(zone) => zone.to_owned(),
        None if prices
            .iter()
            .all(|price| Some(&price.zone) == first.as_ref()) =>
        {
            first.unwrap_or_default()
        }
        None => {
            let problem = format!("{name} has prices of several zones: choose one with `zone`");
            faults.add(place, "node_type.series.zone", problem);
            return Vec::new();
        }
    };
    let of_zone: Vec<_> = prices
        .into_iter()
        .filter(|price| price.zone == zone)
        .collect();
    if of_zone.is_empty() {
        let problem = format!("{name} has no prices of zone {zone:?}");
        faults.add(place, "node_type.series.zone", problem);
    }
    series::periods(&of_zone)
}

/// A schedule of periods, with faults at their lines in the text.
pub(super) fn schedule(
    key: &str,
    periods: Vec<(Range<usize>, RatePeriod)>,
    faults: &mut Faults<'_>,
) -> RateSchedule {
    let (spans, periods): (Vec<_>, Vec<_>) = periods.into_iter().unzip();
    // 0 is the placeholder of `smesh init`. It counts as no price, so that no run appears to be free.
    let priced = |schedule: RateSchedule| schedule.without_zero();
    RateSchedule::new(&periods)
        .map(priced)
        .unwrap_or_else(|error| {
            match error {
                ScheduleError::Empty(at) => faults.add(
                    spans[at].clone(),
                    key,
                    "has no validity: `to` is not after `from`",
                ),
                ScheduleError::Overlap(first, second) => {
                    let line = faults.line(&spans[first]);
                    faults.add(
                        spans[second].clone(),
                        key,
                        format!("is valid at the same time as the price in line {line}"),
                    );
                }
            }
            RateSchedule::default()
        })
}
