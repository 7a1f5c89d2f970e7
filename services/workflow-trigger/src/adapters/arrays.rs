//! Runs that retry the failed tasks of an array, and the failures that join them.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use mesh_db::pool::WriteTransaction;
use mesh_db::sql::Sql;
use mesh_events::proto::mesh::audit::v1::TriggerActed;

use super::outbox;
use super::store::{Store, count, first};
use crate::domain::array::{FailedTask, StoredTask};
use crate::domain::firing::Firing;
use crate::domain::intent::Intent;
use crate::error::Error;

/// Runs that have not acted, which later failures join. The driver ends this at the same time: whoever is second sees it. What somebody has
/// approved stays as it was shown to them.
pub(super) const OPEN: &str =
    " AND is_firing = 1 AND state IN ('approval', 'planned', 'submitting') AND approved_by = ''";
/// Runs that a guard refused.
pub(super) const REFUSED: &str = " AND is_firing = 0 AND state = 'refused' AND action <> ''";
/// Runs without anything to do.
pub(super) const IMPOSSIBLE: &str = " AND is_firing = 0 AND state = 'refused' AND action = ''";
/// Runs that are only recorded.
pub(super) const RECORDED: &str = " AND is_firing = 0 AND state = 'dry_run'";

/// A condition: no run that waits for tasks of its array, for which nobody else has to wait.
pub(super) const WAITS_FOR_NO_TASKS: &str = "(array_attempt IS NULL OR state <> 'submitting')";
/// How long after a failure its array is looked at, at the latest. slurmctld purges a failed task after MinJobAge.
const LOOK_AFTER_FAILURE: TimeDelta = TimeDelta::seconds(10);
/// How long a driver has a run that waits for tasks. It renews that before each request, as failed tasks are gone after MinJobAge.
pub(super) const CLAIM_DURATION: Duration = Duration::from_secs(120);

/// A failure of a task, and which retry of it by the rule would follow.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArrayRetry<'a> {
    pub task: &'a FailedTask,
    pub attempt: u32,
}

impl<'a> ArrayRetry<'a> {
    /// After this many retries of the task.
    pub fn new(firing: &'a Firing, retries: u32) -> Option<Self> {
        let task = firing.task.as_ref()?;
        let attempt = retries.saturating_add(1);
        Some(Self { task, attempt })
    }
}

/// A condition on runs: about a job, or a task with this job.
pub(super) fn about_job(sql: Sql, job_id: u32) -> Sql {
    // Each part has an index. PostgreSQL reads every run for an OR of them.
    sql.push("key IN (SELECT key FROM intents WHERE job_id = ")
        .bind(job_id)
        .push(" UNION ALL SELECT run_key FROM array_tasks WHERE job_id = ")
        .bind(job_id)
        .push(")")
}

/// How often the rule has run a task again. Of a run that was restored from the audit, the tasks are unknown.
pub(super) async fn retries(
    transaction: &mut WriteTransaction,
    firing: &Firing,
    task: &FailedTask,
) -> Result<u32, sqlx::Error> {
    let sql = Sql::new("SELECT COUNT(DISTINCT intents.key) AS n FROM intents LEFT JOIN array_tasks ON array_tasks.run_key = intents.key WHERE is_firing = 1 AND (array_attempt IS NULL OR task = ")
        .bind(task.task);
    let sql = of_array(sql.push(") AND "), firing, task);
    count(&first(transaction, &sql).await?, "n")
}

/// The run that the event of a firing joined before.
pub(super) async fn joined(
    transaction: &mut WriteTransaction,
    firing: &Firing,
) -> Result<Option<String>, sqlx::Error> {
    if firing.task.is_none() {
        return Ok(None);
    }
    let sql =
        Sql::new("SELECT run_key FROM array_tasks WHERE event_key = ").bind(firing.key.as_str());
    let row = transaction.conn().first(&sql).await?;
    row.map(|row| row.get("run_key")).transpose()
}

