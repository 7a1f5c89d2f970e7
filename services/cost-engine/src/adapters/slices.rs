//! Queries for costs by slice: final costs wholly within a slice are summed by the database, those of runs that its bounds cut are
//! returned one by one.

use std::collections::HashMap;
use std::sync::Arc;

use mesh_db::pool::{Access, Transaction as Snapshot};
use mesh_db::sql::{Row, Sql};
use num_traits::Zero as _;

use super::queries::{CostGroup, CostSum, Filter, filtered, read_sum, run_of, sums};
use super::runs::{book_text, history};
use super::{RunKeys, Store};
use crate::domain::money::{integer, ratio, round_half_even};
use crate::domain::{Class, CostCurve, Exact, Interval, Micros, PriceError};
use crate::error::Error;
use crate::price_book::PriceBook;
use crate::usage::RunHistory;

/// Final cost of a run that lies partly in a slice.
#[derive(Clone, Debug)]
pub struct CutRun {
    /// What reports and budgets group it by.
    pub keys: RunKeys,
    /// Entity key of the run.
    pub run: String,
    /// Job id in Slurm's form.
    pub display_id: String,
    /// Class of the cost.
    pub class: Class,
    /// Currency.
    pub currency: String,
    /// Cost after all adjustments.
    pub current: Micros,
    /// Label of the price book.
    pub price_book: String,
    /// Start in Unix seconds.
    pub started: i64,
    /// End in Unix seconds.
    pub ended: i64,
    /// Why the cost is lost. Empty if it is not.
    pub lost: String,
    /// Cost of what was held and not used. Zero if not known.
    pub unused: Micros,
    /// What the cost was computed from.
    pub history: RunHistory,
}

impl CutRun {
    /// The part of the cost within a slice. The parts of all slices add up to the cost. A run without a curve counts where it ended.
    ///
    /// # Errors
    /// If an amount does not fit 64 bits.
    pub fn part(
        &self,
        curve: Option<&CostCurve>,
        (from, to): Interval,
    ) -> Result<Micros, PriceError> {
        let until = |time: i64| match curve {
            _ if time >= self.ended => Ok(self.current),
            Some(curve) if time > self.started => curve.until(time),
            Some(_) | None => Ok(Micros::ZERO),
        };
        Ok(until(to)?.saturating_sub(until(from)?))
    }

    /// The unused part of the cost within a slice: in proportion to the cost until its bounds, so that the parts of all slices add up.
    ///
    /// # Errors
    /// As [`CutRun::part`].
    pub fn unused_part(
        &self,
        curve: Option<&CostCurve>,
        (from, to): Interval,
    ) -> Result<Micros, PriceError> {
        let until = |time: i64| {
            let spent = self.part(curve, (i64::MIN, time))?;
            let share = ratio(spent.0, self.current.0).unwrap_or_else(Exact::zero);
            round_half_even(&(share * integer(self.unused.0)))
        };
        Ok(until(to)?.saturating_sub(until(from)?))
    }

    /// Charged seconds within a slice.
    pub fn seconds(&self, (from, to): Interval) -> u64 {
        let (from, to) = (self.started.max(from), self.ended.min(to));
        u64::try_from(to.saturating_sub(from)).unwrap_or_default()
    }
}

