//! Pauses or disables an endpoint: its receiver is gone (410 and the like), or no delivery has succeeded for days.
//! The owner's other chat endpoints get a notice. The API reports the reason.

use std::time::Duration;

use crate::store::{Delivery, State};
use chrono::{DateTime, TimeDelta, Utc};
use event_message::format::Format;
use tokio::sync::Mutex;

use crate::attempt::cause::{Cause, ResponsibleParty};
use crate::clock;
use crate::delivery::EndpointWorker;
use crate::error::Error;
use crate::names;
use crate::store::endpoints::{Activity, EndpointRow};
use event_message::Notice;

/// Key of the stored failure streak.
const KEY: &str = "failing-since";
/// Minimum failures before an endpoint is paused: with little traffic, two failures may be days apart with no attempt
/// between them.
const MIN_FAILURES: u32 = 10;

/// Consecutive failed attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureStreak {
    since: DateTime<Utc>,
    /// Counted up to [`MIN_FAILURES`].
    attempts: u32,
}

/// The current failure streak. The outer `Option` is `None` until it is read from the database.
pub type FailureState = Mutex<Option<Option<FailureStreak>>>;

impl FailureStreak {
    /// Adds a failed attempt.
    fn and(streak: Option<Self>, now: DateTime<Utc>) -> Self {
        let Self { since, attempts } = streak.unwrap_or(Self {
            since: now,
            attempts: 0,
        });
        Self {
            // The streak may have been started by a clock that was ahead.
            since: since.min(now),
            attempts: MIN_FAILURES.min(attempts + 1),
        }
    }

    fn to_stored(self) -> String {
        format!("{} {}", self.since.timestamp_millis(), self.attempts)
    }

    fn read(text: &str) -> Option<Self> {
        // Earlier versions stored the time only.
        let (millis, attempts) = text.split_once(' ').unwrap_or((text, "1"));
        Some(Self {
            since: DateTime::from_timestamp_millis(millis.parse().ok()?)?,
            attempts: attempts.parse().ok()?,
        })
    }

    /// True if the streak is long enough, in time and in attempts, to pause the endpoint.
    fn is_enough(self, after: Duration, now: DateTime<Utc>) -> bool {
        let after = TimeDelta::from_std(after).unwrap_or(TimeDelta::MAX);
        !after.is_zero() && self.attempts >= MIN_FAILURES && now - self.since >= after
    }
}

/// Notices about a halted endpoint, for the active chat endpoints of its owner. For an endpoint without owner they go
/// to the operator's chats that receive the events of all users.
fn notices(
    halted: &EndpointRow,
    state: &str,
    reason: &str,
    all: &[EndpointRow],
    now: DateTime<Utc>,
) -> Vec<Delivery> {
    let notice = Notice {
        webhook: halted.name.clone(),
        state: state.to_owned(),
        reason: reason.to_owned(),
    };
    let body = serde_json::json!(notice).to_string().into_bytes();
    let reads = |other: &&EndpointRow| {
        let format = serde_json::from_value::<Format>(other.spec["format"].clone());
        let users = other.spec["users"].as_array();
        other.name != halted.name
            && other.owner == halted.owner
            && other.activity == Activity::Active
            && format.is_ok_and(|format| format.is_chat())
            && (!halted.owner.is_empty() || users.is_none_or(Vec::is_empty))
    };
    let message = |other: &EndpointRow| {
        let id = names::notice_id(&other.name, &halted.name, now.timestamp_millis());
        Delivery::message(&other.name, id, body.clone(), now)
    };
    all.iter().filter(reads).map(message).collect()
}

/// The action to take on an endpoint.
#[derive(Debug, PartialEq, Eq)]
pub struct AutoDisable {
    activity: Activity,
    reason: String,
}

impl EndpointWorker {
    /// Reads the failure streak before the first request.
    ///
    /// # Errors
    /// If the database read fails.
    pub(crate) async fn read_failing(&self) -> Result<(), Error> {
        let mut failing = self.failing.lock().await;
        if failing.is_none() {
            let stored = self.rows().provider_state(KEY).await?;
            *failing = Some(stored.and_then(|text| FailureStreak::read(&text)));
        }
        Ok(())
    }