/// Adds a failure to the latest run of its array and attempt that meets a condition. Returns the key of that run. Only what joins an open run is
/// an audit entry of its own: the tasks of an array may be many.
pub(super) async fn join(
    transaction: &mut WriteTransaction,
    firing: &Firing,
    array: Option<ArrayRetry<'_>>,
    condition: &'static str,
    now: DateTime<Utc>,
) -> Result<Option<String>, sqlx::Error> {
    let Some(ArrayRetry { task, attempt }) = array else {
        return Ok(None);
    };
    let look_at = (now + LOOK_AFTER_FAILURE).timestamp_micros();
    let sql = Sql::new("UPDATE intents SET tasks = tasks + 1, next_at = CASE WHEN state = 'submitting' AND next_at > ")
        .bind(look_at)
        .push(" THEN ")
        .bind(look_at)
        .push(" ELSE next_at END WHERE key = (SELECT key FROM intents WHERE array_attempt = ")
        .bind(attempt)
        .push(" AND ");
    let sql = of_array(sql, firing, task)
        .push(condition)
        .push(" ORDER BY created_at DESC, key LIMIT 1)")
        .push(condition)
        .push(" RETURNING key, root, depth");
    let Some(row) = transaction.conn().first(&sql).await? else {
        return Ok(None);
    };
    let (run_key, depth): (String, i64) = (row.get("key")?, row.get("depth")?);
    add_task(transaction, firing, task, &run_key).await?;
    if condition != OPEN {
        return Ok(Some(run_key));
    }
    let cause = &firing.cause;
    let act = TriggerActed {
        what: "joined".to_owned(),
        rule: firing.rule.id.to_string(),
        key: run_key.clone(),
        event_id: cause.event_id.clone(),
        event_type: cause.event_type.clone(),
        root_event_id: row.get("root")?,
        depth: u32::try_from(depth).unwrap_or_default(),
        job_id: task.array.get(),
        ..TriggerActed::default()
    };
    let entry = outbox::entry(&cause.cluster, now.timestamp_micros(), act);
    transaction.conn().execute(&entry).await?;
    Ok(Some(run_key))
}

/// Adds a failure to a run that counts it already.
pub(super) async fn add_task(
    transaction: &mut WriteTransaction,
    firing: &Firing,
    task: &FailedTask,
    run_key: &str,
) -> Result<(), sqlx::Error> {
    let failed = serde_json::to_string(task);
    let failed = failed.map_err(|error| sqlx::Error::Encode(error.into()))?;
    let sql =
        Sql::new("INSERT INTO array_tasks (event_key, run_key, task, job_id, failed) VALUES (")
            .list([
                firing.key.as_str().into(),
                run_key.into(),
                task.task.into(),
                task.job_id.get().into(),
                failed.as_str().into(),
            ])
            .push(")");
    transaction.conn().execute(&sql).await.map(drop)
}

/// Runs of the rule for the array of a task.
fn of_array(sql: Sql, firing: &Firing, task: &FailedTask) -> Sql {
    sql.push("intents.job_id = ")
        .bind(task.array.get())
        .push(" AND cluster = ")
        .bind(&firing.cause.cluster)
        .push(" AND rule_owner = ")
        .bind(&firing.rule.id.owner)
        .push(" AND rule_name = ")
        .bind(&firing.rule.id.name)
}