impl Store {
    /// Sums of final costs of runs that started and ended within the slice. `since` and `until` of the filter are ignored.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn sums_within(
        &self,
        by: CostGroup,
        filter: &Filter,
        slice: Interval,
    ) -> Result<Vec<CostSum>, Error> {
        const ACTION: &str = "sum costs";
        let sql = within(sums(by, filter), slice);
        let rows = self.database.rows(ACTION, &by.grouped(sql)).await?;
        let sums: Result<_, sqlx::Error> = rows.iter().map(read_sum).collect();
        sums.map_err(Error::database(ACTION))
    }

    /// Start of the first run that has a final cost, in Unix seconds.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn first_start(&self, filter: &Filter) -> Result<Option<i64>, Error> {
        const ACTION: &str = "read first cost";
        let sql = Sql::new(
            "SELECT MIN(at - charged_seconds) AS started FROM costs WHERE kind = 'finalized'",
        );
        let rows = self.database.rows(ACTION, &filtered(sql, filter)).await?;
        let read = |row: &Row| row.get::<Option<i64>>("started");
        let started = rows.first().map(read).transpose();
        Ok(started.map_err(Error::database(ACTION))?.flatten())
    }

    /// Final costs of runs that a bound of the slice cuts. `since` and `until` of the filter are ignored.
    ///
    /// # Errors
    /// If the database refuses, or a stored job cannot be decoded.
    pub async fn cut_runs(&self, filter: &Filter, slice: Interval) -> Result<Vec<CutRun>, Error> {
        const ACTION: &str = "read costs of a slice";
        let mut reader = self.database.reader(ACTION).await?;
        let snapshot = reader.begin(Access::Snapshot).await;
        read_cut_runs(
            &mut snapshot.map_err(Error::database(ACTION))?,
            filter,
            slice,
        )
        .await
    }

    /// All final costs of runs that lie at least partly in the slice. `since` and `until` of the filter are ignored.
    ///
    /// # Errors
    /// As [`Store::cut_runs`].
    pub async fn runs_in(&self, filter: &Filter, slice: Interval) -> Result<Vec<CutRun>, Error> {
        const ACTION: &str = "read runs of a period";
        let mut reader = self.database.reader(ACTION).await?;
        let snapshot = reader.begin(Access::Snapshot).await;
        let mut snapshot = snapshot.map_err(Error::database(ACTION))?;
        read_runs(&mut snapshot, filter, slice, overlapping).await
    }
}

/// Final costs of runs that a bound of the slice cuts, as of a snapshot.
pub(super) async fn read_cut_runs(
    snapshot: &mut Snapshot<'_>,
    filter: &Filter,
    slice: Interval,
) -> Result<Vec<CutRun>, Error> {
    read_runs(snapshot, filter, slice, cut).await
}

async fn read_runs(
    snapshot: &mut Snapshot<'_>,
    filter: &Filter,
    slice: Interval,
    selected: fn(Sql, Interval) -> Sql,
) -> Result<Vec<CutRun>, Error> {
    const ACTION: &str = "read costs of a slice";
    let costs = Sql::new(
            "SELECT cluster, run, display_id, user_name, account, partition_name, qos, tags, class, currency, current_micros,
                    charged_seconds, price_book, at, lost, unused_micros
             FROM costs WHERE current_micros IS NOT NULL AND kind = 'finalized'",
        );
    let costs = selected(filtered(costs, filter), slice).push(" ORDER BY cluster, run");
    let of_costs = |sql: Sql, table: &'static str| {
        let sql = sql
            .push(" WHERE EXISTS (SELECT 1 FROM costs WHERE costs.cluster = ")
            .push(table)
            .push(".cluster AND costs.run = ")
            .push(table)
            .push(".run AND kind = 'finalized'");
        selected(sql, slice).push(")")
    };
    let runs = of_costs(
        Sql::new("SELECT cluster, run, account, start_job, end_job, ended_at FROM runs"),
        "runs",
    );
    let marks = of_costs(
        Sql::new("SELECT cluster, run, kind, at, job FROM marks"),
        "marks",
    )
    .push(" ORDER BY marks.at");
    let (costs, runs, marks) = async {
        let costs = snapshot.conn().rows(&costs).await?;
        if costs.is_empty() {
            return Ok((costs, Vec::new(), Vec::new()));
        }
        let runs = snapshot.conn().rows(&runs).await?;
        Ok((costs, runs, snapshot.conn().rows(&marks).await?))
    }
    .await
    .map_err(Error::database(ACTION))?;
    let mut runs_of: HashMap<(String, String), Row> = HashMap::new();
    for row in runs {
        runs_of.insert(run_of(&row).map_err(Error::database(ACTION))?, row);
    }
    let mut marks_of: HashMap<(String, String), Vec<Row>> = HashMap::new();
    for mark in marks {
        let run = run_of(&mark).map_err(Error::database(ACTION))?;
        marks_of.entry(run).or_default().push(mark);
    }
    costs
        .iter()
        .map(|row| {
            let key = run_of(row).map_err(Error::database(ACTION))?;
            let marks = marks_of.remove(&key).unwrap_or_default();
            let history = history(&key.1, runs_of.get(&key), &marks)?;
            read_cut_run(row, history).map_err(Error::database(ACTION))
        })
        .collect()
}

