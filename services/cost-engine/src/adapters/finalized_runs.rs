//! Runs with their final costs, one by one.

use std::collections::HashMap;
use std::sync::Arc;

use mesh_db::pool::{Access, Transaction as Snapshot};
use mesh_db::sql::{Row, Sql};
use num_traits::Zero as _;

use super::queries::{Filter, filtered, run_of};
use super::runs::history;
use super::{PriceBooks, RunKeys, Store};
use crate::costing;
use crate::domain::money::{integer, ratio, round_half_even};
use crate::domain::{Class, CostCurve, Exact, Interval, Micros, PriceError};
use crate::error::Error;
use crate::price_book::PriceBook;
use crate::usage::RunHistory;

/// A run with its final cost.
#[derive(Clone, Debug)]
pub struct FinalizedRun {
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

impl FinalizedRun {
    /// Cost over time. `None` if the history is not stored, or the book has no price for it.
    pub fn curve(&self, book: &PriceBook) -> Option<CostCurve> {
        let (_, record) = self.history.end.as_ref()?;
        costing::curve(book, &self.history, record, self.ended).ok()
    }

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
    /// As [`FinalizedRun::part`].
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

impl PriceBooks {
    /// Cost over time of a run that has ended. `None` if its price book or its history is not stored.
    ///
    /// # Errors
    /// As [`PriceBooks::get`].
    pub async fn curve(&mut self, run: &FinalizedRun) -> Result<Option<CostCurve>, Error> {
        let book = self.get(&run.price_book).await?;
        Ok(book.and_then(|book| run.curve(&book)))
    }
}

/// Runs per page.
const PAGE_RUNS: u32 = 2000;

/// The final costs of runs that lie at least partly in a slice, without runs that have no price, page by page.
pub struct FinalizedRuns {
    store: Store,
    filter: Filter,
    slice: Interval,
    books: PriceBooks,
    /// Cluster and run of the last row. `None` before the first page.
    last: Option<(String, String)>,
    is_done: bool,
}

impl FinalizedRuns {
    /// Begins with the first run. `since` and `until` of the filter are ignored.
    pub fn new(store: &Store, filter: &Filter, slice: Interval) -> Self {
        Self {
            store: store.clone(),
            filter: filter.clone(),
            slice,
            books: PriceBooks::of(store),
            last: None,
            is_done: false,
        }
    }

    /// The next page, each run with its price book if that is stored. `None` after the last page.
    ///
    /// # Errors
    /// If the database refuses, or a stored job or book cannot be read.
    pub async fn next(
        &mut self,
    ) -> Result<Option<Vec<(FinalizedRun, Option<Arc<PriceBook>>)>>, Error> {
        if self.is_done {
            return Ok(None);
        }
        const ACTION: &str = "read runs of a period";
        let sql = priced(finalized().push(" FROM costs"), &self.filter);
        let mut sql = overlapping(sql, self.slice);
        if let Some((cluster, run)) = &self.last {
            let key = [cluster.into(), run.into()];
            sql = sql.push(" AND (cluster, run) > (").list(key).push(")");
        }
        let sql = sql
            .push(" ORDER BY cluster, run LIMIT ")
            .bind(i64::from(PAGE_RUNS));
        let mut reader = self.store.database.reader(ACTION).await?;
        let snapshot = reader.begin(Access::Snapshot).await;
        let mut snapshot = snapshot.map_err(Error::database(ACTION))?;
        let runs = read_runs(&mut snapshot, sql).await?;
        drop(snapshot);
        drop(reader);
        self.is_done = runs.len() < usize::try_from(PAGE_RUNS).unwrap_or(usize::MAX);
        let last = runs.last();
        self.last = last.map(|run| (run.keys.cluster.clone(), run.run.clone()));
        let mut page = Vec::with_capacity(runs.len());
        for run in runs {
            let book = self.books.get(&run.price_book).await?;
            page.push((run, book));
        }
        Ok(Some(page))
    }
}

impl Store {
    /// Number of ended runs without a price that lie at least partly in the slice. `since` and `until` of the filter are ignored.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn unpriced_runs_in(&self, filter: &Filter, slice: Interval) -> Result<u64, Error> {
        const ACTION: &str = "count runs without a price";
        let sql = Sql::new(
            "SELECT COUNT(*) AS runs FROM costs WHERE current_micros IS NULL AND kind = 'finalized'",
        );
        let sql = overlapping(filtered(sql, filter), slice);
        let rows = self.database.rows(ACTION, &sql).await?;
        let runs = rows.first().map(|row| row.get::<i64>("runs")).transpose();
        let runs = runs.map_err(Error::database(ACTION))?;
        Ok(runs.unwrap_or_default().unsigned_abs())
    }
}

/// The columns of a finalized run.
pub(super) fn finalized() -> Sql {
    Sql::new(
        "SELECT cluster, run, display_id, user_name, account, partition_name, qos, tags, class, currency, current_micros,
                charged_seconds, price_book, at, lost, unused_micros",
    )
}

pub(super) fn priced(sql: Sql, filter: &Filter) -> Sql {
    let sql = sql.push(" WHERE current_micros IS NOT NULL AND kind = 'finalized'");
    filtered(sql, filter)
}

/// Most runs whose histories are read by one query.
const RUNS_PER_QUERY: usize = 1000;

/// The runs that a query selects, with their histories.
pub(super) async fn read_runs(
    snapshot: &mut Snapshot<'_>,
    sql: Sql,
) -> Result<Vec<FinalizedRun>, Error> {
    const ACTION: &str = "read costs of runs";
    let costs = snapshot.conn().rows(&sql).await;
    let costs = costs.map_err(Error::database(ACTION))?;
    let mut keys_of: HashMap<String, Vec<String>> = HashMap::new();
    for row in &costs {
        let (cluster, run) = run_of(row).map_err(Error::database(ACTION))?;
        keys_of.entry(cluster).or_default().push(run);
    }
    let mut runs_of: HashMap<(String, String), Row> = HashMap::new();
    let mut marks_of: HashMap<(String, String), Vec<Row>> = HashMap::new();
    for (cluster, keys) in &keys_of {
        for keys in keys.chunks(RUNS_PER_QUERY) {
            let of_keys = |text: &'static str| {
                let sql = Sql::new(text).push(" WHERE cluster = ").bind(cluster);
                sql.push(" AND run").any_of(keys.to_vec())
            };
            let runs =
                of_keys("SELECT cluster, run, account, start_job, end_job, ended_at FROM runs");
            let marks =
                of_keys("SELECT cluster, run, kind, at, job FROM marks").push(" ORDER BY at");
            let runs = snapshot.conn().rows(&runs).await;
            for row in runs.map_err(Error::database(ACTION))? {
                runs_of.insert(run_of(&row).map_err(Error::database(ACTION))?, row);
            }
            let marks = snapshot.conn().rows(&marks).await;
            for mark in marks.map_err(Error::database(ACTION))? {
                let run = run_of(&mark).map_err(Error::database(ACTION))?;
                marks_of.entry(run).or_default().push(mark);
            }
        }
    }
    costs
        .iter()
        .map(|row| {
            let key = run_of(row).map_err(Error::database(ACTION))?;
            let marks = marks_of.remove(&key).unwrap_or_default();
            let history = history(&key.1, runs_of.get(&key), &marks)?;
            read_finalized_run(row, history).map_err(Error::database(ACTION))
        })
        .collect()
}

