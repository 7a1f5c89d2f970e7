//! What budgets are evaluated from, and what was published of them.

use std::collections::{BTreeSet, HashMap};

use mesh_db::pool::{Access, Conn, Transaction as Snapshot};
use mesh_db::sql::{Row, Sql};

use super::open_runs::read_open_runs;
use super::pending_runs::read_pending_runs;
use super::people::read_people;
use super::queries::Filter;
use super::slices::{read_cut_runs, within};
use super::{FinalizedRun, OpenRun, PendingRun, People, RunKeys, Store, Transaction};
use crate::budgets::crossing::PublishedState;
use crate::domain::{Interval, Micros, RunsCost};
use crate::error::Error;

/// Costs and states as of one snapshot of the database.
#[derive(Debug, Default)]
pub struct BudgetFacts {
    /// Running jobs.
    pub open: Vec<OpenRun>,
    /// Final costs in each period, in the order of the periods.
    pub periods: Vec<PeriodCosts>,
    /// The people behind Unix users.
    pub people: People,
    /// What is published.
    pub states: Vec<BudgetState>,
    /// Pending runs.
    pub pending: Vec<PendingRun>,
}

impl BudgetFacts {
    /// The clusters of all of these costs.
    pub fn clusters(&self) -> BTreeSet<&str> {
        let open = self.open.iter().map(|run| &run.keys);
        let pending = self.pending.iter().map(|run| &run.keys);
        let ended = self.periods.iter().flat_map(|period| {
            let sums = period.sums.iter().map(|(keys, _)| keys);
            sums.chain(period.cut.iter().map(|run| &run.keys))
        });
        let keys = open.chain(pending).chain(ended);
        keys.map(|keys| keys.cluster.as_str()).collect()
    }
}

/// Final costs in a period.
#[derive(Debug, Default)]
pub struct PeriodCosts {
    /// Sums of runs wholly within the period.
    pub sums: Vec<(RunKeys, RunsCost)>,
    /// Runs that a bound of the period cuts.
    pub cut: Vec<FinalizedRun>,
}

/// What is published of a budget in a period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetState {
    /// Name of the budget.
    pub budget: String,
    /// Name of the period.
    pub period: String,
    /// Start of the period in Unix seconds; 0 for rolling periods.
    pub starts_at: i64,
    /// The state.
    pub published: PublishedState,
    /// Number of published events.
    pub events: u64,
}

impl Store {
    /// Reads what budgets are evaluated from.
    ///
    /// # Errors
    /// If the database refuses, or a stored job cannot be decoded.
    pub async fn budget_facts(
        &self,
        currency: &str,
        periods: &[Interval],
    ) -> Result<BudgetFacts, Error> {
        const ACTION: &str = "read costs for budgets";
        let mut reader = self.database.reader(ACTION).await?;
        let snapshot = reader.begin(Access::Snapshot).await;
        let mut snapshot = snapshot.map_err(Error::database(ACTION))?;
        let all = Filter::all();
        let mut facts = BudgetFacts {
            open: read_open_runs(&mut snapshot, &all).await?,
            pending: read_pending_runs(&mut snapshot).await?,
            people: read_people(&mut snapshot).await?,
            states: states(snapshot.conn(), None).await?,
            ..BudgetFacts::default()
        };
        for period in periods {
            let sums = sums_by_keys(&mut snapshot, currency, *period).await;
            let mut cut = read_cut_runs(&mut snapshot, &all, &[*period]).await?;
            cut.retain(|run| run.currency == currency);
            facts.periods.push(PeriodCosts {
                sums: sums.map_err(Error::database(ACTION))?,
                cut,
            });
        }
        Ok(facts)
    }

    /// Names of all accounts that ever had a run.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn accounts(&self) -> Result<BTreeSet<String>, Error> {
        const ACTION: &str = "read accounts";
        let sql = Sql::new("SELECT DISTINCT account FROM runs");
        let rows = self.database.rows(ACTION, &sql).await?;
        let accounts: Result<_, sqlx::Error> = rows.iter().map(|row| row.get("account")).collect();
        accounts.map_err(Error::database(ACTION))
    }
}

