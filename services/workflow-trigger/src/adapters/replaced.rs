//! Runs that a later one replaces, by `concurrency = "replace"`.

use chrono::{DateTime, Utc};
use mesh_db::pool::WriteTransaction;
use mesh_db::sql;
use mesh_db::sql::Sql;
use mesh_events::proto::mesh::audit::v1::TriggerActed;
use slurm_types::JobId;

use super::intents::unclaimed;
use super::outbox;
use super::progress::entry;
use super::store::Store;
use crate::domain::firing::Firing;
use crate::domain::intent::{Intent, IntentState};
use crate::error::Error;

/// Why a run ends.
pub fn words(by: &str) -> String {
    format!("replaced by run {by}")
}

/// Ends the runs with the key of a firing that have not ended. What was not sent is refused at once. The driver cancels the jobs of the others;
/// until they have ended the new run waits for its turn.
pub(super) async fn replace(
    transaction: &mut WriteTransaction,
    firing: &Firing,
    run_user: &str,
    now: DateTime<Utc>,
) -> Result<(), sqlx::Error> {
    let Some(queue) = &firing.queue else {
        return Ok(());
    };
    let key = firing.key.as_str();
    let at = now.timestamp_micros();
    let of_queue = |sql: Sql| {
        let rule = &firing.rule.id;
        sql.push(" WHERE rule_owner = ")
            .bind(&rule.owner)
            .push(" AND rule_name = ")
            .bind(&rule.name)
            .push(" AND run_user = ")
            .bind(run_user)
            .push(" AND queue_key = ")
            .bind(queue)
            .push(" AND key <> ")
            .bind(key)
            .push(" AND is_firing = 1 AND ended_at IS NULL AND ")
    };
    let refuse = sql!(
        "UPDATE intents SET state = 'refused', next_at = NULL, error = ?, updated_at = ?",
        words(key).as_str(),
        at
    );
    // One that a driver has is about to be sent.
    let refuse = of_queue(refuse).push("state IN ('approval', 'planned') AND sent_at IS NULL AND ");
    let refuse =
        unclaimed(refuse, now).push(" RETURNING key, cluster, event_id, event_type, root, depth");
    let refused = transaction.conn().rows(&refuse).await?;
    for row in &refused {
        let depth: i64 = row.get("depth")?;
        let act = TriggerActed {
            what: IntentState::Refused.as_str().to_owned(),
            rule: firing.rule.id.to_string(),
            key: row.get("key")?,
            event_id: row.get("event_id")?,
            event_type: row.get("event_type")?,
            root_event_id: row.get("root")?,
            depth: u32::try_from(depth).unwrap_or_default(),
            reason: words(key),
            user: run_user.to_owned(),
            ..TriggerActed::default()
        };
        let cluster: String = row.get("cluster")?;
        let entry = outbox::entry(&cluster, at, act);
        transaction.conn().execute(&entry).await?;
    }
    let cancel = sql!(
        "UPDATE intents SET replaced_by = ?, next_at = CASE WHEN next_at > ? OR next_at IS NULL THEN ? ELSE next_at END",
        key,
        at,
        at
    );
    let cancel = of_queue(cancel).push(
        "state IN ('approval', 'planned', 'submitting', 'accepted', 'confirmed', 'released')",
    );
    transaction.conn().execute(&cancel).await.map(drop)
}

impl Store {
    /// Notes that the job of a released run was cancelled, because another run replaces it. The event of its end follows.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn replaced(
        &self,
        intent: &Intent,
        by: &str,
        now: DateTime<Utc>,
    ) -> Result<bool, Error> {
        let words = words(by);
        let sql = Sql::new("UPDATE intents SET replaced_by = '', error = ").bind(words.as_str());
        let sql = self.handed_back(sql, intent, now, None);
        let job = intent.job_id.map_or(0, JobId::get);
        let entry = entry(intent, "replaced", job, &words, now);
        self.change("store replaced run", sql, vec![entry]).await
    }
}
