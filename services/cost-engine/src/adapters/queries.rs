//! Questions to the tables: sums of final costs, and the runs that still go on.

use mesh_events::proto::mesh::job::v1::Job;
use mesh_runtime::api::Sight;
use sqlx::{QueryBuilder, Sqlite};

use super::Store;
use super::sqlite::memory;
use crate::error::Error;
use crate::usage::Memory;

/// What sums are taken by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// Unix user.
    User,
    /// Slurm account.
    Account,
    /// Month of the end, UTC.
    Month,
    /// Job, all its runs.
    Job,
    /// Partition.
    Partition,
}

impl By {
    const fn column(self) -> &'static str {
        match self {
            Self::User => "user_name",
            Self::Account => "account",
            Self::Month => "month",
            Self::Job => "display_id",
            Self::Partition => "partition_name",
        }
    }
}

/// Which costs.
#[derive(Clone, Debug)]
pub struct Filter {
    /// Only what the caller may see.
    pub sight: Sight,
    /// Only this cluster.
    pub cluster: Option<String>,
    /// Only jobs of this user.
    pub user: Option<String>,
    /// Only runs that ended at or after this time, Unix seconds.
    pub since: Option<i64>,
    /// Only runs that ended before this time.
    pub until: Option<i64>,
}

/// Sums of final costs.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct SumRow {
    /// Cluster.
    pub cluster: String,
    /// User, account, month or job.
    pub key: String,
    /// Currency.
    pub currency: String,
    /// Runs.
    pub runs: i64,
    /// Runs without a price; they add nothing to the amounts.
    pub unpriced: i64,
    /// Of runs that ended COMPLETED.
    pub completed: i64,
    /// Of the others.
    pub not_completed: i64,
    /// Seconds that were charged.
    pub seconds: i64,
}

/// A run that has started and not ended.
#[derive(Clone, Debug)]
pub struct OpenRun {
    /// Cluster.
    pub cluster: String,
    /// Owner's Unix user name.
    pub user: String,
    /// Account.
    pub account: String,
    /// The job as its first event had it.
    pub job: Job,
    /// What happened since.
    pub memory: Memory,
}

impl Store {
    /// Sums of final costs, by cluster, key and currency.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn sums(&self, by: By, filter: &Filter) -> Result<Vec<SumRow>, Error> {
        let key = by.column();
        let mut query = QueryBuilder::<Sqlite>::new("SELECT cluster, ");
        query.push(key);
        query.push(
            " AS key, currency, COUNT(*) AS runs,
              CAST(SUM(CASE WHEN total_micros IS NULL THEN 1 ELSE 0 END) AS BIGINT) AS unpriced,
              CAST(SUM(CASE WHEN class = 'completed' THEN COALESCE(total_micros, 0) ELSE 0 END) AS BIGINT) AS completed,
              CAST(SUM(CASE WHEN class = 'completed' THEN 0 ELSE COALESCE(total_micros, 0) END) AS BIGINT) AS not_completed,
              CAST(SUM(charged_seconds) AS BIGINT) AS seconds
              FROM costs WHERE kind = 'finalized'",
        );
        visible(&mut query, &filter.sight);
        if let Some(cluster) = &filter.cluster {
            query.push(" AND cluster = ").push_bind(cluster);
        }
        if let Some(user) = &filter.user {
            query.push(" AND user_name = ").push_bind(user);
        }
        if let Some(since) = filter.since {
            query.push(" AND at >= ").push_bind(since);
        }
        if let Some(until) = filter.until {
            query.push(" AND at < ").push_bind(until);
        }
        query
            .push(" GROUP BY cluster, ")
            .push(key)
            .push(", currency ORDER BY cluster, ")
            .push(key)
            .push(", currency");
        query
            .build_query_as()
            .fetch_all(&self.readers)
            .await
            .map_err(Error::database("sum costs"))
    }

    /// The runs that go on, oldest job first; of one cluster or user if the filter says so.
    ///
    /// # Errors
    /// If the database refuses or holds something else.
    pub async fn open_runs(&self, filter: &Filter) -> Result<Vec<OpenRun>, Error> {
        let mut query = QueryBuilder::<Sqlite>::new(
            "SELECT cluster, run, user_name, account, job FROM runs WHERE 1 = 1",
        );
        visible(&mut query, &filter.sight);
        if let Some(cluster) = &filter.cluster {
            query.push(" AND cluster = ").push_bind(cluster);
        }
        if let Some(user) = &filter.user {
            query.push(" AND user_name = ").push_bind(user);
        }
        query.push(" ORDER BY cluster, run");
        // Both reads see the same state.
        let mut transaction = self
            .readers
            .begin()
            .await
            .map_err(Error::database("read open runs"))?;
        let rows: Vec<(String, String, String, String, Vec<u8>)> = query
            .build_query_as()
            .fetch_all(&mut *transaction)
            .await
            .map_err(Error::database("read open runs"))?;
        let mut open = Vec::with_capacity(rows.len());
        for (cluster, run, user, account, job) in rows {
            let marks: Vec<(String, i64, Option<Vec<u8>>)> = sqlx::query_as(
                "SELECT kind, at, job FROM marks WHERE cluster = $1 AND run = $2 ORDER BY at",
            )
            .bind(&cluster)
            .bind(&run)
            .fetch_all(&mut *transaction)
            .await
            .map_err(Error::database("read marks of run"))?;
            let memory = memory(&run, Some(&job), &marks)?;
            // The start was just decoded, so it is there.
            let Some(job) = memory.start.clone() else {
                continue;
            };
            open.push(OpenRun {
                cluster,
                user,
                account,
                job,
                memory,
            });
        }
        Ok(open)
    }
}

fn visible(query: &mut QueryBuilder<Sqlite>, sight: &Sight) {
    let Sight::Of { users, accounts } = sight else {
        return;
    };
    query.push(" AND (user_name IN (");
    let mut list = query.separated(", ");
    for user in users {
        list.push_bind(user.clone());
    }
    query.push(")");
    for (cluster, accounts) in accounts {
        query.push(" OR (account IN (");
        let mut list = query.separated(", ");
        for account in accounts {
            list.push_bind(account.clone());
        }
        query.push(")");
        if let Some(cluster) = cluster {
            query.push(" AND cluster = ").push_bind(cluster.clone());
        }
        query.push(")");
    }
    query.push(")");
}