async fn sums_by_keys(
    snapshot: &mut Snapshot<'_>,
    currency: &str,
    period: Interval,
) -> Result<Vec<(RunKeys, RunsCost)>, sqlx::Error> {
    let sql = Sql::new(
        "SELECT cluster, user_name, account, partition_name, qos, tags, CAST(SUM(COALESCE(current_micros, 0)) AS BIGINT) AS settled,
                COUNT(current_micros) AS priced, COUNT(*) - COUNT(current_micros) AS unpriced
         FROM costs WHERE kind = 'finalized' AND currency = ",
    )
    .bind(currency);
    let sql = within(sql, period)
        .push(" GROUP BY cluster, user_name, account, partition_name, qos, tags");
    let read = |row: &Row| {
        let keys = RunKeys {
            cluster: row.get("cluster")?,
            user: row.get("user_name")?,
            account: row.get("account")?,
            partition: row.get("partition_name")?,
            qos: row.get("qos")?,
            tags: row.get("tags")?,
        };
        let count = |column: &str| row.get::<i64>(column).map(i64::unsigned_abs);
        let settled = RunsCost {
            known: Micros(row.get("settled")?),
            priced: count("priced")?,
            unpriced: count("unpriced")?,
        };
        Ok((keys, settled))
    };
    let rows = snapshot.conn().rows(&sql).await?;
    rows.iter().map(read).collect()
}

/// The states of all budgets, or of some.
async fn states(
    connection: Conn<'_>,
    budgets: Option<Vec<String>>,
) -> Result<Vec<BudgetState>, Error> {
    let sql = Sql::new(
        "SELECT budget, period, starts_at, threshold, forecast, crossing, events FROM budget_states",
    );
    let sql = match budgets {
        Some(names) => sql.push(" WHERE budget").any_of(names),
        None => sql,
    };
    let read = |row: &Row| {
        let number = |column| Ok::<u64, sqlx::Error>(row.get::<i64>(column)?.unsigned_abs());
        Ok(BudgetState {
            budget: row.get("budget")?,
            period: row.get("period")?,
            starts_at: row.get("starts_at")?,
            published: PublishedState {
                threshold: u32::try_from(number("threshold")?).unwrap_or(u32::MAX),
                forecast: number("forecast")? > 0,
                crossing: number("crossing")?,
            },
            events: number("events")?,
        })
    };
    let states: Result<_, sqlx::Error> = match connection.rows(&sql).await {
        Ok(rows) => rows.iter().map(read).collect(),
        Err(error) => Err(error),
    };
    states.map_err(Error::database("read budgets"))
}

impl Transaction {
    /// Locks budgets against other processes until the end of the transaction, and reads their states.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn lock_budgets(
        &mut self,
        names: Vec<String>,
    ) -> Result<HashMap<String, Vec<BudgetState>>, Error> {
        // Not the name of any cluster, so no run has these keys.
        let keys: Vec<_> = names
            .iter()
            .map(|name| ("budget/".to_owned(), name.clone()))
            .collect();
        self.lock(&keys).await?;
        let mut by_name: HashMap<String, Vec<BudgetState>> = HashMap::new();
        for state in states(self.conn(), Some(names)).await? {
            by_name.entry(state.budget.clone()).or_default().push(state);
        }
        Ok(by_name)
    }

    /// Stores what is published of a budget.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn store_budget_state(&mut self, state: &BudgetState) -> Result<(), Error> {
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let sql = Sql::new(
            "INSERT INTO budget_states (budget, period, starts_at, threshold, forecast, crossing, events) VALUES (",
        )
        .list([
            (&state.budget).into(),
            (&state.period).into(),
            state.starts_at.into(),
            i64::from(state.published.threshold).into(),
            i64::from(state.published.forecast).into(),
            number(state.published.crossing).into(),
            number(state.events).into(),
        ])
        .push(
            ") ON CONFLICT (budget, period) DO UPDATE SET starts_at = excluded.starts_at, threshold = excluded.threshold, forecast = excluded.forecast,
               crossing = excluded.crossing, events = excluded.events",
        );
        self.run("store budget", &sql).await.map(drop)
    }
}
