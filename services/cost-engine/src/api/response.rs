//! Builds the responses from rows and open runs. Pure except [`Slices`]: the time is an argument.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Serialize, Serializer};

use crate::adapters::{
    CostGroup, CostSum, Filter, FinalizedRun, OpenRun, People, Person, PriceBooks, SliceCosts,
    Store,
};
use crate::costing;
use crate::domain::calendar_period::Period;
use crate::domain::suspension;
use crate::domain::waste::LOST_KINDS;
use crate::domain::{Class, CostCurve, Interval, Micros, PriceError};
use crate::error::Error;
use crate::price_book::PriceBook;
use crate::spending::{PersonSpending, PersonalAmount};

/// Running jobs and their costs.
#[derive(Clone, Debug, Serialize)]
pub struct LiveCosts {
    /// Name and version of the price book; absent without one.
    pub price_book: Option<String>,
    /// Currency of every amount; absent without a price book.
    pub currency: Option<String>,
    /// End of the time covered by `accrued_micros`.
    pub as_of: DateTime<Utc>,
    /// Sum of the jobs' burn rates.
    #[serde(serialize_with = "amount_text")]
    pub burn_rate_micros: Micros,
    /// Sum of the jobs' costs so far.
    #[serde(serialize_with = "amount_text")]
    pub accrued_micros: Micros,
    /// Running jobs.
    pub jobs: Vec<LiveJob>,
}

/// A running job.
#[derive(Clone, Debug, Serialize)]
pub struct LiveJob {
    /// Cluster of the job.
    pub cluster: String,
    /// Job id in Slurm's form.
    pub job: String,
    /// Entity key of the run.
    pub run: String,
    /// Job name.
    pub name: String,
    /// Unix user name of the owner.
    pub user: String,
    /// Account.
    pub account: String,
    /// Partition.
    pub partition: String,
    /// Nodes as a host list.
    pub nodes: String,
    /// Start in Unix seconds.
    pub started: i64,
    /// True while the job is suspended.
    pub suspended: bool,
    /// Cost per hour at its start; absent without a price.
    #[serde(serialize_with = "optional_text")]
    pub burn_rate_micros: Option<Micros>,
    /// Cost so far; absent without a price.
    #[serde(serialize_with = "optional_text")]
    pub accrued_micros: Option<Micros>,
    /// Estimated cost at the time limit; absent without a price or a limit.
    #[serde(serialize_with = "optional_text")]
    pub estimated_micros: Option<Micros>,
    /// Why there is no price. Empty if there is one.
    pub problem: String,
}

/// How a run is assigned to a period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Attribution {
    /// With its whole cost, by its end.
    #[default]
    End,
    /// With the part of its cost that lies in the period.
    Slice,
}

/// Costs in a period.
#[derive(Clone, Debug, Serialize)]
pub struct CostReport {
    /// Grouping of the rows.
    pub by: CostGroup,
    /// How runs are assigned to the period.
    pub attribution: Attribution,
    /// Time up to which open runs are charged.
    pub as_of: DateTime<Utc>,
    /// Sums, by cluster, key and currency.
    pub rows: Vec<CostReportRow>,
}

/// Sum for one cluster, key and currency.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CostReportRow {
    /// Cluster. Empty in a report by identity, which sums over clusters.
    pub cluster: String,
    /// Value of the grouping: user, account, month, job, partition or QOS. In a report by identity `<issuer>#<subject>`, or
    /// `unix:<user>@<cluster>` for users whose identity is not known.
    pub key: String,
    /// In a report by identity: e-mail address or name of the person. Absent if not known.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Currency. Empty for open runs while there is no price book.
    pub currency: String,
    /// Number of runs, including open ones.
    pub runs: u64,
    /// Number of runs that have not ended.
    pub open_runs: u64,
    /// Number of runs without a price, whose cost is missing in the amounts.
    pub unpriced_runs: u64,
    /// Cost of runs that ended COMPLETED.
    #[serde(serialize_with = "amount_text")]
    pub completed_micros: Micros,
    /// Cost of runs that ended otherwise.
    #[serde(serialize_with = "amount_text")]
    pub not_completed_micros: Micros,
    /// Part of the two amounts above that adjustments added after the final costs. Negative if they lowered them. By slice, without runs
    /// that a bound of the slice cuts.
    #[serde(serialize_with = "amount_text")]
    pub adjustments_micros: Micros,
    /// Cost so far of runs that have not ended.
    #[serde(serialize_with = "amount_text")]
    pub open_micros: Micros,
    /// Sum of `completed_micros`, `not_completed_micros` and `open_micros`.
    #[serde(serialize_with = "amount_text")]
    pub total_micros: Micros,
    /// Charged seconds, summed over the runs.
    pub charged_seconds: u64,
    /// Part of `completed_micros` for resources that were held and not used, of runs whose use is known. Absent if there is none.
    #[serde(serialize_with = "amount_text", skip_serializing_if = "is_nothing")]
    pub unused_micros: Micros,
    /// Parts of `not_completed_micros`, by what ended the runs: `cancelled`, `failed`, `node_fail`, `oom`, `preempted`, `requeued`,
    /// `timeout`. Absent if there is none.
    #[serde(
        serialize_with = "amount_texts",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub lost_micros: BTreeMap<&'static str, Micros>,
}

