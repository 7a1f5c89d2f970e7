//! From firings to intents: one transaction decides by the guards and makes the decisions durable. Only then the events are acknowledged.

use std::collections::BTreeSet;

use chrono::{DateTime, TimeDelta, Utc};
use mesh_db::pool::WriteTransaction;
use mesh_db::sql::{Row, Sql};
use mesh_events::proto::mesh::audit::v1::TriggerActed;
use slurm_types::JobId;

use super::arrays::{self, ArrayRetry};
use super::budgets;
use super::intents::RUN_USER;
use super::outbox;
use super::replaced;
use super::rule_states;
use super::store::{Store, count, first, names};
use crate::domain::budget::Spender;
use crate::domain::firing::Firing;
use crate::domain::guards::{self, GuardFacts, Refusal, SiteLimits};
use crate::domain::intent::{Chain, IntentState};
use crate::domain::planned_action::PlannedAction;
use crate::domain::rule::{Concurrency, RunAs};
use crate::error::Error;

/// Refusals of a rule in an hour that are stored one by one. A rule that is refused more often is shown by its last refusal.
const MAX_STORED_REFUSALS: u32 = 100;

/// What became of a firing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Key of the run.
    pub key: String,
    /// `None`: it had been planned before.
    pub state: Option<IntentState>,
    /// Why it was refused.
    pub reason: String,
    /// A word for the refusal, for metrics.
    pub refusal: &'static str,
    /// Whether it joined a run of its array.
    pub is_joined: bool,
}

impl Store {
    /// Plans firings in one transaction. Each key once, however often it comes.
    ///
    /// # Errors
    /// If the database refuses. Nothing is planned then.
    pub async fn plan(
        &self,
        firings: &[Firing],
        site: &SiteLimits,
        now: DateTime<Utc>,
    ) -> Result<Vec<Planned>, Error> {
        self.ensure_restored()?;
        let planned = async {
            let mut transaction = self.database.begin().await?;
            // The guards count, so one process at a time plans.
            let lock = Sql::default().either(
                "UPDATE rules SET reason = reason WHERE FALSE",
                "LOCK TABLE rules IN SHARE ROW EXCLUSIVE MODE",
            );
            transaction.conn().execute(&lock).await?;
            let mut planned = Vec::with_capacity(firings.len());
            for (place, firing) in (0..).zip(firings) {
                // In the order of the events, which queues preserve.
                let at = now + TimeDelta::microseconds(place);
                planned.push(one(&mut transaction, firing, site, at).await?);
            }
            transaction.commit().await?;
            Ok(planned)
        };
        planned.await.map_err(Error::database("plan runs"))
    }
}

