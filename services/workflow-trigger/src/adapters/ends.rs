//! Ends of the jobs that rules submitted.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use mesh_db::sql::Sql;
use slurm_submit::SubmitKey;

use super::intents::RUN_USER;
use super::store::Store;
use crate::error::Error;

/// The end of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobEnd {
    /// Its cluster.
    pub cluster: String,
    /// The key in its comment.
    pub key: Option<SubmitKey>,
    /// The user whose job it is. Anybody can copy a comment.
    pub user: String,
    /// Its id.
    pub job_id: u32,
    /// When it ended.
    pub at: DateTime<Utc>,
    /// Type of the end, such as `completed`.
    pub how: String,
    /// How often Slurm had restarted it.
    pub restarts: u32,
}

impl Store {
    /// Those ends that may be of runs. Most jobs are no rule's: for them nothing is written.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn ends_of_runs(&self, mut ends: Vec<JobEnd>) -> Result<Vec<JobEnd>, Error> {
        const ACTION: &str = "read runs of ended jobs";
        if ends.is_empty() {
            return Ok(ends);
        }
        let keys = ends.iter().filter_map(|end| end.key.as_ref());
        let keys: Vec<String> = keys.map(|key| key.as_str().to_owned()).collect();
        let ids = ends.iter().filter(|end| end.key.is_none());
        let ids: Vec<i64> = ids.map(|end| end.job_id.into()).collect();
        let sql = Sql::new("SELECT key, job_id FROM intents WHERE key")
            .any_of(keys)
            .push(" UNION ALL SELECT key, job_id FROM intents WHERE job_id")
            .any_of(ids);
        let (mut keys, mut jobs) = (BTreeSet::new(), BTreeSet::new());
        for row in self.database.rows(ACTION, &sql).await? {
            let key: String = row.get("key").map_err(Error::database(ACTION))?;
            let job: Option<i64> = row.get("job_id").map_err(Error::database(ACTION))?;
            keys.insert(key);
            jobs.extend(job);
        }
        ends.retain(|end| match &end.key {
            Some(key) => keys.contains(key.as_str()),
            None => jobs.contains(&i64::from(end.job_id)),
        });
        Ok(ends)
    }

    /// Notes the end of a job, by the key in its comment or by its id. A job that runs again ends again. False if it is no run's, or known.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn job_ended(&self, end: &JobEnd) -> Result<bool, Error> {
        let at = end.at.timestamp_micros();
        let sql = Sql::new("UPDATE intents SET ended_at = ")
            .bind(at)
            .push(", ended_as = ")
            .bind(&end.how)
            .push(", restarts = ")
            .bind(end.restarts)
            .push(" WHERE cluster = ")
            .bind(&end.cluster)
            .push(" AND ")
            .push(RUN_USER)
            .push(" = ")
            .bind(&end.user);
        let sql = match &end.key {
            Some(key) => sql
                .push(" AND (ended_at IS NULL OR ended_at < ")
                .bind(at)
                .push(") AND key = ")
                .bind(key.as_str()),
            // An id may come back after a crash of the controller.
            None => sql
                .push(" AND ended_at IS NULL AND starts_job = 1 AND released_at IS NOT NULL AND job_id = ")
                .bind(end.job_id),
        };
        self.change("store end of job", sql, Vec::new()).await
    }
}
