//! How far runs are. Every change names the driver's claim, so that a driver that lost it changes nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, Utc};
use mesh_db::sql::Sql;
use mesh_events::proto::mesh::audit::v1::TriggerActed;
use slurm_types::JobId;

use super::outbox;
use super::rule_states;
use super::store::{Store, names};
use crate::domain::intent::{Intent, IntentState};
use crate::error::Error;

/// A restarted controller may have lost what it accepted or released this long before.
const RECHECKED: Duration = Duration::from_secs(600);
/// When the driver takes a run again that needs nothing more: at once, if another run has replaced it meanwhile.
const REPLACED: &str = "CASE WHEN replaced_by = '' THEN NULL ELSE updated_at END";
/// Nobody has decided yet: the driver and people may decide at the same time.
pub(super) const WAITS_FOR_APPROVAL: &str = " AND state = 'approval'";

impl Store {
    /// Notes that a request is about to be sent. False if the claim is lost.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn sending(&self, intent: &Intent, now: DateTime<Utc>) -> Result<bool, Error> {
        let sql = self.attempt(intent, now);
        self.change("store attempt", sql, Vec::new()).await
    }

    /// The change that notes an attempt.
    pub(super) fn attempt(&self, intent: &Intent, now: DateTime<Utc>) -> Sql {
        let at = now.timestamp_micros();
        let sql = Sql::new("UPDATE intents SET state = 'submitting', attempts = attempts + 1, sent_at = COALESCE(sent_at, ")
            .bind(at)
            .push("), updated_at = ")
            .bind(at);
        self.claimed(sql.push(" WHERE "), intent)
    }

    /// Records the job of a submission. False if the run has a job already, or the claim is lost: then this one is a copy.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn accepted(
        &self,
        intent: &Intent,
        job_id: JobId,
        confirm_at: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<bool, Error> {
        let sql = Sql::new("UPDATE intents SET state = 'accepted', error = '', job_id = ")
            .bind(job_id.get())
            .push(", accepted_at = ")
            .bind(now.timestamp_micros());
        let sql = self.handed_back(sql, intent, now, Some(confirm_at));
        let sql = sql.push(" AND job_id IS NULL");
        let entry = entry(intent, "submitted", job_id.get(), "", now);
        let others = vec![entry, rule_states::no_refusal(&intent.rule)];
        self.change("store accepted job", sql, others).await
    }

    /// Removes the job of a submission that the controller has lost, so that it is submitted again.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn lost(
        &self,
        intent: &Intent,
        words: &str,
        now: DateTime<Utc>,
    ) -> Result<bool, Error> {
        let sql = Sql::new(
            "UPDATE intents SET state = 'planned', job_id = NULL, accepted_at = NULL, error = ",
        )
        .bind(words);
        let sql = self.handed_back(sql, intent, now, Some(now));
        self.change("store lost job", sql, Vec::new()).await
    }

    /// Gives up a job that the controller lost after its release: it may have run. A redrive submits it again.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn lost_after_release(
        &self,
        intent: &Intent,
        words: &str,
        now: DateTime<Utc>,
    ) -> Result<bool, Error> {
        let sql = Sql::new("UPDATE intents SET state = 'given_up', job_id = NULL, accepted_at = NULL, released_at = NULL, error = ")
            .bind(words);
        let sql = self.handed_back(sql, intent, now, None);
        let job = number(intent.job_id);
        let entry = entry(intent, IntentState::GivenUp.as_str(), job, words, now);
        self.change("store lost job", sql, vec![entry]).await
    }

    /// Notes that the controller has saved the job, or the requeued job is ready. The claim stays.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn confirmed(&self, intent: &Intent, now: DateTime<Utc>) -> Result<bool, Error> {
        let sql = self.confirmation(intent, now);
        self.change("store confirmed job", sql, Vec::new()).await
    }

    /// The change that notes a confirmation.
    pub(super) fn confirmation(&self, intent: &Intent, now: DateTime<Utc>) -> Sql {
        let sql = Sql::new("UPDATE intents SET state = 'confirmed', error = '', updated_at = ")
            .bind(now.timestamp_micros())
            .push(" WHERE ");
        self.claimed(sql, intent)
    }

    /// Plans another confirmation.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn unconfirmed(
        &self,
        intent: &Intent,
        at: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<bool, Error> {
        let sql = Sql::new("UPDATE intents SET state = 'accepted'");
        let sql = self.handed_back(sql, intent, now, Some(at));
        self.change("store confirmation", sql, Vec::new()).await
    }

    /// Notes that a job is released. `check_at`: when the controller is asked whether it has saved that.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn released(
        &self,
        intent: &Intent,
        check_at: Option<DateTime<Utc>>,
        now: DateTime<Utc>,
    ) -> Result<bool, Error> {
        let sql = Sql::new("UPDATE intents SET state = 'released', error = '', released_at = COALESCE(released_at, ")
            .bind(now.timestamp_micros())
            .push(")");
        let sql = match check_at {
            Some(at) => self.handed_back(sql, intent, now, Some(at)),
            None => {
                let sql = sql.push(", updated_at = ").bind(now.timestamp_micros());
                let sql = sql.push(", next_at = ").push(REPLACED);
                self.claimed(sql.push(", claimed_until = 0 WHERE "), intent)
            }
        };
        let entry = entry(intent, "released", number(intent.job_id), "", now);
        self.change("store release", sql, vec![entry]).await
    }

    /// Notes that a released job needs no further check.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn settled(&self, intent: &Intent) -> Result<bool, Error> {
        let sql = Sql::new("UPDATE intents SET error = '', next_at = ")
            .push(REPLACED)
            .push(", claimed_until = 0 WHERE ");
        let sql = self.claimed(sql, intent);
        self.change("store checked job", sql, Vec::new()).await
    }

    /// Ends a run: `done`, `refused` or `given_up`.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn finished(
        &self,
        intent: &Intent,
        state: IntentState,
        words: &str,
        now: DateTime<Utc>,
    ) -> Result<bool, Error> {
        let sql = Sql::new("UPDATE intents SET state = ")
            .bind(state.as_str())
            .push(", error = ")
            .bind(words);
        let sql = self.handed_back(sql, intent, now, None);
        let job = number(intent.job_id);
        let mut others = vec![entry(intent, state.as_str(), job, words, now)];
        if state == IntentState::Done {
            others.push(rule_states::no_refusal(&intent.rule));
        }
        self.change("store end of run", sql, others).await
    }

    /// Ends a run that Slurm refused, and counts the refusal for its rule.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn refused(
        &self,
        intent: &Intent,
        words: &str,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        if !self
            .finished(intent, IntentState::Refused, words, now)
            .await?
        {
            return Ok(());
        }
        self.count_refusal(intent, words, now).await
    }

    /// Plans the next attempt: of a request, or to ask the approvers while nobody has decided.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn retry_at(
        &self,
        intent: &Intent,
        at: DateTime<Utc>,
        words: &str,
        now: DateTime<Utc>,
    ) -> Result<bool, Error> {
        // A request that failed before anything was sent counts too: the delays grow.
        let sql = Sql::new("UPDATE intents SET error = ")
            .bind(words)
            .push(", attempts = ")
            .bind(intent.attempts.saturating_add(1));
        let sql = self.handed_back(sql, intent, now, Some(at));
        let sql = match intent.state {
            IntentState::Approval => sql.push(WAITS_FOR_APPROVAL),
            _ => sql,
        };
        self.change("store retry", sql, Vec::new()).await
    }

    /// Checks again what a restarted controller may have lost.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn check_again(
        &self,
        cluster: &str,
        at: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        let sql = Sql::new("UPDATE intents SET next_at = ")
            .bind(at.timestamp_micros())
            .push(" WHERE cluster = ")
            .bind(cluster)
            .push(" AND accepted_at IS NOT NULL AND ended_at IS NULL AND (state IN ('accepted', 'confirmed') OR (state = 'released' AND released_at > ")
            .bind((now - RECHECKED).timestamp_micros())
            .push("))");
        self.change("check runs again", sql, Vec::new())
            .await
            .map(drop)
    }

    /// Plans a dead letter again, because of `requesters`, too, or asks for approval again, by what it was planned with or `within` of its rule as it is now. False if it is
    /// none, or was refused before it was decided what to do.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn redrive(
        &self,
        intent: &Intent,
        within: Option<Duration>,
        by: &str,
        requesters: &BTreeSet<String>,
        now: DateTime<Utc>,
    ) -> Result<bool, Error> {
        let at = now.timestamp_micros();
        let requesters = &intent.cause.requesters | requesters;
        let planned = intent.approval.as_ref();
        let planned = planned.and_then(|approval| approval.within.num_microseconds());
        let within = within.and_then(|within| i64::try_from(within.as_micros()).ok());
        let within = planned.or(within);
        let otherwise = match within {
            Some(_) => "approval",
            None => "planned",
        };
        // A job that was recorded stays: it is confirmed and released, not submitted again.
        let sql = Sql::new("UPDATE intents SET state = CASE WHEN accepted_at IS NOT NULL THEN 'accepted' ELSE ")
            .bind(otherwise)
            .push(" END, replaced_by = '', asked = '', approved_by = CASE WHEN accepted_at IS NOT NULL THEN approved_by ELSE '' END, is_firing = 1, error = '', requesters = ")
            .bind(names(&requesters).as_str())
            .push(", approve_within = ")
            .bind(within)
            .push(", approve_until = ")
            .bind(within.map(|within| at.saturating_add(within)))
            .push(", created_at = ")
            .bind(at)
            .push(", updated_at = ")
            .bind(at)
            .push(", next_at = ")
            .bind(at)
            .push(" WHERE key = ")
            .bind(&intent.key)
            .push(" AND state IN ('refused', 'given_up') AND action <> ''");
        let entry = outbox::entry(
            &intent.cause.cluster,
            at,
            TriggerActed {
                made_by: by.to_owned(),
                requesters: requesters.into_iter().collect(),
                ..act(intent, "redriven", number(intent.job_id), "")
            },
        );
        self.change("redrive run", sql, vec![entry]).await
    }

    /// Removes runs that ended before a time.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn expire(&self, before: DateTime<Utc>) -> Result<(), Error> {
        let sql = Sql::new("DELETE FROM intents WHERE next_at IS NULL AND created_at < ")
            .bind(before.timestamp_micros());
        let tasks = Sql::new(
            "DELETE FROM array_tasks WHERE NOT EXISTS (SELECT 1 FROM intents WHERE intents.key = array_tasks.run_key)",
        );
        self.change("expire runs", sql, vec![tasks]).await.map(drop)
    }

    /// A change with which the driver hands a run back until it is due again.
    pub(super) fn handed_back(
        &self,
        sql: Sql,
        intent: &Intent,
        now: DateTime<Utc>,
        next_at: Option<DateTime<Utc>>,
    ) -> Sql {
        let sql = sql
            .push(", updated_at = ")
            .bind(now.timestamp_micros())
            .push(", next_at = ")
            .bind(next_at.map(|at| at.timestamp_micros()))
            .push(", claimed_until = 0 WHERE ");
        self.claimed(sql, intent)
    }

    pub(super) fn claimed(&self, sql: Sql, intent: &Intent) -> Sql {
        sql.push("key = ")
            .bind(&intent.key)
            .push(" AND claimed_until > 0 AND claimed_by = ")
            .bind(&*self.database.instance)
    }
}

fn number(job: Option<JobId>) -> u32 {
    job.map_or(0, JobId::get)
}

pub(super) fn act(intent: &Intent, what: &str, job_id: u32, reason: &str) -> TriggerActed {
    TriggerActed {
        what: what.to_owned(),
        rule: intent.rule.to_string(),
        key: intent.key.clone(),
        event_id: intent.cause.event_id.clone(),
        event_type: intent.cause.event_type.clone(),
        root_event_id: intent.root.clone(),
        depth: intent.depth,
        job_id,
        reason: reason.to_owned(),
        user: match intent.user == intent.rule.owner {
            true => String::new(),
            false => intent.user.clone(),
        },
        ..TriggerActed::default()
    }
}

pub(super) fn entry(
    intent: &Intent,
    what: &str,
    job_id: u32,
    reason: &str,
    now: DateTime<Utc>,
) -> Sql {
    outbox::entry(
        &intent.cause.cluster,
        now.timestamp_micros(),
        act(intent, what, job_id, reason),
    )
}
