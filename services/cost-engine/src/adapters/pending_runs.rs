//! Pending runs.

use chrono::Utc;
use mesh_db::pool::Transaction as Snapshot;
use mesh_db::sql::Sql;
use mesh_events::proto::mesh::job::v1::Job;
use prost::Message as _;

use super::transaction::Transaction;
use super::{RunKeys, Store};
use crate::error::Error;
use crate::usage::{request_facts, tags};

/// A pending run.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingRun {
    /// Entity key.
    pub run: String,
    /// What budgets select it by.
    pub keys: RunKeys,
    /// What pricing needs of the job.
    pub job: Job,
}

/// All pending runs, as of a snapshot.
pub(super) async fn read_pending_runs(
    snapshot: &mut Snapshot<'_>,
) -> Result<Vec<PendingRun>, Error> {
    const ACTION: &str = "read pending runs";
    let sql = Sql::new(
        "SELECT cluster, run, user_name, account, tags, job FROM pending_runs WHERE removed_at IS NULL ORDER BY cluster, run",
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
            run: run.clone(),
            source,
        })?;
        pending.push(PendingRun {
            run,
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
    /// Stores a pending run, unless it has started. The request with the highest `run_seq` counts, so a redelivered event cannot bring
    /// back a run that was removed.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn store_pending(
        &mut self,
        (cluster, run, run_seq): (&str, &str, u64),
        (user, account): (&str, &str),
        job: &Job,
    ) -> Result<bool, Error> {
        if self.has_run(cluster, run).await? {
            return Ok(false);
        }
        let facts = request_facts(job).encode_to_vec();
        let sql = Sql::new(
            "INSERT INTO pending_runs (cluster, run, run_seq, user_name, account, tags, job) VALUES (",
        )
        .list([
            cluster.into(),
            run.into(),
            number(run_seq).into(),
            user.into(),
            account.into(),
            tags(job).as_str().into(),
            facts.as_slice().into(),
        ])
        .push(
            ") ON CONFLICT (cluster, run) DO UPDATE SET run_seq = excluded.run_seq, user_name = excluded.user_name, account = excluded.account,
               tags = excluded.tags, job = excluded.job, removed_at = NULL WHERE excluded.run_seq > pending_runs.run_seq",
        );
        Ok(self.run("store pending run", &sql).await? > 0)
    }

    /// Removes a run that is no longer pending. `run_seq` is that of the event that says so. One that never started leaves a tombstone,
    /// because nothing else tells that an older event of it is redelivered.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn remove_pending(
        &mut self,
        cluster: &str,
        run: &str,
        run_seq: u64,
    ) -> Result<(), Error> {
        let sql = if self.has_run(cluster, run).await? {
            Sql::new("DELETE FROM pending_runs WHERE cluster = ")
                .bind(cluster)
                .push(" AND run = ")
                .bind(run)
        } else {
            Sql::new(
                "INSERT INTO pending_runs (cluster, run, run_seq, user_name, account, tags, job, removed_at) VALUES (",
            )
            .list([
                cluster.into(),
                run.into(),
                number(run_seq).into(),
                "".into(),
                "".into(),
                "".into(),
                [].as_slice().into(),
                Utc::now().timestamp().into(),
            ])
            .push(
                ") ON CONFLICT (cluster, run) DO UPDATE SET job = excluded.job, removed_at = excluded.removed_at,
                   run_seq = CASE WHEN excluded.run_seq > pending_runs.run_seq THEN excluded.run_seq ELSE pending_runs.run_seq END",
            )
        };
        self.run("remove pending run", &sql).await.map(drop)
    }

    async fn has_run(&mut self, cluster: &str, run: &str) -> Result<bool, Error> {
        let sql = Sql::new("SELECT run FROM runs WHERE cluster = ")
            .bind(cluster)
            .push(" AND run = ")
            .bind(run);
        Ok(self.first("look up run", &sql).await?.is_some())
    }
}

impl Store {
    /// Deletes tombstones of runs that were removed before a time (Unix seconds).
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn delete_tombstones(&self, before: i64) -> Result<(), Error> {
        let sql = Sql::new("DELETE FROM pending_runs WHERE removed_at < ").bind(before);
        let delete = "delete tombstones of pending runs";
        self.database.change(delete, sql, Vec::new()).await?;
        Ok(())
    }
}

fn number(run_seq: u64) -> i64 {
    i64::try_from(run_seq).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use mesh_db::Location;

    use super::*;

    #[tokio::test]
    async fn tombstones_are_deleted_after_their_time() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&Location::Sqlite(folder.path().join("costs.db")))
            .await
            .unwrap();
        let submit = async || {
            let mut transaction = store.begin().await.unwrap();
            let job = Job::default();
            let stored = transaction.store_pending(("c", "run", 1), ("", ""), &job);
            let stored = stored.await.unwrap();
            transaction.commit().await.unwrap();
            stored
        };
        let mut transaction = store.begin().await.unwrap();
        transaction.remove_pending("c", "run", 2).await.unwrap();
        transaction.commit().await.unwrap();
        let now = Utc::now().timestamp();
        store.delete_tombstones(now - 60).await.unwrap();
        assert!(!submit().await, "an older event");
        store.delete_tombstones(now + 60).await.unwrap();
        assert!(submit().await);
        store.delete_tombstones(now + 60).await.unwrap();
        assert!(!submit().await, "a pending run is no tombstone");
    }
}
