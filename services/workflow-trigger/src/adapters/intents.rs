//! Reads runs: for the driver, which claims them, and for the API.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use mesh_db::sql::{Row, Sql};
use slurm_types::JobId;

use super::arrays;
use super::store::{Store, rule_id};
use crate::domain::approval::RunApproval;
use crate::domain::intent::{Backend, Cause, Chain, Intent, IntentState, RunPosition, TaskPage};
use crate::domain::planned_action::PlannedAction;
use crate::domain::rule::RuleId;
use crate::error::Error;

/// How long a driver has a run. Longer than all requests of one step.
pub(super) const CLAIM_DURATION: Duration = Duration::from_secs(600);
const COLUMNS: &str = "key, rule_owner, rule_name, run_user, state, event_id, event_type, cluster, event_at, fired_by, root, depth, action, job_id, attempts, created_at, updated_at, sent_at, accepted_at, released_at, ended_at, ended_as, restarts, error, traceparent, parent, event_job, approve_within, approve_until, asked, approved_by, requesters, array_attempt, tasks, replaced_by";

/// The user as whom a run acts.
pub(super) const RUN_USER: &str = "CASE WHEN run_user = '' THEN rule_owner ELSE run_user END";

/// Tasks of an array with each run of a list.
const LISTED_TASKS: usize = 100;
/// Tasks of an array with a single run.
const SHOWN_TASKS: usize = 1_000;

/// Selects runs for the API.
#[derive(Clone, Debug, Default)]
pub struct RunQuery {
    /// Only of this rule.
    pub rule: Option<RuleId>,
    /// Only of the rules of these users, or as them. `None`: all.
    pub owners: Option<BTreeSet<String>>,
    /// Besides those of owners, the runs of these rules, by full names.
    pub or_of_rules: Vec<String>,
    /// Only in these states. Empty: in any.
    pub states: Vec<IntentState>,
    /// Only those that this job led to, and the one that submitted it.
    pub job: Option<u32>,
    /// Only those that go back to this event.
    pub root: Option<String>,
    /// Only those after this position.
    pub after: Option<RunPosition>,
    /// At most this many.
    pub limit: u32,
}

