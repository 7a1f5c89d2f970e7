//! The exporter's tables: a SQLite file for one process, or a PostgreSQL database.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mesh_db::pool::WriteTransaction;
use mesh_db::sql::{Column, Sql};
use mesh_db::{Database, Limits, Location, Tables};

use crate::domain::counters::Counters;
use crate::domain::gpus::GpuHolder;
use crate::domain::increments::{Allocation, CountChange};
use crate::error::Error;

const LIMITS: Limits = Limits {
    readers: 2,
    writers: 1,
    query_timeout: Duration::from_secs(30),
};

static TABLES: Tables = Tables {
    name: "exporter",
    sqlite: sqlx::migrate!("migrations/sqlite"),
    postgres: sqlx::migrate!("migrations/postgres"),
    first: "counters",
    remedy: "start the exporter once with the address of their owner",
};

/// What the running jobs of a partition, account and user hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocationSum {
    /// Partition.
    pub partition: String,
    /// Account.
    pub account: String,
    /// Owner.
    pub user: String,
    /// GPUs.
    pub gpus: u64,
    /// Memory in MiB.
    pub memory_mib: u64,
}

/// An event to count.
pub struct CountedEvent {
    /// Its id.
    pub id: String,
    /// Its cluster.
    pub cluster: String,
    /// What it changes.
    pub change: CountChange,
}

/// The tables. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Store {
    /// Their database.
    pub database: Database,
}

impl Store {
    /// Configures the database without opening it.
    ///
    /// # Errors
    /// If its file cannot be created.
    pub fn connect(location: &Location) -> Result<Self, Error> {
        let database = Database::connect(&TABLES, location, LIMITS)?;
        Ok(Self { database })
    }

    /// Counts events in one transaction, each at most once. Returns how many had not been counted before.
    ///
    /// # Errors
    /// If the database refuses. Nothing is counted then.
    pub async fn count(&self, events: &[CountedEvent], now: i64) -> Result<usize, Error> {
        let begun = self.database.begin().await;
        let mut transaction = begun.map_err(Error::database("begin transaction"))?;
        // The same event twice in a batch: only the first counts.
        let ids: BTreeSet<&str> = events.iter().map(|event| event.id.as_str()).collect();
        let ids: Vec<Option<&str>> = ids.into_iter().map(Some).collect();
        let at = vec![Some(now); ids.len()];
        let fresh = transaction
            .conn()
            .fetch_bulk(
                &[("event_id", Column::Texts(ids)), ("at", Column::Ints(at))],
                "INSERT INTO counted (event_id, at) SELECT event_id, at FROM bulk WHERE TRUE ON CONFLICT (event_id) DO NOTHING RETURNING event_id",
            )
            .await
            .map_err(Error::database("note counted events"))?;
        let mut fresh: BTreeSet<String> = fresh
            .iter()
            .map(|row| row.get("event_id"))
            .collect::<Result<_, _>>()
            .map_err(Error::database("note counted events"))?;
        let number = fresh.len();
        let mut amounts: BTreeMap<(&str, &str, &str), i64> = BTreeMap::new();
        let mut allocations: BTreeMap<(&str, &str), Option<&Allocation>> = BTreeMap::new();
        for event in events {
            if !fresh.remove(&event.id) {
                continue;
            }
            for increment in &event.change.increments {
                let key = (
                    event.cluster.as_str(),
                    increment.metric,
                    increment.labels.as_str(),
                );
                let amount = amounts.entry(key).or_default();
                *amount = amount.saturating_add(increment.amount);
            }
            if let Some((run, allocation)) = &event.change.allocation {
                allocations.insert((&event.cluster, run), allocation.as_ref());
            }
        }
        add(&mut transaction, &amounts).await?;
        allocate(&mut transaction, &allocations).await?;
        let committed = transaction.commit().await;
        committed.map_err(Error::database("commit counters"))?;
        Ok(number)
    }

