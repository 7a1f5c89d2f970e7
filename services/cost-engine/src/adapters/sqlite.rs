//! The cost engine's SQLite file, and one transaction on it.
//!
//! One connection writes, a few read. `synchronous = FULL` makes a commit durable before any job event is acknowledged. The file is
//! readable for its owner only: it knows what everybody's jobs cost. The statements keep to what PostgreSQL understands as well.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::job::v1::Job;
use prost::Message as _;
use sqlx::Sqlite;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};

use crate::domain::suspension::Mark;
use crate::domain::{Class, Micros};
use crate::error::Error;
use crate::usage::Memory;

/// How many queries may read at the same time.
const READERS: u32 = 4;

/// The tables.
#[derive(Clone, Debug)]
pub struct Store {
    pub(super) writer: SqlitePool,
    pub(super) readers: SqlitePool,
}

/// What is kept of a cost event, apart from its bytes.
#[derive(Clone, Debug)]
pub struct CostRow<'a> {
    /// Cluster.
    pub cluster: &'a str,
    /// Entity key of the run.
    pub run: &'a str,
    /// `estimated` or `finalized`.
    pub kind: &'static str,
    /// Id of the event.
    pub event_id: &'a str,
    /// Id of the job event it was computed from.
    pub cause_id: &'a str,
    /// Job.
    pub job: &'a Job,
    /// Owner's Unix user name.
    pub user: &'a str,
    /// Account.
    pub account: &'a str,
    /// Class.
    pub class: Class,
    /// Currency of the price book, also without a price.
    pub currency: &'a str,
    /// Total; `None` without a price, and before the end.
    pub total: Option<Micros>,
    /// Seconds that were charged.
    pub charged_seconds: u64,
    /// Price book.
    pub price_book: &'a str,
    /// Why there is no price.
    pub problem: &'a str,
    /// Start or end.
    pub at: DateTime<Utc>,
}

impl Store {
    /// Opens the file, makes it if it is not there, and brings its tables to this version.
    ///
    /// # Errors
    /// If the file cannot be made or opened.
    pub async fn open(path: &Path) -> Result<Self, Error> {
        let open = |source: Box<dyn std::error::Error + Send + Sync>| Error::Open {
            path: path.to_owned(),
            source,
        };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|source| open(source.into()))?;
        }
        OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(path)
            .map_err(|source| open(source.into()))?;
        let options = SqliteConnectOptions::new()
            .filename(path)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(Duration::from_secs(10));
        let pool = |connections, options| {
            SqlitePoolOptions::new()
                .max_connections(connections)
                .connect_with(options)
        };
        let writer = pool(1, options.clone())
            .await
            .map_err(|source| open(source.into()))?;
        sqlx::migrate!()
            .run(&writer)
            .await
            .map_err(|source| Error::Migrate {
                path: path.to_owned(),
                source,
            })?;
        let readers = pool(READERS, options.read_only(true))
            .await
            .map_err(|source| open(source.into()))?;
        Ok(Self { writer, readers })
    }

    /// Begins to write.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn begin(&self) -> Result<Transaction, Error> {
        let inner = self.begin_immediate().await?;
        Ok(Transaction { inner })
    }

    /// Takes the write lock before anything is read, also against another process.
    pub(super) async fn begin_immediate(
        &self,
    ) -> Result<sqlx::Transaction<'static, Sqlite>, Error> {
        const BEGIN: &str = "BEGIN IMMEDIATE";
        if let Ok(transaction) = self.writer.begin_with(BEGIN).await {
            return Ok(transaction);
        }
        // SQLite ends a transaction by itself when the disk is full, and sqlx, which does not know, begins none on this connection any more.
        if let Ok(mut connection) = self.writer.acquire().await {
            connection.close_on_drop();
        }
        self.writer
            .begin_with(BEGIN)
            .await
            .map_err(Error::database("begin transaction"))
    }

    /// Closes every connection; what was committed is on disk already.
    pub async fn close(&self) {
        mesh_db::sqlite::close(&self.readers).await;
        mesh_db::sqlite::close(&self.writer).await;
    }
}

/// Writes that become durable together. Dropped without [`Transaction::commit`], nothing happened.
pub struct Transaction {
    inner: sqlx::Transaction<'static, Sqlite>,
}

impl Transaction {
    /// Makes everything durable.
    ///
    /// # Errors
    /// If the database refuses; nothing was written then.
    pub async fn commit(self) -> Result<(), Error> {
        self.inner
            .commit()
            .await
            .map_err(Error::database("commit costs"))
    }

    /// What is remembered of a run.
    ///
    /// # Errors
    /// If the database refuses or holds something else.
    pub async fn memory(&mut self, cluster: &str, run: &str) -> Result<Memory, Error> {
        let start: Option<Vec<u8>> =
            sqlx::query_scalar("SELECT job FROM runs WHERE cluster = $1 AND run = $2")
                .bind(cluster)
                .bind(run)
                .fetch_optional(&mut *self.inner)
                .await
                .map_err(Error::database("read run"))?;
        let marks: Vec<(String, i64, Option<Vec<u8>>)> = sqlx::query_as(
            "SELECT kind, at, job FROM marks WHERE cluster = $1 AND run = $2 ORDER BY at",
        )
        .bind(cluster)
        .bind(run)
        .fetch_all(&mut *self.inner)
        .await
        .map_err(Error::database("read marks of run"))?;
        memory(run, start.as_deref(), &marks)
    }

