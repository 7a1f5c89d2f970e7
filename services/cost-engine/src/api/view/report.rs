//! Sums of costs, of runs by their end or by slices. Pure except [`Slices`]: the time is an argument.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

use super::live::accrued;
use super::{Attribution, CostReport, CostReportRow};
use crate::adapters::{
    CostGroup, CostSum, Filter, FinalizedRun, OpenRun, People, Person, PriceBooks, SliceCosts,
    Store,
};
use crate::costing;
use crate::domain::calendar_period::Period;
use crate::domain::waste::LOST_KINDS;
use crate::domain::{Class, CostCurve, Interval, Micros, PriceError, RunsCost};
use crate::error::Error;
use crate::price_book::PriceBook;

/// Report of runs by their end.
pub(in crate::api) fn spent(
    by: CostGroup,
    sums: Vec<CostSum>,
    book: Option<&PriceBook>,
    open: Vec<OpenRun>,
    people: &People,
    now: DateTime<Utc>,
) -> CostReport {
    let mut rows = Rows::new(by, people);
    for sum in sums {
        rows.add_sum(sum, None);
    }
    let month = now.format("%Y-%m").to_string();
    for open in open {
        let cost = book.and_then(|book| accrued(book, &open, now.timestamp()).ok());
        rows.add_open(&open, &month, book, cost);
    }
    rows.report(Attribution::End, now)
}

/// Costs within slices that follow each other.
pub(crate) struct Slices {
    /// The slices. Their names are the months or days.
    pub periods: Vec<Period>,
    /// Sums of runs that started and ended within one slice, with its position.
    pub sums: Vec<(usize, CostSum)>,
    /// Runs that a bound cuts, with their cost over time.
    pub cut: Vec<(FinalizedRun, Option<CostCurve>)>,
}

impl Slices {
    /// Reads the costs of slices. `since` and `until` of the filter are ignored.
    pub async fn read(
        store: &Store,
        by: CostGroup,
        filter: &Filter,
        periods: Vec<Period>,
    ) -> Result<Self, Error> {
        let bounds: Vec<Interval> = periods.iter().map(Period::bounds).collect();
        let costs = store.slice_costs(by, filter, &bounds).await?;
        Self::of(store, costs, periods).await
    }

    /// Adds the cost over time of the runs that a bound cuts.
    pub async fn of(store: &Store, costs: SliceCosts, periods: Vec<Period>) -> Result<Self, Error> {
        let mut books = PriceBooks::of(store);
        let mut cut = Vec::with_capacity(costs.cut.len());
        for run in costs.cut {
            let curve = books.curve(&run).await?;
            cut.push((run, curve));
        }
        Ok(Self {
            periods,
            sums: costs.sums,
            cut,
        })
    }
}

/// Report of what runs cost within slices. Running jobs are charged until now.
pub(crate) fn sliced(
    by: CostGroup,
    slices: Slices,
    book: Option<&PriceBook>,
    open: &[OpenRun],
    people: &People,
    now: DateTime<Utc>,
) -> Result<CostReport, PriceError> {
    let mut rows = Rows::new(by, people);
    let curves: Vec<_> = open
        .iter()
        .map(|open| {
            let until = costing::accrued_until(&open.history, &open.job, now.timestamp());
            let curve =
                book.and_then(|book| costing::curve(book, &open.history, &open.job, until).ok());
            let start = open
                .job
                .start_time
                .as_ref()
                .map_or(until, |time| time.seconds);
            (open, curve, start, until)
        })
        .collect();
    for (position, sum) in slices.sums {
        let period = slices.periods.get(position);
        rows.add_sum(sum, period.map(|period| period.name.as_str()));
    }
    for (run, curve) in &slices.cut {
        let first = slices
            .periods
            .partition_point(|period| period.to <= run.started);
        let touched = slices.periods[first..].iter();
        for period in touched.take_while(|period| period.from < run.ended) {
            let slice = period.bounds();
            let cost = run.part(curve.as_ref(), slice)?;
            let unused = run.unused_part(curve.as_ref(), slice)?;
            rows.add_cut(run, &period.name, (cost, unused), run.seconds(slice));
        }
    }
    for period in &slices.periods {
        let Period { name, from, to } = period;
        let slice = period.bounds();
        for (open, curve, start, until) in &curves {
            let (from, to) = ((*start).max(*from), (*until).min(*to));
            if from > to || start >= &period.to {
                continue;
            }
            let seconds = from.abs_diff(to);
            let cost = match curve {
                Some(curve) => Some((curve.part(slice.0, slice.1)?, seconds)),
                None => None,
            };
            rows.add_open(open, name, book, cost);
        }
    }
    Ok(rows.report(Attribution::Slice, now))
}

