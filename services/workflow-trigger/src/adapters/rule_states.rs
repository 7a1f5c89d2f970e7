//! What is stored about rules beside their configuration: whether they are paused, and their refusals.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use mesh_db::pool::WriteTransaction;
use mesh_db::sql::Sql;
use mesh_events::proto::mesh::audit::v1::TriggerActed;

use super::outbox;
use super::store::{Store, rule_id};
use crate::domain::guards::PAUSE_AFTER_REFUSALS;
use crate::domain::intent::Intent;
use crate::domain::rule::RuleId;
use crate::error::Error;

/// The stored state of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleState {
    /// When it was paused. `None`: it is not.
    pub paused_at: Option<DateTime<Utc>>,
    /// Who paused it. Empty if the service did.
    pub paused_by: String,
    /// Why it was paused.
    pub reason: String,
    /// The last refusal of a firing.
    pub last_refusal: String,
}

pub(super) async fn is_paused(
    transaction: &mut WriteTransaction,
    rule: &RuleId,
) -> Result<bool, sqlx::Error> {
    let sql = of_rule(Sql::new("SELECT paused_at FROM rules WHERE "), rule)
        .push(" AND paused_at IS NOT NULL");
    Ok(transaction.conn().first(&sql).await?.is_some())
}

/// Stores a refusal. If `counts`, a rule that is refused several times in a row is paused.
pub(super) async fn note_refusal(
    transaction: &mut WriteTransaction,
    rule: &RuleId,
    reason: &str,
    counts: bool,
    cluster: &str,
    at: i64,
) -> Result<(), sqlx::Error> {
    let sql = Sql::new("INSERT INTO rules (owner, name, last_refusal, refusals_in_row) VALUES (")
        .list([
            (&rule.owner).into(),
            (&rule.name).into(),
            reason.into(),
            i64::from(counts).into(),
        ])
        .push(") ON CONFLICT (owner, name) DO UPDATE SET last_refusal = excluded.last_refusal, refusals_in_row = rules.refusals_in_row + excluded.refusals_in_row RETURNING refusals_in_row");
    let row = transaction.conn().first(&sql).await?;
    let in_row: i64 = row
        .ok_or(sqlx::Error::RowNotFound)?
        .get("refusals_in_row")?;
    if !counts || in_row < i64::from(PAUSE_AFTER_REFUSALS) {
        return Ok(());
    }
    let words = format!("{in_row} refusals in a row, the last: {reason}");
    let sql = of_rule(
        Sql::new("UPDATE rules SET paused_by = '', paused_at = ")
            .bind(at)
            .push(", reason = ")
            .bind(&words)
            .push(" WHERE "),
        rule,
    )
    .push(" AND paused_at IS NULL");
    if transaction.conn().execute(&sql).await? > 0 {
        let entry = outbox::entry(cluster, at, act(rule, "paused", &words, ""));
        transaction.conn().execute(&entry).await?;
    }
    Ok(())
}

/// The statement that pauses a rule, if it is not paused.
pub(super) fn pause_sql(rule: &RuleId, at: i64, by: &str, reason: &str) -> Sql {
    Sql::new("INSERT INTO rules (owner, name, paused_at, paused_by, reason) VALUES (")
        .list([
            (&rule.owner).into(),
            (&rule.name).into(),
            at.into(),
            by.into(),
            reason.into(),
        ])
        .push(") ON CONFLICT (owner, name) DO UPDATE SET paused_at = excluded.paused_at, paused_by = excluded.paused_by, reason = excluded.reason WHERE rules.paused_at IS NULL")
}

/// Pauses a rule of which it is not known what it has done.
pub(super) async fn pause_for_recovery(
    transaction: &mut WriteTransaction,
    rule: &RuleId,
    reason: &str,
    cluster: &str,
    at: i64,
) -> Result<(), sqlx::Error> {
    let sql = pause_sql(rule, at, "", reason);
    if transaction.conn().execute(&sql).await? > 0 {
        let entry = outbox::entry(cluster, at, act(rule, "paused", reason, ""));
        transaction.conn().execute(&entry).await?;
    }
    Ok(())
}

/// The statement after a success of a rule.
pub(super) fn no_refusal(rule: &RuleId) -> Sql {
    of_rule(
        Sql::new("UPDATE rules SET refusals_in_row = 0 WHERE refusals_in_row > 0 AND "),
        rule,
    )
}

fn of_rule(sql: Sql, rule: &RuleId) -> Sql {
    sql.push("owner = ")
        .bind(&rule.owner)
        .push(" AND name = ")
        .bind(&rule.name)
}

pub(super) fn act(rule: &RuleId, what: &str, reason: &str, made_by: &str) -> TriggerActed {
    TriggerActed {
        what: what.to_owned(),
        rule: rule.to_string(),
        reason: reason.to_owned(),
        made_by: made_by.to_owned(),
        ..TriggerActed::default()
    }
}

impl Store {
    /// Counts a refusal by Slurm. One for another user than the rule's owner says nothing about the rule.
    pub(super) async fn count_refusal(
        &self,
        intent: &Intent,
        words: &str,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        let counted = async {
            let mut transaction = self.database.begin().await?;
            let at = now.timestamp_micros();
            let (rule, cluster) = (&intent.rule, &intent.cause.cluster);
            let counts = intent.user == rule.owner;
            note_refusal(&mut transaction, rule, words, counts, cluster, at).await?;
            transaction.commit().await
        };
        counted.await.map_err(Error::database("count refusal"))
    }

    /// The stored states of all rules.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn rule_states(&self) -> Result<BTreeMap<RuleId, RuleState>, Error> {
        const ACTION: &str = "read states of rules";
        let sql =
            Sql::new("SELECT owner, name, paused_at, paused_by, reason, last_refusal FROM rules");
        let rows = self.database.rows(ACTION, &sql).await?;
        rows.iter()
            .map(|row| {
                let id = rule_id(row, "owner", "name")?;
                let paused_at: Option<i64> = row.get("paused_at")?;
                let state = RuleState {
                    paused_at: paused_at.and_then(DateTime::from_timestamp_micros),
                    paused_by: row.get("paused_by")?,
                    reason: row.get("reason")?,
                    last_refusal: row.get("last_refusal")?,
                };
                Ok((id, state))
            })
            .collect::<Result<_, _>>()
            .map_err(Error::database(ACTION))
    }

    /// Pauses a rule. Its events are refused until it is resumed; runs that were planned go on.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn pause(
        &self,
        rule: &RuleId,
        by: &str,
        reason: &str,
        cluster: &str,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        let at = now.timestamp_micros();
        let sql = pause_sql(rule, at, by, reason);
        let entry = outbox::entry(cluster, at, act(rule, "paused", reason, by));
        self.change("pause rule", sql, vec![entry]).await.map(drop)
    }

    /// Resumes a rule.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn resume(
        &self,
        rule: &RuleId,
        by: &str,
        cluster: &str,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        let sql = of_rule(
            Sql::new("UPDATE rules SET paused_at = NULL, paused_by = '', reason = '', refusals_in_row = 0 WHERE "),
            rule,
        )
        .push(" AND paused_at IS NOT NULL");
        let entry = outbox::entry(
            cluster,
            now.timestamp_micros(),
            act(rule, "resumed", "", by),
        );
        self.change("resume rule", sql, vec![entry]).await.map(drop)
    }
}