impl Store {
    /// Claims runs that are due. Two drivers never get the same one.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn claim(
        &self,
        backend: Backend,
        limit: u32,
        now: DateTime<Utc>,
    ) -> Result<Vec<Intent>, Error> {
        const ACTION: &str = "claim runs";
        let at = now.timestamp_micros();
        let until = (now + CLAIM_DURATION).timestamp_micros();
        let sql = Sql::new("UPDATE intents SET claimed_by = ")
            .bind(&*self.database.instance)
            .push(", claimed_until = CASE WHEN array_attempt IS NULL THEN ")
            .bind(until)
            .push(" ELSE ")
            .bind((now + arrays::CLAIM_DURATION).timestamp_micros())
            .push(" END WHERE key IN (SELECT key FROM intents WHERE next_at <= ")
            .bind(at);
        let sql = unclaimed(sql.push(" AND "), now).push(" AND ");
        let sql = has_turn(of_backend(sql, backend), now)
            .push(" ORDER BY next_at LIMIT ")
            .bind(limit)
            .either(")", " FOR UPDATE SKIP LOCKED)")
            .push(" RETURNING ")
            .push(COLUMNS);
        let rows = async {
            let mut transaction = self.database.begin().await?;
            let rows = transaction.conn().rows(&sql).await?;
            transaction.commit().await?;
            Ok(rows)
        };
        let rows = rows.await.map_err(Error::database(ACTION))?;
        rows.iter().map(intent).collect()
    }

    /// When the next run is due that nobody has. `None`: none is planned.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn next_due(
        &self,
        backend: Backend,
        now: DateTime<Utc>,
    ) -> Result<Option<DateTime<Utc>>, Error> {
        const ACTION: &str = "read the next run";
        // Claimed ones become due again at the end of their claim.
        let sql = Sql::new(
            "SELECT MIN(CASE WHEN claimed_until > next_at THEN claimed_until ELSE next_at END) AS due FROM intents WHERE next_at IS NOT NULL AND ",
        );
        let sql = has_turn(of_backend(sql, backend), now);
        let rows = self.database.rows(ACTION, &sql).await?;
        let due = rows.first().map(|row| row.get::<Option<i64>>("due"));
        let due = due.transpose().map_err(Error::database(ACTION))?;
        Ok(due.flatten().and_then(DateTime::from_timestamp_micros))
    }

    /// Releases the claims of an earlier process of this database. Only where no other process has any.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn clear_claims(&self) -> Result<(), Error> {
        if self.database.is_shared() {
            return Ok(());
        }
        let sql = Sql::new("UPDATE intents SET claimed_until = 0 WHERE claimed_until > 0");
        self.change("release claims", sql, Vec::new())
            .await
            .map(drop)
    }

    /// Runs, the newest first.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn runs(&self, query: &RunQuery) -> Result<Vec<Intent>, Error> {
        let mut sql = Sql::new("SELECT ")
            .push(COLUMNS)
            .push(" FROM intents WHERE 1 = 1");
        if let Some(rule) = &query.rule {
            sql = sql
                .push(" AND rule_owner = ")
                .bind(&rule.owner)
                .push(" AND rule_name = ")
                .bind(&rule.name);
        }
        if let Some(owners) = &query.owners {
            sql = sql
                .push(" AND (rule_owner")
                .any_of(owners.iter().cloned().collect::<Vec<String>>())
                .push(" OR run_user")
                .any_of(owners.iter().cloned().collect::<Vec<String>>())
                .push(" OR rule_owner || '/' || rule_name")
                .any_of(query.or_of_rules.clone())
                .push(")");
        }
        if !query.states.is_empty() {
            let states = query.states.iter().map(|state| state.as_str().to_owned());
            sql = sql.push(" AND state").any_of(states.collect::<Vec<_>>());
        }
        if let Some(job) = query.job {
            sql = sql.push(" AND (event_job = ").bind(job).push(" OR ");
            sql = arrays::about_job(sql, job).push(")");
        }
        if let Some(root) = &query.root {
            sql = sql.push(" AND root = ").bind(root);
        }
        if let Some(after) = &query.after {
            let at = after.created_at;
            sql = sql
                .push(" AND created_at <= ")
                .bind(at)
                .push(" AND (created_at < ")
                .bind(at)
                .push(" OR key > ")
                .bind(&after.key)
                .push(")");
        }
        let sql = sql
            .push(" ORDER BY created_at DESC, key LIMIT ")
            .bind(query.limit);
        let rows = self.database.rows("read runs", &sql).await?;
        let mut runs = rows.iter().map(intent).collect::<Result<Vec<_>, _>>()?;
        for run in &mut runs {
            self.add_tasks(run, None, LISTED_TASKS).await?;
        }
        Ok(runs)
    }

    /// The chain that a job of a user continues.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn chain_of_job(
        &self,
        cluster: &str,
        job_id: u32,
        user: &str,
    ) -> Result<Option<Chain>, Error> {
        let sql = Sql::new("SELECT ")
            .push(COLUMNS)
            .push(" FROM intents WHERE is_firing = 1 AND ");
        let sql = arrays::about_job(sql, job_id)
            .push(" AND cluster = ")
            .bind(cluster)
            .push(" AND ")
            .push(RUN_USER)
            .push(" = ")
            .bind(user)
            .push(" ORDER BY created_at DESC LIMIT 1");
        let rows = self.database.rows("read run of job", &sql).await?;
        let run = rows.first().map(intent).transpose()?;
        Ok(run.map(|run| run.chain()))
    }

    /// A run, with its first tasks.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn run(&self, key: &str) -> Result<Option<Intent>, Error> {
        self.run_with_tasks_after(key, None).await
    }

    /// A run, with its tasks after one.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn run_with_tasks_after(
        &self,
        key: &str,
        task: Option<u32>,
    ) -> Result<Option<Intent>, Error> {
        let sql = Sql::new("SELECT ")
            .push(COLUMNS)
            .push(" FROM intents WHERE key = ")
            .bind(key);
        let rows = self.database.rows("read run", &sql).await?;
        let mut run = rows.first().map(intent).transpose()?;
        if let Some(run) = &mut run {
            self.add_tasks(run, task, SHOWN_TASKS).await?;
        }
        Ok(run)
    }
}

/// Nobody has a claim on it.
pub(super) fn unclaimed(sql: Sql, now: DateTime<Utc>) -> Sql {
    sql.push("(claimed_until <= ")
        .bind(now.timestamp_micros())
        // A clock that was far ahead when it was claimed. Not a little: another replica may have claimed it after this one read its clock.
        .push(" OR claimed_until > ")
        .bind((now + CLAIM_DURATION * 2).timestamp_micros())
        .push(")")
}

/// Only the bus is needed by what waits for approval, publishes or notifies.
fn of_backend(sql: Sql, backend: Backend) -> Sql {
    sql.push(match backend {
        Backend::Bus => "(state = 'approval' OR (starts_job = 0 AND job_id IS NULL)) AND ",
        Backend::Slurm => "state <> 'approval' AND (starts_job = 1 OR job_id IS NOT NULL) AND ",
    })
}