fn read_finalized_run(row: &Row, history: RunHistory) -> Result<FinalizedRun, sqlx::Error> {
    let (ended, seconds): (i64, i64) = (row.get("at")?, row.get("charged_seconds")?);
    Ok(FinalizedRun {
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

/// Only runs that are at least partly within the slice.
pub(super) fn overlapping(sql: Sql, (from, to): Interval) -> Sql {
    sql.push(" AND costs.at > ")
        .bind(from)
        .push(" AND costs.at - charged_seconds < ")
        .bind(to)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use mesh_db::Location;
    use mesh_testkit::Postgres;

    use super::*;
    use crate::adapters::CostGroup;

    const RUNS: usize = 2 * PAGE_RUNS as usize + 500;

    /// Runs of an hour, the n-th from second n.
    const INSERT: &str = "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 4500)
         INSERT INTO costs (cluster, run, kind, event_id, cause_id, display_id, user_name, account, partition_name, class, currency,
                            total_micros, current_micros, charged_seconds, price_book, problem, at, month)
         SELECT 'c', 'job/' || n, 'finalized', 'event ' || n, '', '', 'alice', '', '', 'completed', 'EUR', 3600, 3600, 3600, '', '', n + 3600, ''
         FROM numbers";

    async fn filled(location: &Location) -> Store {
        let store = Store::open(location).await.unwrap();
        let insert = store.database.change("fill", Sql::new(INSERT), Vec::new());
        assert!(insert.await.unwrap());
        store
    }

    async fn check(store: &Store) {
        let mut pages = FinalizedRuns::new(store, &Filter::all(), (0, i64::MAX));
        let (mut found, mut count) = (BTreeSet::new(), 0);
        while let Some(page) = pages.next().await.unwrap() {
            count += page.len();
            found.extend(page.into_iter().map(|(run, _)| run.run));
        }
        assert_eq!((found.len(), count), (RUNS, RUNS));
        // Slices of 2000 s: a run lies in one, or a bound cuts it.
        let slices: Vec<Interval> = (0..4).map(|n| (n * 2000, (n + 1) * 2000)).collect();
        let of = |slices| {
            let filter = Filter::all();
            async move {
                store
                    .slice_costs(CostGroup::User, &filter, slices)
                    .await
                    .unwrap()
            }
        };
        let costs = of(&slices[..]).await;
        assert_eq!((costs.sums.len(), costs.cut.len()), (0, RUNS));
        // Of 4000 s: those that begin until 400 s or from 4000 s to 4400 s lie within one.
        let slices = [(0, 4000), (4000, 8000)];
        let costs = of(&slices[..]).await;
        let sums: Vec<_> = costs
            .sums
            .iter()
            .map(|(slice, sum)| (*slice, sum.completed.runs()))
            .collect();
        assert_eq!(sums, [(0, 400), (1, 401)]);
        assert_eq!(costs.cut.len(), RUNS - 801);
        assert_eq!(of(&[][..]).await.cut.len(), 0);
    }

    #[tokio::test]
    async fn pages_and_slices_have_every_run_once_on_sqlite() {
        let folder = tempfile::tempdir().unwrap();
        check(&filled(&Location::Sqlite(folder.path().join("costs.db"))).await).await;
    }

    #[tokio::test]
    async fn pages_and_slices_have_every_run_once_on_postgres() {
        let url = Postgres::shared().await.create_database();
        let location = Location::parse(&url, std::path::Path::new("")).unwrap();
        check(&filled(&location).await).await;
    }
}