    /// Decides whether to halt the endpoint after this attempt. The streak is stored with the delivery.
    pub(crate) async fn auto_disable_after(&self, delivery: &mut Delivery) -> Option<AutoDisable> {
        if delivery.cause == Some(Cause::Gone) {
            return Some(AutoDisable {
                activity: Activity::Disabled,
                reason: delivery.error.clone(),
            });
        }
        let now = delivery.updated_at;
        let mut failing = self.failing.lock().await;
        let streak = failing.flatten();
        let next = match (delivery.state, delivery.cause) {
            (State::Delivered, _) => None,
            // The failure is not evidence about the receiver.
            (_, Some(Cause::Content)) => streak,
            (_, Some(cause)) if cause.side() == ResponsibleParty::Dispatcher => streak,
            _ => Some(FailureStreak::and(streak, now)),
        };
        if next != streak {
            delivery
                .keep
                .push((KEY.to_owned(), next.map(FailureStreak::to_stored)));
        }
        *failing = Some(next);
        let after = self.shared.auto_disable_after;
        let halts = next.is_some_and(|streak| streak.is_enough(after, now));
        halts.then(|| AutoDisable {
            activity: Activity::Paused,
            reason: format!(
                "nothing has arrived for {} (webhook-dispatcher.auto_disable_after), last: {}",
                humantime::format_duration(after),
                delivery.error
            ),
        })
    }

    /// Halts the endpoint. Waiting and new deliveries are stored until it is resumed.
    pub(crate) async fn auto_disable(&self, auto_disable: AutoDisable) {
        if self.halted.swap(true, std::sync::atomic::Ordering::AcqRel) {
            return;
        }
        if let Err(error) = self.try_auto_disable(&auto_disable).await {
            tracing::error!(
                error = mesh_runtime::error_chain(&error),
                endpoint = self.endpoint.name,
                "endpoint not disabled: database write failed, retrying after the next failed delivery"
            );
            self.halted
                .store(false, std::sync::atomic::Ordering::Release);
        }
    }

    async fn try_auto_disable(&self, auto_disable: &AutoDisable) -> Result<(), Error> {
        let (store, name, now) = (&self.shared.store, &self.endpoint.name, clock::now());
        // A resumed endpoint starts without a streak.
        let no_streak = vec![(KEY.to_owned(), None)];
        self.rows().store_provider_state(no_streak, now).await?;
        let Some(stored) = store.endpoint(name).await? else {
            return Ok(());
        };
        let AutoDisable { activity, reason } = auto_disable;
        let what = activity.as_str();
        let act = self.own_act(what, reason, now);
        // Keep the reason of a user who paused it in the meantime.
        if stored.activity != Activity::Active {
            return Ok(());
        }
        let notices = notices(&stored, what, reason, &store.endpoints().await?, now);
        let disabled = store.set_activity(name, *activity, reason, now, Some(act), &notices);
        if disabled.await? {
            tracing::warn!(endpoint = name, reason, "endpoint {what} automatically");
            self.shared.outcomes.notify_one();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_ten_failed_attempts_are_enough() {
        let start = DateTime::from_timestamp_millis(1_763_760_000_000).unwrap();
        let auto_disable_after = Duration::from_secs(5 * 24 * 60 * 60);
        let at = |hours| start + TimeDelta::hours(hours);
        let first = FailureStreak::and(None, at(0));
        let second = FailureStreak::and(Some(first), at(200));
        assert!(
            !second.is_enough(auto_disable_after, at(200)),
            "two, days apart"
        );
        let mut streak = second;
        for _ in 3..=12 {
            assert_eq!(FailureStreak::read(&streak.to_stored()), Some(streak));
            streak = FailureStreak::and(Some(streak), at(201));
        }
        assert!(streak.is_enough(auto_disable_after, at(201)));
        assert!(
            !streak.is_enough(auto_disable_after, at(119)),
            "not for so long"
        );
        assert!(!streak.is_enough(Duration::ZERO, at(201)), "never");
        assert_eq!(
            FailureStreak::and(Some(streak), at(202)),
            streak,
            "not written again"
        );
        let older = FailureStreak::read("1763760000000");
        assert_eq!(older, Some(first), "as versions before wrote it");
    }
}