async fn one(
    transaction: &mut WriteTransaction,
    firing: &Firing,
    site: &SiteLimits,
    now: DateTime<Utc>,
) -> Result<Planned, sqlx::Error> {
    let key = firing.key.as_str();
    let run = |key: String, is_joined| Planned {
        key,
        state: None,
        reason: String::new(),
        refusal: "",
        is_joined,
    };
    let known = Sql::new("SELECT state, error FROM intents WHERE key = ").bind(key);
    if transaction.conn().first(&known).await?.is_some() {
        return Ok(run(key.to_owned(), false));
    }
    if let Some(joined) = arrays::joined(transaction, firing).await? {
        return Ok(run(joined, false));
    }
    let rule = &firing.rule;
    if firing.is_uncertain {
        let at = now.timestamp_micros();
        let cluster = &firing.cause.cluster;
        let reason = format!(
            "the database was recovered, and event {} may have fired before: look for its job, then resume the rule",
            firing.cause.event_id
        );
        rule_states::pause_for_recovery(transaction, &rule.id, &reason, cluster, at).await?;
    }
    let place = place(transaction, firing).await?;
    let (facts, refusals) = facts(transaction, firing, &place, now).await?;
    let array = ArrayRetry::new(firing, facts.retries);
    if !facts.is_paused && !rule.dry_run && firing.action.is_ok() {
        let joined = arrays::join(transaction, firing, array, arrays::OPEN, now).await?;
        if let Some(joined) = joined {
            return Ok(run(joined, true));
        }
    }
    let decision = guards::check(rule, site, &facts);
    let (state, reason, refusal) = match (&decision, &firing.action) {
        (Err(refusal), _) => (IntentState::Refused, refusal.to_string(), refusal.as_str()),
        (Ok(()), Err(problem)) => (IntentState::Refused, problem.clone(), "template"),
        (Ok(()), Ok(_)) if rule.dry_run => (IntentState::DryRun, String::new(), ""),
        (Ok(()), Ok(_)) if rule.approval.is_some() => (IntentState::Approval, String::new(), ""),
        (Ok(()), Ok(_)) => (IntentState::Planned, String::new(), ""),
    };
    // One refusal for all tasks of an array.
    let same = match (state, &firing.action) {
        (IntentState::DryRun, _) => Some(arrays::RECORDED),
        (IntentState::Refused, Ok(_)) => Some(arrays::REFUSED),
        (IntentState::Refused, Err(_)) => Some(arrays::IMPOSSIBLE),
        _ => None,
    };
    if let Some(same) = same
        && let Some(joined) = arrays::join(transaction, firing, array, same, now).await?
    {
        return Ok(run(joined, true));
    }
    if state == IntentState::Refused {
        let counts = !decision.is_err_and(|refusal: Refusal| !refusal.counts_towards_pause());
        let paused = rule_states::note_refusal(
            transaction,
            &rule.id,
            &reason,
            counts,
            &firing.cause.cluster,
            now.timestamp_micros(),
        );
        paused.await?;
    }
    if state == IntentState::Planned && rule.limits.concurrency == Concurrency::Replace {
        replaced::replace(transaction, firing, run_user(firing), now).await?;
    }
    if state != IntentState::Refused || refusals < MAX_STORED_REFUSALS {
        insert(transaction, firing, &place, array, state, &reason, now).await?;
    }
    Ok(Planned {
        key: key.to_owned(),
        state: Some(state),
        reason,
        refusal,
        is_joined: false,
    })
}

/// Where a firing is.
struct Place {
    /// The chain that led to it.
    chain: Chain,
    /// Whether the event is about a job that the rule itself submitted.
    is_of_own_job: bool,
    /// Names of whoever caused it, or a run before it in the chain.
    requesters: BTreeSet<String>,
}

async fn place(transaction: &mut WriteTransaction, firing: &Firing) -> Result<Place, sqlx::Error> {
    const COLUMNS: &str = "SELECT key, root, depth, rule_owner, rule_name, accepted_at, requesters FROM intents WHERE ";
    let cause = &firing.cause;
    let with_those_of = |row: &Row| -> Result<BTreeSet<String>, sqlx::Error> {
        let before: String = row.get("requesters")?;
        let before = before.lines().map(str::to_owned);
        Ok(cause.requesters.iter().cloned().chain(before).collect())
    };
    if let Some(chain) = &cause.chain {
        let sql = Sql::new(COLUMNS).push("key = ").bind(&chain.parent);
        let parent = transaction.conn().first(&sql).await?;
        let requesters = parent.as_ref().map(with_those_of).transpose()?;
        return Ok(Place {
            chain: chain.clone(),
            is_of_own_job: false,
            requesters: requesters.unwrap_or_else(|| cause.requesters.clone()),
        });
    }
    let mut found = None;
    if let Some(key) = &cause.job_key {
        let sql = Sql::new(COLUMNS).push("key = ").bind(key);
        found = transaction.conn().first(&sql).await?;
    }
    if let (None, Some(job)) = (&found, cause.job_id) {
        // The owner may have changed the comment. A job that a rule ran again has none.
        let sql = arrays::about_job(Sql::new(COLUMNS), job)
            .push(" AND cluster = ")
            .bind(&cause.cluster)
            .push(" AND is_firing = 1 ORDER BY created_at DESC LIMIT 1");
        found = transaction.conn().first(&sql).await?;
    }
    let Some(row) = found else {
        return Ok(Place {
            chain: Chain {
                root: cause.event_id.clone(),
                parent: String::new(),
                depth: 0,
            },
            is_of_own_job: false,
            requesters: cause.requesters.clone(),
        });
    };
    let rule = &firing.rule.id;
    let is_of_rule = row.get::<String>("rule_owner")? == rule.owner
        && row.get::<String>("rule_name")? == rule.name;
    let chain = Chain {
        root: row.get("root")?,
        parent: row.get("key")?,
        depth: count(&row, "depth")?.saturating_add(1),
    };
    let is_accepted = row.get::<Option<i64>>("accepted_at")?.is_some();
    Ok(Place {
        chain,
        is_of_own_job: is_of_rule && is_accepted,
        requesters: with_those_of(&row)?,
    })
}