impl CostReportRow {
    fn add_lost(&mut self, kind: &'static str, amount: Micros) {
        if amount != Micros::ZERO {
            let sum = self.lost_micros.entry(kind).or_default();
            *sum = *sum + amount;
        }
    }
}

/// Rows of a report by cluster, key and currency.
struct Rows<'a> {
    by: CostGroup,
    people: &'a People,
    rows: BTreeMap<(String, String, String), CostReportRow>,
}

impl<'a> Rows<'a> {
    const fn new(by: CostGroup, people: &'a People) -> Self {
        Self {
            by,
            people,
            rows: BTreeMap::new(),
        }
    }

    fn row(&mut self, cluster: &str, key: &str, currency: &str) -> &mut CostReportRow {
        if self.by == CostGroup::Identity {
            return row_of_person(&mut self.rows, self.people.of(cluster, key), currency);
        }
        row(&mut self.rows, cluster, key, currency)
    }

    /// `month` is the key of a sum by month.
    fn add_sum(&mut self, sum: CostSum, month: Option<&str>) {
        let key = match (self.by, month) {
            (CostGroup::Month | CostGroup::Day, Some(slice)) => slice,
            _ => &sum.key,
        };
        let row = self.row(&sum.cluster, key, &sum.currency);
        row.completed_micros += sum.completed;
        row.not_completed_micros += sum.not_completed;
        row.adjustments_micros = row.adjustments_micros + Micros(sum.adjustments);
        row.charged_seconds += sum.seconds.unsigned_abs();
        row.unused_micros = row.unused_micros + Micros(sum.unused);
        for (kind, amount) in LOST_KINDS.into_iter().zip(sum.lost) {
            row.add_lost(kind, Micros(amount));
        }
    }

    fn add_cut(
        &mut self,
        run: &FinalizedRun,
        month: &str,
        (cost, unused): (Micros, Micros),
        seconds: u64,
    ) {
        let key = run.keys.of(self.by, &run.display_id).unwrap_or(month);
        let row = self.row(&run.keys.cluster, key, &run.currency);
        row.charged_seconds += seconds;
        *match run.class {
            Class::Completed => &mut row.completed_micros,
            Class::NotCompleted | Class::Open => &mut row.not_completed_micros,
        } += RunsCost::of(Some(cost));
        row.unused_micros = row.unused_micros + unused;
        for kind in LOST_KINDS.into_iter().filter(|kind| *kind == run.lost) {
            row.add_lost(kind, cost);
        }
    }

    fn add_open(
        &mut self,
        open: &OpenRun,
        month: &str,
        book: Option<&PriceBook>,
        cost: Option<(Micros, u64)>,
    ) {
        let key = open.keys.of(self.by, &open.job.display_id).unwrap_or(month);
        let currency = book.map_or("", |book| book.currency.as_str());
        let row = self.row(&open.keys.cluster, key, currency);
        row.open_micros += RunsCost::of(cost.map(|(cost, _)| cost));
        row.charged_seconds += cost.map_or(0, |(_, seconds)| seconds);
    }

    fn report(self, attribution: Attribution, now: DateTime<Utc>) -> CostReport {
        let mut rows: Vec<CostReportRow> = self.rows.into_values().collect();
        for row in &mut rows {
            row.total_micros = row.completed_micros + row.not_completed_micros + row.open_micros;
            row.runs = row.total_micros.runs();
            row.open_runs = row.open_micros.runs();
            row.unpriced_runs = row.total_micros.unpriced;
        }
        CostReport {
            by: self.by,
            attribution,
            as_of: now,
            rows,
        }
    }
}

fn row_of_person<'a>(
    rows: &'a mut BTreeMap<(String, String, String), CostReportRow>,
    person: Person,
    currency: &str,
) -> &'a mut CostReportRow {
    let row = row(rows, "", &person.key, currency);
    row.name = person.display_name;
    row
}

fn row<'a>(
    rows: &'a mut BTreeMap<(String, String, String), CostReportRow>,
    cluster: &str,
    key: &str,
    currency: &str,
) -> &'a mut CostReportRow {
    let place = (cluster.to_owned(), key.to_owned(), currency.to_owned());
    rows.entry(place)
        .or_insert_with_key(|(cluster, key, currency)| CostReportRow {
            cluster: cluster.clone(),
            key: key.clone(),
            currency: currency.clone(),
            ..CostReportRow::default()
        })
}