fn read_cut_run(row: &Row, history: RunHistory) -> Result<CutRun, sqlx::Error> {
    let (ended, seconds): (i64, i64) = (row.get("at")?, row.get("charged_seconds")?);
    Ok(CutRun {
        keys: RunKeys {
            cluster: row.get("cluster")?,
            user: row.get("user_name")?,
            account: row.get("account")?,
            partition: row.get("partition_name")?,
            qos: row.get("qos")?,
            tags: row.get("tags")?,
        },
        run: row.get("run")?,
        display_id: row.get("display_id")?,
        class: Class::of_final(&row.get::<String>("class")?),
        currency: row.get("currency")?,
        current: Micros(row.get("current_micros")?),
        price_book: row.get("price_book")?,
        started: ended - seconds,
        ended,
        lost: row.get("lost")?,
        unused: Micros(row.get::<Option<i64>>("unused_micros")?.unwrap_or_default()),
        history,
    })
}

/// Only runs that started and ended within the slice.
pub(super) fn within(sql: Sql, (from, to): Interval) -> Sql {
    sql.push(" AND costs.at >= ")
        .bind(from)
        .push(" AND costs.at <= ")
        .bind(to)
        .push(" AND costs.at - charged_seconds >= ")
        .bind(from)
        .push(" AND costs.at - charged_seconds < ")
        .bind(to)
}

/// Only runs that are at least partly within the slice.
fn overlapping(sql: Sql, (from, to): Interval) -> Sql {
    sql.push(" AND costs.at > ")
        .bind(from)
        .push(" AND costs.at - charged_seconds < ")
        .bind(to)
}

/// Only runs that are partly within the slice and partly outside.
fn cut(sql: Sql, (from, to): Interval) -> Sql {
    overlapping(sql, (from, to))
        .push(" AND (costs.at - charged_seconds < ")
        .bind(from)
        .push(" OR costs.at > ")
        .bind(to)
        .push(")")
}

/// Price books by their labels, each read from the database once.
pub struct PriceBooks {
    store: Store,
    known: HashMap<String, Option<Arc<PriceBook>>>,
}

impl PriceBooks {
    /// Reads from this database.
    pub fn of(store: &Store) -> Self {
        Self {
            store: store.clone(),
            known: HashMap::new(),
        }
    }

    /// The book of this label. `None` if it was never stored.
    ///
    /// # Errors
    /// If the database refuses, or a stored book cannot be read.
    pub async fn get(&mut self, label: &str) -> Result<Option<Arc<PriceBook>>, Error> {
        if let Some(known) = self.known.get(label) {
            return Ok(known.clone());
        }
        const ACTION: &str = "read price book";
        let rows = self.store.database.rows(ACTION, &book_text(label)).await?;
        let text = rows.first().map(|row| row.get::<Option<String>>("content"));
        let text = text.transpose().map_err(Error::database(ACTION))?.flatten();
        let book = text
            .map(|text| PriceBook::parse(&text, label))
            .transpose()?;
        let book = book.map(Arc::new);
        self.known.insert(label.to_owned(), book.clone());
        Ok(book)
    }

    /// Cost over time of a run that has ended. `None` if its price book or its history is not stored.
    ///
    /// # Errors
    /// As [`PriceBooks::get`].
    pub async fn curve(&mut self, run: &CutRun) -> Result<Option<CostCurve>, Error> {
        let (Some((_, record)), Some(book)) = (&run.history.end, self.get(&run.price_book).await?)
        else {
            return Ok(None);
        };
        Ok(crate::costing::curve(&book, &run.history, record, run.ended).ok())
    }
}