/// The user as whom a firing acts, if that is not the rule's owner by the rule. Its limits count for each such user.
fn run_user(firing: &Firing) -> &str {
    match firing.rule.run_as {
        RunAs::Owner => "",
        RunAs::OwnerOfEvent => &firing.user,
    }
}

/// What the guards ask, and the refusals of the rule in the last hour.
async fn facts(
    transaction: &mut WriteTransaction,
    firing: &Firing,
    place: &Place,
    now: DateTime<Utc>,
) -> Result<(GuardFacts, u32), sqlx::Error> {
    let (rule, rule_limits) = (&firing.rule.id, &firing.rule.limits);
    let hour_ago = (now - TimeDelta::hours(1)).timestamp_micros();
    let of_rule = |sql: Sql| {
        sql.push("rule_owner = ")
            .bind(&rule.owner)
            .push(" AND rule_name = ")
            .bind(&rule.name)
    };
    let of_rule_and_user = |sql: Sql| of_rule(sql).push(" AND run_user = ").bind(run_user(firing));
    let number = |sql: Sql| sql.push(" THEN 1 ELSE 0 END), 0) AS BIGINT)");
    let sum = " CAST(COALESCE(SUM(CASE WHEN ";
    let sql = Sql::new("SELECT").push(sum).push("is_firing = 1");
    let sql = number(sql).push(" AS everybody,").push(sum);
    let sql = sql
        .push("is_firing = 1 AND ")
        .push(RUN_USER)
        .push(" = ")
        .bind(&firing.user);
    let sql = number(sql).push(" AS owner,").push(sum);
    let sql = number(of_rule_and_user(sql.push("is_firing = 1 AND ")))
        .push(" AS rule,")
        .push(sum);
    let sql = number(of_rule(sql.push("state = 'refused' AND ")))
        .push(" AS refusals FROM intents WHERE created_at > ")
        .bind(hour_ago);
    let hour = first(transaction, &sql).await?;
    let sql = Sql::new("SELECT COUNT(*) AS n FROM intents WHERE is_firing = 1 AND root = ")
        .bind(&place.chain.root);
    let root = first(transaction, &sql).await?;
    let sql = of_rule_and_user(Sql::new("SELECT COUNT(*) AS n FROM intents WHERE "))
        .push(" AND is_firing = 1 AND ended_at IS NULL AND state IN ('approval', 'planned', 'submitting', 'accepted', 'confirmed', 'released') AND ")
        .push(arrays::WAITS_FOR_NO_TASKS);
    let concurrency = rule_limits.concurrency;
    let sql = match &firing.queue {
        Some(key) if concurrency == Concurrency::Skip => sql.push(" AND queue_key = ").bind(key),
        _ => sql,
    };
    let running = first(transaction, &sql).await?;
    let mut facts = GuardFacts {
        is_paused: rule_states::is_paused(transaction, rule).await?,
        depth: place.chain.depth,
        is_of_own_job: place.is_of_own_job,
        jobs_of_root: count(&root, "n")?,
        rule_last_hour: count(&hour, "rule")?,
        user_last_hour: count(&hour, "owner")?,
        last_hour: count(&hour, "everybody")?,
        running: match (&firing.queue, concurrency) {
            // It waits until there are few enough.
            (Some(_), Concurrency::Queue | Concurrency::Replace) => 0,
            (Some(_), Concurrency::Skip) | (None, _) => count(&running, "n")?,
        },
        retries: 0,
        exceeded_budget: match Spender::of(firing) {
            Some(spender) => budgets::exceeded(transaction, &spender, now).await?,
            None => None,
        },
    };
    if let Ok(PlannedAction::Rerun { job_id, .. }) = &firing.action {
        let sql = of_rule(Sql::new("SELECT COUNT(*) AS n FROM intents WHERE "))
            .push(" AND is_firing = 1 AND job_id = ")
            .bind(job_id.get())
            .push(" AND cluster = ")
            .bind(&firing.cause.cluster);
        facts.retries = count(&first(transaction, &sql).await?, "n")?;
    }
    if let Some(task) = &firing.task {
        facts.retries = arrays::retries(transaction, firing, task).await?;
    }
    Ok((facts, count(&hour, "refusals")?))
}

