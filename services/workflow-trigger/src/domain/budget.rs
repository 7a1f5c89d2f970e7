//! Budgets of users and accounts, as the events of the cost-engine tell their state.

use chrono::{DateTime, Utc};
use event_filter::DecodedEvent;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::{EventType, from_timestamp};

use super::firing::Firing;
use super::planned_action::PlannedAction;

/// Whether a budget is exceeded, by its last event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetState {
    /// Its name.
    pub name: String,
    /// The user whose jobs count. Empty: those of everybody.
    pub user: String,
    /// The account whose jobs count. Empty: those of every account.
    pub account: String,
    /// Whether the amount is used up.
    pub is_exceeded: bool,
    /// End of the period. `None` if it has none.
    pub ends_at: Option<DateTime<Utc>>,
    /// Time of the event.
    pub at: DateTime<Utc>,
    /// Number of the event, among those of the same time.
    pub number: u64,
}

impl BudgetState {
    /// The state that an event tells. `None` if it is about no budget of a user or account, or one that is narrowed by what a rule does not
    /// know of its job.
    pub fn of(kind: EventType, event: &DecodedEvent) -> Option<Self> {
        let Some(Payload::User(payload)) = &event.payload else {
            return None;
        };
        let quota = payload.quota.as_ref()?;
        let is_exceeded = match kind {
            EventType::UserQuotaExceeded => true,
            // Below one threshold, which may be above the amount.
            EventType::UserQuotaCleared => quota.percent.is_some_and(|percent| percent >= 100),
            _ => return None,
        };
        let account = account(&payload.account, &quota.scope)?;
        if payload.user.is_empty() && account.is_empty() {
            return None;
        }
        Some(Self {
            name: quota.budget.clone(),
            user: payload.user.clone(),
            account,
            is_exceeded,
            ends_at: quota.period_end.as_ref().and_then(from_timestamp),
            at: event.occurred_at.as_ref().and_then(from_timestamp)?,
            number: event.run_seq,
        })
    }
}

/// The account of a budget, by its scope: texts such as `account=nlp`. `None` if there are several, or other keys.
fn account(named: &str, scope: &[String]) -> Option<String> {
    let mut accounts = Vec::new();
    for text in scope {
        match text.split_once('=')? {
            ("user" | "identity" | "cluster", _) => {}
            ("account", account) => {
                accounts.push(account.strip_suffix(" with subaccounts").unwrap_or(account));
            }
            _ => return None,
        }
    }
    match accounts.as_slice() {
        [] => Some(named.to_owned()),
        [account] => Some((*account).to_owned()),
        _ => None,
    }
}

/// Whose money the job of a firing spends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spender {
    /// The user as whom the job runs.
    pub user: String,
    /// The account that the rule names for the job. Empty: none.
    pub account: String,
}

impl Spender {
    /// The spender of a firing that starts a job, if its rule heeds budgets.
    pub fn of(firing: &Firing) -> Option<Self> {
        let action = firing.action.as_ref().ok()?;
        if !firing.rule.limits.budget || !action.starts_job() {
            return None;
        }
        let account = match action {
            PlannedAction::Submit { job } => job.fields.account.clone(),
            _ => None,
        };
        Some(Self {
            user: firing.user.clone(),
            account: account.unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use event_filter::sample;

    use super::*;

    fn state(kind: EventType, percent: u64, user: &str, scope: &[&str]) -> Option<BudgetState> {
        let mut event = sample::event(kind);
        let Some(Payload::User(payload)) = &mut event.payload else {
            panic!("no event of a user");
        };
        payload.user = user.to_owned();
        payload.account = String::new();
        let quota = payload.quota.as_mut().unwrap();
        quota.percent = Some(percent);
        quota.scope = scope.iter().map(|text| (*text).to_owned()).collect();
        BudgetState::of(kind, &event.into())
    }

    #[test]
    fn a_budget_is_exceeded_until_its_use_is_below_the_amount() {
        use EventType::{UserQuotaCleared, UserQuotaExceeded, UserQuotaHigh};
        let is_exceeded = |kind, percent| {
            let state = state(kind, percent, "alice", &["user=alice", "cluster=c"]);
            state.map(|state| state.is_exceeded)
        };
        assert_eq!(is_exceeded(UserQuotaHigh, 80), None);
        assert_eq!(is_exceeded(UserQuotaExceeded, 100), Some(true));
        // Below a threshold of 120 %.
        assert_eq!(is_exceeded(UserQuotaCleared, 114), Some(true));
        assert_eq!(is_exceeded(UserQuotaCleared, 94), Some(false));
        for (user, scope, expected) in [
            ("", &["account=nlp with subaccounts"][..], Some("nlp")),
            ("alice", &["user=alice", "account=nlp"], Some("nlp")),
            ("alice", &["user=alice"], Some("")),
            ("", &["cluster=c"], None),
            ("", &["account=a", "account=b"], None),
            ("alice", &["user=alice", "partition=gpu"], None),
        ] {
            let state = state(UserQuotaExceeded, 100, user, scope);
            let account = state.map(|state| state.account);
            assert_eq!(account.as_deref(), expected, "{user} {scope:?}");
        }
    }
}