/// What a person's own jobs cost since a time. A run counts with the part of its cost since then.
#[derive(Clone, Debug, Serialize)]
pub struct PersonalCosts {
    /// Names of the person's Unix users, on all clusters.
    pub users: Vec<String>,
    /// Start of the period.
    pub since: DateTime<Utc>,
    /// Time up to which running jobs are charged.
    pub as_of: DateTime<Utc>,
    /// Amounts, one for each currency.
    pub amounts: Vec<PersonalAmount>,
    /// The same by person: the person that the caller is, and Unix users of the caller whose person is not known.
    pub people: Vec<PersonSpending>,
}

pub(crate) fn amount_text<S: Serializer>(
    amount: &Micros,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(amount)
}

fn is_nothing(amount: &Micros) -> bool {
    *amount == Micros::ZERO
}

pub(crate) fn amount_texts<S: Serializer>(
    amounts: &BTreeMap<&'static str, Micros>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(
        amounts
            .iter()
            .map(|(kind, amount)| (kind, amount.to_string())),
    )
}

fn optional_text<S: Serializer>(amount: &Option<Micros>, serializer: S) -> Result<S::Ok, S::Error> {
    match amount {
        Some(amount) => serializer.collect_str(amount),
        None => serializer.serialize_none(),
    }
}

pub(super) fn live(book: Option<&PriceBook>, runs: Vec<OpenRun>, now: DateTime<Utc>) -> LiveCosts {
    let jobs: Vec<LiveJob> = runs
        .into_iter()
        .map(|run| live_job(book, run, now))
        .collect();
    let sum = |amount: fn(&LiveJob) -> Option<Micros>| jobs.iter().filter_map(amount).sum();
    LiveCosts {
        price_book: book.map(PriceBook::label),
        currency: book.map(|book| book.currency.clone()),
        as_of: now,
        burn_rate_micros: sum(|job| job.burn_rate_micros),
        accrued_micros: sum(|job| job.accrued_micros),
        jobs,
    }
}

fn live_job(book: Option<&PriceBook>, open: OpenRun, now: DateTime<Utc>) -> LiveJob {
    let now = now.timestamp();
    let rate = book.map(|book| costing::rate(book, &open.job, &open.keys.account));
    let spent = book.map(|book| accrued(book, &open, now).map(|(cost, _)| cost));
    let problem = [
        rate.as_ref().and_then(|rate| rate.as_ref().err()),
        spent.as_ref().and_then(|spent| spent.as_ref().err()),
    ]
    .into_iter()
    .flatten()
    .next()
    .map_or_else(
        || {
            if book.is_none() {
                "price_missing: there is no price book".to_owned()
            } else {
                String::new()
            }
        },
        PriceError::problem,
    );
    let suspended = suspension::intervals(&open.history.marks, i64::MAX)
        .last()
        .is_some_and(|(_, to)| *to == i64::MAX);
    let rate = rate.and_then(Result::ok);
    LiveJob {
        cluster: open.keys.cluster,
        job: open.job.display_id,
        run: open.job.run,
        name: open.job.name,
        user: open.keys.user,
        account: open.keys.account,
        partition: open.job.partition,
        nodes: open
            .history
            .resizes
            .last()
            .map_or(open.job.nodes, |(_, job)| job.nodes.clone()),
        started: open
            .job
            .start_time
            .map(|time| time.seconds)
            .unwrap_or_default(),
        suspended,
        burn_rate_micros: rate.map(|rate| rate.burn),
        accrued_micros: spent.and_then(Result::ok),
        estimated_micros: rate.and_then(|rate| rate.estimate),
        problem,
    }
}

/// Cost so far, and its seconds.
fn accrued(book: &PriceBook, open: &OpenRun, now: i64) -> Result<(Micros, u64), PriceError> {
    let until = costing::accrued_until(&open.history, &open.job, now);
    costing::spent(book, &open.history, &open.job, until).map(|spent| (spent.cost, spent.seconds))
}

/// Report of runs by their end.
pub(super) fn spent(
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
        row.runs += sum.runs.unsigned_abs();
        row.unpriced_runs += sum.unpriced.unsigned_abs();
        row.completed_micros = row.completed_micros + Micros(sum.completed);
        row.not_completed_micros = row.not_completed_micros + Micros(sum.not_completed);
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
        row.runs += 1;
        row.charged_seconds += seconds;
        let sum = match run.class {
            Class::Completed => &mut row.completed_micros,
            Class::NotCompleted | Class::Open => &mut row.not_completed_micros,
        };
        *sum = *sum + cost;
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
        row.runs += 1;
        row.open_runs += 1;
        match cost {
            Some((cost, seconds)) => {
                row.open_micros = row.open_micros + cost;
                row.charged_seconds += seconds;
            }
            None => row.unpriced_runs += 1,
        }
    }

    fn report(self, attribution: Attribution, now: DateTime<Utc>) -> CostReport {
        let mut rows: Vec<CostReportRow> = self.rows.into_values().collect();
        for row in &mut rows {
            row.total_micros = row.completed_micros + row.not_completed_micros + row.open_micros;
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