    /// Removes the ids of events that were counted before `before` (Unix seconds). The bus no longer has them.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn expire(&self, before: i64) -> Result<(), Error> {
        let sql = Sql::new("DELETE FROM counted WHERE at < ").bind(before);
        let expire = "expire counted events";
        self.database.change(expire, sql, Vec::new()).await?;
        Ok(())
    }

    /// Removes everything. Counters and the ids of counted events only fit each other if both are whole.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn clear(&self) -> Result<(), Error> {
        for sql in [
            "DELETE FROM counters",
            "DELETE FROM counted",
            "DELETE FROM allocations",
        ] {
            let clear = "clear counters";
            let sql = Sql::new(sql);
            self.database.change(clear, sql, Vec::new()).await?;
        }
        Ok(())
    }

    /// All counters of a cluster.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn counters(&self, cluster: &str) -> Result<Counters, Error> {
        const ACTION: &str = "read counters";
        let failed = || Error::database(ACTION);
        let sql =
            Sql::new("SELECT metric, labels, value FROM counters WHERE cluster = ").bind(cluster);
        let mut counters = Counters::default();
        for row in self.database.rows(ACTION, &sql).await? {
            counters.set(
                row.at(0).map_err(failed())?,
                row.at(1).map_err(failed())?,
                row.at(2).map_err(failed())?,
            );
        }
        Ok(counters)
    }

    /// What running jobs hold, by partition, account and user.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn allocations(&self, cluster: &str) -> Result<Vec<AllocationSum>, Error> {
        const ACTION: &str = "read allocations";
        let failed = || Error::database(ACTION);
        let sql = Sql::new("SELECT partition_name, account, user_name, CAST(SUM(gpus) AS BIGINT), CAST(SUM(memory_mib) AS BIGINT) FROM allocations WHERE cluster = ")
            .bind(cluster)
            .push(" GROUP BY partition_name, account, user_name");
        let mut sums = Vec::new();
        for row in self.database.rows(ACTION, &sql).await? {
            let number = |column| {
                row.at::<i64>(column)
                    .map(|n| u64::try_from(n).unwrap_or_default())
            };
            sums.push(AllocationSum {
                partition: row.at(0).map_err(failed())?,
                account: row.at(1).map_err(failed())?,
                user: row.at(2).map_err(failed())?,
                gpus: number(3).map_err(failed())?,
                memory_mib: number(4).map_err(failed())?,
            });
        }
        Ok(sums)
    }

    /// Running jobs with GPUs that Slurm named, by job id.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn gpu_holders(&self, cluster: &str) -> Result<Vec<GpuHolder>, Error> {
        const ACTION: &str = "read GPUs of jobs";
        let failed = || Error::database(ACTION);
        let sql = Sql::new("SELECT job_id, partition_name, account, gpu_places FROM allocations WHERE gpu_places <> '' AND cluster = ")
            .bind(cluster)
            .push(" ORDER BY job_id");
        let mut holders = Vec::new();
        for row in self.database.rows(ACTION, &sql).await? {
            let job_id: i64 = row.at(0).map_err(failed())?;
            holders.push(GpuHolder {
                job_id: u32::try_from(job_id).unwrap_or_default(),
                partition: row.at(1).map_err(failed())?,
                account: row.at(2).map_err(failed())?,
                places: row.at(3).map_err(failed())?,
            });
        }
        Ok(holders)
    }
}

/// Adds amounts to counters, in the order of their keys, so that two processes do not wait for each other.
async fn add(
    transaction: &mut WriteTransaction,
    amounts: &BTreeMap<(&str, &str, &str), i64>,
) -> Result<(), Error> {
    let clusters = amounts.keys().map(|(cluster, ..)| Some(*cluster)).collect();
    let metrics = amounts.keys().map(|(_, metric, _)| Some(*metric)).collect();
    let labels = amounts.keys().map(|(.., labels)| Some(*labels)).collect();
    let values = amounts.values().map(|value| Some(*value)).collect();
    let added = transaction
        .conn()
        .execute_bulk(
            &[
                ("cluster", Column::Texts(clusters)),
                ("metric", Column::Texts(metrics)),
                ("labels", Column::Texts(labels)),
                ("value", Column::Ints(values)),
            ],
            "INSERT INTO counters (cluster, metric, labels, value) SELECT cluster, metric, labels, value FROM bulk WHERE TRUE ON CONFLICT (cluster, metric, labels) DO UPDATE SET value = counters.value + excluded.value",
        )
        .await;
    added.map(drop).map_err(Error::database("add to counters"))
}

/// Stores and removes allocations.
async fn allocate(
    transaction: &mut WriteTransaction,
    allocations: &BTreeMap<(&str, &str), Option<&Allocation>>,
) -> Result<(), Error> {
    for ((cluster, run), allocation) in allocations {
        let sql = match allocation {
            None => Sql::new("DELETE FROM allocations WHERE cluster = ")
                .bind(*cluster)
                .push(" AND run = ")
                .bind(*run),
            Some(held) => Sql::new("INSERT INTO allocations (cluster, run, partition_name, account, user_name, gpus, memory_mib, job_id, gpu_places) VALUES (")
                .list([
                    (*cluster).into(),
                    (*run).into(),
                    (&held.partition).into(),
                    (&held.account).into(),
                    (&held.user).into(),
                    held.gpus.into(),
                    held.memory_mib.into(),
                    held.job_id.into(),
                    (&held.gpu_places).into(),
                ])
                .push(") ON CONFLICT (cluster, run) DO UPDATE SET partition_name = excluded.partition_name, account = excluded.account, user_name = excluded.user_name, gpus = excluded.gpus, memory_mib = excluded.memory_mib, job_id = excluded.job_id, gpu_places = excluded.gpu_places"),
        };
        let stored = transaction.conn().execute(&sql).await;
        stored.map_err(Error::database("store allocation"))?;
    }
    Ok(())
}
