//! Completes a recovered database with what the audit says. What is not known is never done again.

use chrono::{DateTime, Utc};
use mesh_db::pool::WriteTransaction;
use mesh_db::sql::Sql;
use mesh_events::proto::mesh::audit::v1::TriggerActed;

use super::outbox;
use super::rule_states;
use super::store::{Store, names, rule_id};
use crate::domain::intent::IntentState;
use crate::domain::recorded::{Recorded, RecordedRun};
use crate::domain::rule::RuleId;
use crate::error::Error;

/// Why a run is given up.
const UNKNOWN: &str =
    "the database was recovered, and what became of this run is not known: look for its job";

/// What was restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestoredRuns {
    /// Runs that the database lacked.
    pub added: usize,
    /// Runs that were given up.
    pub given_up: usize,
}

/// A run of which it is not known what became of it.
struct UnknownRun {
    key: String,
    rule: RuleId,
    cluster: String,
    act: TriggerActed,
}

impl Store {
    /// Adds the runs and pauses of the audit, and gives up every run that had not ended: a row may be older than what was sent to
    /// Slurm, and so may a dead letter that was redriven. The rules of those are paused.
    ///
    /// # Errors
    /// If the database refuses. Nothing is changed then.
    pub async fn restore(
        &self,
        recorded: &Recorded,
        now: DateTime<Utc>,
    ) -> Result<RestoredRuns, Error> {
        let restored = async {
            let mut transaction = self.database.begin().await?;
            let at = now.timestamp_micros();
            let mut restored = RestoredRuns::default();
            // A schedule that is not known begins from now: its last instants may have fired.
            let forget = Sql::new("DELETE FROM schedules");
            transaction.conn().execute(&forget).await?;
            for (rule, pause) in &recorded.paused {
                let paused_at = pause.at.timestamp_micros();
                let sql = rule_states::pause_sql(rule, paused_at, &pause.by, &pause.reason);
                transaction.conn().execute(&sql).await?;
            }
            for (key, run) in &recorded.runs {
                restored.added += usize::from(add(&mut transaction, key, run, at).await?);
                finish(&mut transaction, key, run, at).await?;
            }
            for run in unknown(&mut transaction).await? {
                restored.given_up += 1;
                give_up(&mut transaction, &run, at).await?;
            }
            transaction.commit().await?;
            Ok(restored)
        };
        restored.await.map_err(Error::database("restore runs"))
    }
}

/// Adds a run that the database lacks. Without an outcome it counts as submitting.
async fn add(
    transaction: &mut WriteTransaction,
    key: &str,
    run: &RecordedRun,
    now: i64,
) -> Result<bool, sqlx::Error> {
    let state = run.outcome().unwrap_or(IntentState::Submitting);
    // The event of its end may have been read before.
    let ended_at = run.outcome().map(|_| now);
    let fired = i64::from(run.is_fired);
    let act = &run.last;
    let sql = Sql::new("INSERT INTO intents (key, rule_owner, rule_name, generation, state, event_id, event_type, cluster, event_at, fired_by, root, depth, action, is_firing, starts_job, job_id, created_at, updated_at, ended_at, ended_as, error, requesters) VALUES (")
        .list([
            key.into(),
            (&run.rule.owner).into(),
            (&run.rule.name).into(),
            0_i64.into(),
            state.as_str().into(),
            (&act.event_id).into(),
            (&act.event_type).into(),
            (&run.cluster).into(),
            run.created_at.timestamp_micros().into(),
            "".into(),
            (&act.root_event_id).into(),
            act.depth.into(),
            "".into(),
            fired.into(),
            fired.into(),
            (run.job_id != 0).then_some(i64::from(run.job_id)).into(),
            run.created_at.timestamp_micros().into(),
            run.updated_at.timestamp_micros().into(),
            ended_at.into(),
            ended_at.map_or("", |_| "unknown").into(),
            (&act.reason).into(),
            names(&run.requesters).as_str().into(),
        ])
        .push(") ON CONFLICT (key) DO NOTHING");
    Ok(transaction.conn().execute(&sql).await? > 0)
}

/// Gives a run that the database has the outcome that the audit has. Without one, a dead letter was redriven, and counts as submitting.
async fn finish(
    transaction: &mut WriteTransaction,
    key: &str,
    run: &RecordedRun,
    now: i64,
) -> Result<(), sqlx::Error> {
    let Some(outcome) = run.outcome() else {
        let sql = Sql::new("UPDATE intents SET state = 'submitting', next_at = NULL WHERE state IN ('refused', 'given_up') AND key = ").bind(key);
        return transaction.conn().execute(&sql).await.map(drop);
    };
    let sql = Sql::new("UPDATE intents SET next_at = NULL, state = ")
        .bind(outcome.as_str())
        .push(", ended_as = 'unknown', ended_at = ")
        .bind(now)
        .push(", error = ")
        .bind(&run.last.reason)
        .push(" WHERE state IN ('approval', 'planned', 'submitting', 'accepted', 'confirmed', 'refused', 'given_up') AND state <> ")
        .bind(outcome.as_str())
        .push(" AND key = ")
        .bind(key);
    transaction.conn().execute(&sql).await.map(drop)
}

/// The runs that had not ended.
async fn unknown(transaction: &mut WriteTransaction) -> Result<Vec<UnknownRun>, sqlx::Error> {
    let sql = Sql::new(
        "SELECT key, rule_owner, rule_name, cluster, event_id, event_type, root, depth, job_id FROM intents WHERE state IN ('approval', 'planned', 'submitting', 'accepted', 'confirmed') ORDER BY created_at",
    );
    let rows = transaction.conn().rows(&sql).await?;
    let read = rows.iter().map(|row| {
        let (key, rule): (String, _) = (row.get("key")?, rule_id(row, "rule_owner", "rule_name")?);
        let job: Option<i64> = row.get("job_id")?;
        let depth: i64 = row.get("depth")?;
        let act = TriggerActed {
            what: IntentState::GivenUp.as_str().to_owned(),
            rule: rule.to_string(),
            key: key.clone(),
            event_id: row.get("event_id")?,
            event_type: row.get("event_type")?,
            root_event_id: row.get("root")?,
            depth: u32::try_from(depth).unwrap_or_default(),
            job_id: job.and_then(|job| u32::try_from(job).ok()).unwrap_or(0),
            reason: UNKNOWN.to_owned(),
            ..TriggerActed::default()
        };
        Ok(UnknownRun {
            key,
            rule,
            cluster: row.get("cluster")?,
            act,
        })
    });
    read.collect()
}

async fn give_up(
    transaction: &mut WriteTransaction,
    run: &UnknownRun,
    now: i64,
) -> Result<(), sqlx::Error> {
    let sql = Sql::new("UPDATE intents SET state = 'given_up', next_at = NULL, updated_at = ")
        .bind(now)
        .push(", error = ")
        .bind(UNKNOWN)
        .push(" WHERE key = ")
        .bind(&run.key);
    transaction.conn().execute(&sql).await?;
    let entry = outbox::entry(&run.cluster, now, run.act.clone());
    transaction.conn().execute(&entry).await?;
    let reason = format!(
        "the database was recovered, and run {} may have been submitted: look for its job, then resume the rule",
        run.key
    );
    rule_states::pause_for_recovery(transaction, &run.rule, &reason, &run.cluster, now).await
}