async fn insert(
    transaction: &mut WriteTransaction,
    firing: &Firing,
    place: &Place,
    array: Option<ArrayRetry<'_>>,
    state: IntentState,
    reason: &str,
    now: DateTime<Utc>,
) -> Result<(), sqlx::Error> {
    let (rule, cause, chain) = (&firing.rule, &firing.cause, &place.chain);
    let action = firing.action.as_ref().ok();
    let text = action.map(serde_json::to_string).transpose();
    let text = text.map_err(|error| sqlx::Error::Encode(error.into()))?;
    let is_waiting = state == IntentState::Approval;
    let is_firing = is_waiting || state == IntentState::Planned;
    // Of a refused one, too: a redrive does not go past the approvers.
    let within = rule.approval.as_ref();
    let within = within.and_then(|approval| i64::try_from(approval.within.as_micros()).ok());
    let starts_job = action.is_some_and(PlannedAction::starts_job);
    let at = now.timestamp_micros();
    let job_id = match &array {
        Some(array) => Some(array.task.array),
        None => action.and_then(PlannedAction::target),
    };
    let job_id = job_id.map(|job| i64::from(job.get()));
    let queue_limit = match (&firing.queue, rule.limits.concurrency) {
        (None, _) | (Some(_), Concurrency::Skip) => None,
        (Some(_), Concurrency::Queue) => Some(i64::from(rule.limits.running.unwrap_or(1))),
        (Some(_), Concurrency::Replace) => Some(1),
    };
    let sql = Sql::new("INSERT INTO intents (key, rule_owner, rule_name, run_user, generation, state, event_id, event_type, cluster, event_at, fired_by, root, depth, action, is_firing, starts_job, job_id, created_at, updated_at, error, traceparent, parent, event_job, queue_key, queue_limit, approve_within, approve_until, requesters, array_attempt, tasks, next_at) VALUES (")
        .list([
            firing.key.as_str().into(),
            (&rule.id.owner).into(),
            (&rule.id.name).into(),
            run_user(firing).into(),
            rule.generation.into(),
            state.as_str().into(),
            (&cause.event_id).into(),
            (&cause.event_type).into(),
            (&cause.cluster).into(),
            cause.at.timestamp_micros().into(),
            (&cause.fired_by).into(),
            (&chain.root).into(),
            chain.depth.into(),
            text.as_deref().unwrap_or_default().into(),
            i64::from(is_firing).into(),
            i64::from(starts_job).into(),
            job_id.into(),
            at.into(),
            at.into(),
            reason.into(),
            (&cause.traceparent).into(),
            (&chain.parent).into(),
            cause.job_id.map(i64::from).into(),
            firing.queue.as_deref().into(),
            queue_limit.into(),
            within.into(),
            within
                .filter(|_| is_waiting)
                .map(|within| at.saturating_add(within))
                .into(),
            names(&place.requesters).as_str().into(),
            array.map(|array| i64::from(array.attempt)).into(),
            i64::from(array.is_some()).into(),
            is_firing.then_some(at).into(),
        ])
        .push(")");
    transaction.conn().execute(&sql).await?;
    if let Some(array) = array {
        arrays::add_task(transaction, firing, array.task, firing.key.as_str()).await?;
    }
    let what = match state {
        IntentState::Planned => "fired",
        other => other.as_str(),
    };
    let act = TriggerActed {
        what: what.to_owned(),
        rule: rule.id.to_string(),
        key: firing.key.to_string(),
        event_id: cause.event_id.clone(),
        event_type: cause.event_type.clone(),
        root_event_id: chain.root.clone(),
        depth: chain.depth,
        job_id: action.and_then(PlannedAction::target).map_or(0, JobId::get),
        reason: reason.to_owned(),
        made_by: cause.fired_by.clone(),
        requesters: place.requesters.iter().cloned().collect(),
        user: run_user(firing).to_owned(),
        ..TriggerActed::default()
    };
    let entry = outbox::entry(&cause.cluster, at, act);
    transaction.conn().execute(&entry).await.map(drop)
}
