//! Copies of recorded jobs: which runs may have some, and the claim under which one is cancelled.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use mesh_db::sql::Sql;
use slurm_submit::SubmitKey;
use slurm_types::JobId;

use super::intents::{CLAIM_DURATION, RUN_USER, unclaimed};
use super::store::Store;
use crate::error::Error;

/// A claim under which a copy is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyClaim {
    until: i64,
}

impl Store {
    /// Keys of submissions that took several attempts and have a recorded job, by user.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn recorded_after_retries(
        &self,
        since: DateTime<Utc>,
    ) -> Result<BTreeMap<String, BTreeSet<SubmitKey>>, Error> {
        const ACTION: &str = "read recorded jobs";
        let sql = Sql::new("SELECT ")
            .push(RUN_USER)
            .push(" AS run_as, key FROM intents WHERE attempts > 1 AND job_id IS NOT NULL AND accepted_at > ")
            .bind(since.timestamp_micros());
        let mut keys: BTreeMap<String, BTreeSet<SubmitKey>> = BTreeMap::new();
        for row in self.database.rows(ACTION, &sql).await? {
            let owner: String = row.get("run_as").map_err(Error::database(ACTION))?;
            let key: String = row.get("key").map_err(Error::database(ACTION))?;
            if let Ok(key) = key.parse() {
                keys.entry(owner).or_default().insert(key);
            }
        }
        Ok(keys)
    }

    /// Claims a run that has another job than this one. `None`: it has this one or none yet, or a driver has claimed it.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn claim_of_copy(
        &self,
        key: &SubmitKey,
        job: JobId,
        now: DateTime<Utc>,
    ) -> Result<Option<CopyClaim>, Error> {
        let until = (now + CLAIM_DURATION).timestamp_micros();
        let sql = Sql::new("UPDATE intents SET claimed_by = ")
            .bind(&*self.database.instance)
            .push(", claimed_until = ")
            .bind(until)
            .push(" WHERE key = ")
            .bind(key.as_str())
            .push(" AND job_id <> ")
            .bind(job.get())
            .push(" AND ");
        let sql = unclaimed(sql, now);
        let claimed = self.change("claim run of a copy", sql, Vec::new()).await?;
        Ok(claimed.then_some(CopyClaim { until }))
    }

    /// Ends such a claim.
    ///
    /// # Errors
    /// If the database refuses. The claim ends by itself.
    pub async fn end_claim_of_copy(&self, key: &SubmitKey, claim: CopyClaim) -> Result<(), Error> {
        let sql = Sql::new("UPDATE intents SET claimed_until = 0 WHERE key = ")
            .bind(key.as_str())
            .push(" AND claimed_until = ")
            .bind(claim.until)
            .push(" AND claimed_by = ")
            .bind(&*self.database.instance);
        let ended = self.change("end claim of a copy", sql, Vec::new());
        ended.await.map(drop)
    }
}