impl Store {
    /// The tasks of a run.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn tasks_of(&self, intent: &Intent) -> Result<Vec<StoredTask>, Error> {
        const ACTION: &str = "read tasks of run";
        let sql = Sql::new("SELECT failed, is_sent FROM array_tasks WHERE run_key = ")
            .bind(&intent.key)
            .push(" ORDER BY task");
        let rows = self.database.rows(ACTION, &sql).await?;
        let tasks = rows.iter().map(|row| -> Result<StoredTask, Error> {
            let failed: String = row.get("failed").map_err(Error::database(ACTION))?;
            let is_sent: i64 = row.get("is_sent").map_err(Error::database(ACTION))?;
            let failed = serde_json::from_str(&failed).map_err(|error| Error::Damaged {
                key: intent.key.clone(),
                problem: error.to_string(),
            })?;
            Ok(StoredTask {
                failed,
                is_sent: is_sent != 0,
            })
        });
        tasks.collect()
    }

    /// Adds a page of the tasks of a run that retries some: those after a task.
    pub(super) async fn add_tasks(
        &self,
        run: &mut Intent,
        after: Option<u32>,
        limit: usize,
    ) -> Result<(), Error> {
        const ACTION: &str = "read tasks of run";
        if run.array_attempt.is_none() {
            return Ok(());
        }
        // One more than a page, to know whether another one follows.
        let sql = Sql::new("SELECT DISTINCT task FROM array_tasks WHERE run_key = ")
            .bind(&run.key)
            .push(" AND task > ")
            .bind(after.map_or(-1, i64::from))
            .push(" ORDER BY task LIMIT ")
            .bind(i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1));
        let rows = self.database.rows(ACTION, &sql).await?;
        let numbers = rows.iter().map(|row| row.get::<i64>("task"));
        let numbers: Vec<i64> = numbers
            .collect::<Result<_, _>>()
            .map_err(Error::database(ACTION))?;
        let page = &mut run.tasks;
        page.has_more = numbers.len() > limit;
        let numbers = numbers.into_iter().take(limit);
        page.numbers = numbers
            .filter_map(|task| u32::try_from(task).ok())
            .collect();
        Ok(())
    }

    /// Notes that these tasks are about to be requeued. False if the claim is lost.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn requeueing(
        &self,
        intent: &Intent,
        tasks: &BTreeSet<u32>,
        now: DateTime<Utc>,
    ) -> Result<bool, Error> {
        let tasks: Vec<i64> = tasks.iter().copied().map(i64::from).collect();
        let sent = Sql::new("UPDATE array_tasks SET is_sent = 1 WHERE run_key = ")
            .bind(&intent.key)
            .push(" AND task")
            .any_of(tasks);
        let sql = self.attempt(intent, now);
        self.change("store requeue of tasks", sql, vec![sent]).await
    }

    /// Closes a run: what fails now does not join it. False if it has not just this many tasks, or the claim is lost.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn close(
        &self,
        intent: &Intent,
        tasks: usize,
        now: DateTime<Utc>,
    ) -> Result<bool, Error> {
        let tasks = i64::try_from(tasks).unwrap_or(i64::MAX);
        let sql = self.confirmation(intent, now);
        let sql = sql.push(" AND tasks = ").bind(tasks);
        self.change("close run", sql, Vec::new()).await
    }

    /// Plans the next look at an array with this many failed tasks: soon if further ones have joined. Slurm has answered, so an error that
    /// follows is the first one.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn wait(
        &self,
        intent: &Intent,
        tasks: usize,
        at: DateTime<Utc>,
        words: &str,
        now: DateTime<Utc>,
    ) -> Result<bool, Error> {
        let soon = at.min(now + LOOK_AFTER_FAILURE);
        let sql = Sql::new("UPDATE intents SET attempts = 0, error = ")
            .bind(words)
            .push(", updated_at = ")
            .bind(now.timestamp_micros())
            .push(", next_at = CASE WHEN tasks > ")
            .bind(i64::try_from(tasks).unwrap_or(i64::MAX))
            .push(" THEN ")
            .bind(soon.timestamp_micros())
            .push(" ELSE ")
            .bind(at.timestamp_micros())
            .push(" END, claimed_until = 0 WHERE ");
        let sql = self.claimed(sql, intent);
        self.change("store wait for tasks", sql, Vec::new()).await
    }

    /// Renews the claim of a run that waits for tasks. False if it is lost.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn renew(&self, intent: &Intent, now: DateTime<Utc>) -> Result<bool, Error> {
        let until = now + CLAIM_DURATION;
        let sql = Sql::new("UPDATE intents SET claimed_until = ")
            .bind(until.timestamp_micros())
            .push(" WHERE ");
        let sql = self.claimed(sql, intent);
        self.change("renew claim", sql, Vec::new()).await
    }
}
