//! Pending runs.

use std::collections::HashMap;

use mesh_db::pool::Transaction as Snapshot;
use mesh_db::sql::{Row, Sql};
use mesh_events::proto::mesh::job::v1::Job;
use prost::Message as _;

use super::runs::Transaction;
use super::{RunKeys, Store};
use crate::error::Error;
use crate::usage::{request_facts, tags};

/// A pending run.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingRun {
    /// What budgets select it by.
    pub keys: RunKeys,
    /// What pricing needs of the job.
    pub job: Job,
}

/// Names of nodes by cluster and partition.
pub type NodesOfPartitions = HashMap<(String, String), Vec<String>>;

impl Store {
    /// The known nodes of each partition.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn nodes_of_partitions(&self) -> Result<NodesOfPartitions, Error> {
        const ACTION: &str = "read nodes of partitions";
        let sql = Sql::new(
            "SELECT DISTINCT cluster, partition_name, node FROM node_states WHERE partition_name <> '' ORDER BY cluster, partition_name, node",
        );
        let rows = self.database.rows(ACTION, &sql).await?;
        let mut nodes = NodesOfPartitions::new();
        let read = |row: &Row| -> Result<_, sqlx::Error> {
            let place = (row.get("cluster")?, row.get("partition_name")?);
            Ok((place, row.get("node")?))
        };
        for row in &rows {
            let (place, node) = read(row).map_err(Error::database(ACTION))?;
            nodes.entry(place).or_default().push(node);
        }
        Ok(nodes)
    }
}

/// All pending runs, as of a snapshot.
pub(super) async fn read_pending_runs(snapshot: &mut Snapshot<'_>) -> Result<Vec<PendingRun>, Error> {
    const ACTION: &str = "read pending runs";
    let sql = Sql::new(
        "SELECT cluster, run, user_name, account, tags, job FROM pending_runs ORDER BY cluster, run",
    );
    let rows = snapshot.conn().rows(&sql).await;
    let rows = rows.map_err(Error::database(ACTION))?;
    let mut pending = Vec::with_capacity(rows.len());
    for row in &rows {
        let read = || -> Result<_, sqlx::Error> {
            let bytes: Vec<u8> = row.get("job")?;
            let keys = RunKeys {
                cluster: row.get("cluster")?,
                user: row.get("user_name")?,
                account: row.get("account")?,
                tags: row.get("tags")?,
                ..RunKeys::default()
            };
            Ok((keys, row.get::<String>("run")?, bytes))
        };
        let (keys, run, bytes) = read().map_err(Error::database(ACTION))?;
        let job = Job::decode(bytes.as_slice()).map_err(|source| Error::Damaged {
            action: ACTION,
            run,
            source,
        })?;
        pending.push(PendingRun {
            keys: RunKeys {
                partition: job.partition.clone(),
                qos: job.qos.clone(),
                ..keys
            },
            job,
        });
    }
    Ok(pending)
}

impl Transaction {
    /// Stores a pending run, unless it has started. Its newest request counts.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn store_pending(
        &mut self,
        (cluster, run): (&str, &str),
        user: &str,
        account: &str,
        job: &Job,
    ) -> Result<bool, Error> {
        let known = Sql::new("SELECT run FROM runs WHERE cluster = ")
            .bind(cluster)
            .push(" AND run = ")
            .bind(run);
        if self.first("look up run", &known).await?.is_some() {
            return Ok(false);
        }
        let facts = request_facts(job).encode_to_vec();
        let sql = Sql::new("INSERT INTO pending_runs (cluster, run, user_name, account, tags, job) VALUES (")
            .list([
                cluster.into(),
                run.into(),
                user.into(),
                account.into(),
                tags(job).as_str().into(),
                facts.as_slice().into(),
            ])
            .push(
                ") ON CONFLICT (cluster, run) DO UPDATE SET account = excluded.account, tags = excluded.tags, job = excluded.job",
            );
        Ok(self.run("store pending run", &sql).await? > 0)
    }

    /// Removes a run that is no longer pending.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn remove_pending(&mut self, cluster: &str, run: &str) -> Result<(), Error> {
        let sql = Sql::new("DELETE FROM pending_runs WHERE cluster = ")
            .bind(cluster)
            .push(" AND run = ")
            .bind(run);
        self.run("remove pending run", &sql).await.map(drop)
    }
}