    /// True if the run's cost of a kind is there.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn has_cost(&mut self, cluster: &str, run: &str, kind: &str) -> Result<bool, Error> {
        let found: Option<i64> =
            sqlx::query_scalar("SELECT 1 FROM costs WHERE cluster = $1 AND run = $2 AND kind = $3")
                .bind(cluster)
                .bind(run)
                .bind(kind)
                .fetch_optional(&mut *self.inner)
                .await
                .map_err(Error::database("look for cost"))?;
        Ok(found.is_some())
    }

    /// Remembers that a run has started. The first snapshot stays.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn remember_start(
        &mut self,
        cluster: &str,
        user: &str,
        account: &str,
        job: &Job,
    ) -> Result<(), Error> {
        sqlx::query(
            "INSERT INTO runs (cluster, run, display_id, user_name, account, partition_name, job)
             VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING",
        )
        .bind(cluster)
        .bind(&job.run)
        .bind(&job.display_id)
        .bind(user)
        .bind(account)
        .bind(&job.partition)
        .bind(job.encode_to_vec())
        .execute(&mut *self.inner)
        .await
        .map_err(Error::database("remember start"))?;
        Ok(())
    }

    /// Remembers what happened to a run: `suspended`, `resumed`, or `resized` with the job afterwards.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn remember_mark(
        &mut self,
        cluster: &str,
        run: &str,
        kind: &str,
        at: i64,
        job: Option<&Job>,
    ) -> Result<(), Error> {
        sqlx::query("INSERT INTO marks (cluster, run, kind, at, job) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING")
            .bind(cluster)
            .bind(run)
            .bind(kind)
            .bind(at)
            .bind(job.map(Job::encode_to_vec))
            .execute(&mut *self.inner)
            .await
            .map_err(Error::database("remember change of run"))?;
        Ok(())
    }

    /// Forgets a run whose final cost is known.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn forget(&mut self, cluster: &str, run: &str) -> Result<(), Error> {
        for statement in [
            "DELETE FROM runs WHERE cluster = $1 AND run = $2",
            "DELETE FROM marks WHERE cluster = $1 AND run = $2",
        ] {
            sqlx::query(statement)
                .bind(cluster)
                .bind(run)
                .execute(&mut *self.inner)
                .await
                .map_err(Error::database("forget run"))?;
        }
        Ok(())
    }

    /// Adds a cost, and its event to the outbox.
    ///
    /// # Errors
    /// If the database refuses, also because the cost is there already.
    pub async fn add_cost(
        &mut self,
        row: &CostRow<'_>,
        body: &[u8],
        traceparent: &str,
    ) -> Result<(), Error> {
        sqlx::query(
            "INSERT INTO costs (cluster, run, kind, event_id, cause_id, display_id, user_name, account, partition_name, class, currency,
                                total_micros, charged_seconds, price_book, problem, at, month)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)",
        )
        .bind(row.cluster)
        .bind(row.run)
        .bind(row.kind)
        .bind(row.event_id)
        .bind(row.cause_id)
        .bind(&row.job.display_id)
        .bind(row.user)
        .bind(row.account)
        .bind(&row.job.partition)
        .bind(row.class.as_str())
        .bind(row.currency)
        .bind(row.total.map(|total| total.0))
        .bind(i64::try_from(row.charged_seconds).unwrap_or(i64::MAX))
        .bind(row.price_book)
        .bind(row.problem)
        .bind(row.at.timestamp())
        .bind(row.at.format("%Y-%m").to_string())
        .execute(&mut *self.inner)
        .await
        .map_err(Error::database("add cost"))?;
        sqlx::query("INSERT INTO outbox (event_id, body, traceparent) VALUES ($1, $2, $3)")
            .bind(row.event_id)
            .bind(body)
            .bind(traceparent)
            .execute(&mut *self.inner)
            .await
            .map_err(Error::database("add cost to outbox"))?;
        Ok(())
    }
}

/// Puts together what the tables tell of a run.
pub(super) fn memory(
    run: &str,
    start: Option<&[u8]>,
    marks: &[(String, i64, Option<Vec<u8>>)],
) -> Result<Memory, Error> {
    let decode = |bytes: &[u8]| {
        Job::decode(bytes).map_err(|source| Error::Damaged {
            action: "read run",
            run: run.to_owned(),
            source,
        })
    };
    let mut memory = Memory {
        start: start.map(decode).transpose()?,
        ..Memory::default()
    };
    for (kind, at, job) in marks {
        match (kind.as_str(), job) {
            ("suspended", _) => memory.marks.push((*at, Mark::Suspended)),
            ("resumed", _) => memory.marks.push((*at, Mark::Resumed)),
            (_, Some(job)) => memory.resizes.push((*at, decode(job)?)),
            // A resize without a snapshot tells nothing; the table's check lets no other kind in.
            (_, None) => {}
        }
    }
    Ok(memory)
}
