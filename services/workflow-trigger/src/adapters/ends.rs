//! Ends of the jobs that rules submitted.

use chrono::{DateTime, Utc};
use mesh_db::sql::Sql;
use slurm_submit::SubmitKey;

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
    /// Notes the end of a job, by the key in its comment or by its id. A job that runs again ends again.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn job_ended(&self, end: &JobEnd) -> Result<(), Error> {
        let at = end.at.timestamp_micros();
        let sql = Sql::new("UPDATE intents SET ended_at = ")
            .bind(at)
            .push(", ended_as = ")
            .bind(&end.how)
            .push(", restarts = ")
            .bind(end.restarts)
            .push(" WHERE cluster = ")
            .bind(&end.cluster)
            .push(" AND rule_owner = ")
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
        self.change("store end of job", sql, Vec::new())
            .await
            .map(drop)
    }
}
