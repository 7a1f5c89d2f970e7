//! Runs that wait for approval.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use mesh_db::sql::Sql;
use mesh_events::proto::mesh::audit::v1::TriggerActed;

use super::outbox;
use super::progress::{WAITS_FOR_APPROVAL, act, entry};
use super::store::{Store, names};
use crate::domain::intent::{Intent, IntentState};
use crate::error::Error;

/// Of a paused rule nothing is approved: somebody wanted it to stop.
const NOT_PAUSED: &str = " AND NOT EXISTS (SELECT 1 FROM rules WHERE rules.owner = intents.rule_owner AND rules.name = intents.rule_name AND paused_at IS NOT NULL)";

impl Store {
    /// Notes who was asked to approve. The driver takes the run again when the request ends.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn asked(
        &self,
        intent: &Intent,
        asked: &BTreeSet<String>,
        until: DateTime<Utc>,
    ) -> Result<bool, Error> {
        let sql = Sql::new("UPDATE intents SET error = '', asked = ")
            .bind(names(asked).as_str())
            .push(", next_at = ")
            .bind(until.timestamp_micros())
            .push(", claimed_until = 0 WHERE ");
        let sql = self.claimed(sql, intent).push(WAITS_FOR_APPROVAL);
        self.change("store request for approval", sql, Vec::new())
            .await
    }

    /// Lets the driver look at all runs that wait: their rules may have other approvers now.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn look_for_new_approvers(&self, now: DateTime<Utc>) -> Result<bool, Error> {
        let at = now.timestamp_micros();
        let sql = Sql::new("UPDATE intents SET next_at = ")
            .bind(at)
            .push(" WHERE state = 'approval' AND next_at > ")
            .bind(at);
        self.change("look for new approvers", sql, Vec::new()).await
    }

    /// Refuses a run that nobody approved in time.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn not_approved(
        &self,
        intent: &Intent,
        words: &str,
        now: DateTime<Utc>,
    ) -> Result<bool, Error> {
        let sql = self.handed_back(refusal(words), intent, now, None);
        let sql = sql.push(WAITS_FOR_APPROVAL);
        let refused = entry(intent, IntentState::Refused.as_str(), 0, words, now);
        self.change("store end of run", sql, vec![refused]).await
    }

    /// Approves a run: the driver does it. False if it does not wait for approval, or its rule is paused.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn approve(
        &self,
        intent: &Intent,
        by: &str,
        now: DateTime<Utc>,
    ) -> Result<bool, Error> {
        let at = now.timestamp_micros();
        let sql = Sql::new("UPDATE intents SET state = 'planned', error = '', approved_by = ")
            .bind(by)
            // Of attempts to ask the approvers.
            .push(", attempts = CASE WHEN sent_at IS NULL THEN 0 ELSE attempts END")
            // The time from which its attempts are counted.
            .push(", created_at = ")
            .bind(at)
            .push(", updated_at = ")
            .bind(at)
            .push(", next_at = ")
            .bind(at)
            .push(", claimed_until = 0 WHERE approve_until > ")
            .bind(at)
            .push(" AND key = ")
            .bind(&intent.key)
            .push(WAITS_FOR_APPROVAL)
            .push(NOT_PAUSED);
        let entries = vec![decision(intent, "approved", by, "", at)];
        self.change("approve run", sql, entries).await
    }

    /// Rejects a run. False if it does not wait for approval.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn reject(
        &self,
        intent: &Intent,
        by: &str,
        words: &str,
        now: DateTime<Utc>,
    ) -> Result<bool, Error> {
        let sql = refusal(words)
            .push(", next_at = NULL, updated_at = ")
            .bind(now.timestamp_micros())
            .push(", claimed_until = 0 WHERE key = ")
            .bind(&intent.key)
            .push(WAITS_FOR_APPROVAL);
        let refused = IntentState::Refused.as_str();
        let entries = vec![decision(intent, refused, by, words, now.timestamp_micros())];
        self.change("reject run", sql, entries).await
    }
}

fn refusal(words: &str) -> Sql {
    Sql::new("UPDATE intents SET state = 'refused', error = ").bind(words)
}

fn decision(intent: &Intent, what: &str, by: &str, words: &str, at: i64) -> Sql {
    let acted = TriggerActed {
        made_by: by.to_owned(),
        ..act(intent, what, 0, words)
    };
    outbox::entry(&intent.cause.cluster, at, acted)
}