/// Of a queue, a run that nothing was done for has its turn if few enough are at work or come before it.
fn has_turn(sql: Sql, now: DateTime<Utc>) -> Sql {
    sql.push("(queue_limit IS NULL OR state <> 'planned' OR queue_limit > (SELECT COUNT(*) FROM intents other WHERE other.rule_owner = intents.rule_owner AND other.rule_name = intents.rule_name AND other.run_user = intents.run_user AND other.queue_key = intents.queue_key AND other.key <> intents.key AND other.ended_at IS NULL AND ((other.state = 'submitting' AND other.array_attempt IS NULL) OR other.state IN ('accepted', 'confirmed', 'released') OR (other.state = 'planned' AND (other.claimed_until > ")
        .bind(now.timestamp_micros())
        .push(" OR other.created_at < intents.created_at OR (other.created_at = intents.created_at AND other.key < intents.key))))))")
}

fn intent(row: &Row) -> Result<Intent, Error> {
    const ACTION: &str = "read run";
    let key: String = row.get("key").map_err(Error::database(ACTION))?;
    let damaged = |problem: String| Error::Damaged {
        key: key.clone(),
        problem,
    };
    let state: String = row.get("state").map_err(Error::database(ACTION))?;
    let state: IntentState = state.parse().map_err(|error| damaged(format!("{error}")))?;
    let action: String = row.get("action").map_err(Error::database(ACTION))?;
    let action: Option<PlannedAction> = match action.as_str() {
        "" => None,
        text => Some(serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?),
    };
    read(row, key.clone(), state, action).map_err(Error::database(ACTION))
}

fn read(
    row: &Row,
    key: String,
    state: IntentState,
    action: Option<PlannedAction>,
) -> Result<Intent, sqlx::Error> {
    let time = |column: &str| -> Result<Option<DateTime<Utc>>, sqlx::Error> {
        let micros: Option<i64> = row.get(column)?;
        Ok(micros.and_then(DateTime::from_timestamp_micros))
    };
    let number = |column: &str| -> Result<Option<u32>, sqlx::Error> {
        let number: Option<i64> = row.get(column)?;
        Ok(number.and_then(|number| u32::try_from(number).ok()))
    };
    let ended_as: String = row.get("ended_as")?;
    let requesters: String = row.get("requesters")?;
    let asked: String = row.get("asked")?;
    let within: Option<i64> = row.get("approve_within")?;
    let approval = match within {
        Some(within) => Some(RunApproval {
            within: TimeDelta::microseconds(within),
            until: time("approve_until")?,
            asked: asked.lines().map(str::to_owned).collect(),
            approved_by: row.get("approved_by")?,
        }),
        None => None,
    };
    let rule = rule_id(row, "rule_owner", "rule_name")?;
    let user: String = row.get("run_user")?;
    let replaced_by: String = row.get("replaced_by")?;
    Ok(Intent {
        key,
        user: match user.as_str() {
            "" => rule.owner.clone(),
            _ => user,
        },
        rule,
        state,
        cause: Cause {
            event_id: row.get("event_id")?,
            event_type: row.get("event_type")?,
            cluster: row.get("cluster")?,
            at: time("event_at")?.unwrap_or_default(),
            job_id: number("event_job")?,
            job_key: None,
            chain: None,
            fired_by: row.get("fired_by")?,
            requesters: requesters.lines().map(str::to_owned).collect(),
            traceparent: row.get("traceparent")?,
        },
        root: row.get("root")?,
        parent: row.get("parent")?,
        depth: number("depth")?.unwrap_or(0),
        approval,
        action,
        job_id: number("job_id")?.and_then(JobId::new),
        attempts: number("attempts")?.unwrap_or(0),
        created_at: time("created_at")?.unwrap_or_default(),
        updated_at: time("updated_at")?.unwrap_or_default(),
        sent_at: time("sent_at")?,
        accepted_at: time("accepted_at")?,
        released_at: time("released_at")?,
        ended: time("ended_at")?.map(|at| (at, ended_as)),
        restarts: number("restarts")?.unwrap_or(0),
        error: row.get("error")?,
        array_attempt: number("array_attempt")?,
        tasks: TaskPage {
            total: number("tasks")?.unwrap_or(0),
            ..TaskPage::default()
        },
        replaced_by: Some(replaced_by).filter(|key| !key.is_empty()),
    })
}
