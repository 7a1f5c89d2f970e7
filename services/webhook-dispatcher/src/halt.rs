//! When an endpoint is not to be sent to any more: its receiver said so, or nothing has arrived for days. Its owner is told where they
//! have a chat; for everybody else the API says why.

use chrono::{DateTime, TimeDelta, Utc};
use tokio::sync::Mutex;

use crate::adapters::endpoints::{Activity, Stored};
use crate::adapters::store::{Delivery, State};
use crate::announce;
use crate::domain::cause::{Cause, Side};
use crate::domain::format::Format;
use crate::domain::message::Notice;
use crate::domain::names;
use crate::error::Error;
use crate::lane::Lane;

/// Under it the beginning of the failures is kept.
const KEY: &str = "failing-since";

/// Since when every attempt failed; the outer is `None` until it was read.
pub type Failing = Mutex<Option<Option<DateTime<Utc>>>>;

/// Messages about an endpoint that is halted, to what its owner reads: their chats that are at work. Where nobody owns it, it is the
/// operator's, whose chats are those for everybody's events.
fn notices(
    halted: &Stored,
    state: &str,
    reason: &str,
    all: &[Stored],
    now: DateTime<Utc>,
) -> Vec<Delivery> {
    let notice = Notice {
        webhook: halted.name.clone(),
        state: state.to_owned(),
        reason: reason.to_owned(),
    };
    let body = serde_json::json!(notice).to_string().into_bytes();
    let reads = |other: &&Stored| {
        let format = serde_json::from_value::<Format>(other.spec["format"].clone());
        let users = other.spec["users"].as_array();
        other.name != halted.name
            && other.owner == halted.owner
            && other.activity == Activity::Active
            && format.is_ok_and(|format| format.is_chat())
            && (!halted.owner.is_empty() || users.is_none_or(Vec::is_empty))
    };
    let message = |other: &Stored| {
        let id = names::notice_id(&other.name, &halted.name, now.timestamp_millis());
        Delivery::message(&other.name, id, body.clone(), now)
    };
    all.iter().filter(reads).map(message).collect()
}

/// What is to be done with an endpoint.
#[derive(Debug, PartialEq, Eq)]
pub struct Halt {
    activity: Activity,
    reason: String,
}

impl Lane {
    /// Reads since when the endpoint fails, before the first request.
    ///
    /// # Errors
    /// If the database does not read.
    pub(crate) async fn read_failing(&self) -> Result<(), Error> {
        let mut failing = self.failing.lock().await;
        if failing.is_none() {
            *failing = Some(self.failing_since().await?);
        }
        Ok(())
    }

    /// Whether the endpoint is to be halted after this attempt. Since when it fails is kept with the delivery.
    pub(crate) async fn halt_after(&self, delivery: &mut Delivery) -> Option<Halt> {
        if delivery.cause == Some(Cause::Gone) {
            return Some(Halt {
                activity: Activity::Disabled,
                reason: delivery.error.clone(),
            });
        }
        let now = delivery.updated_at;
        let mut failing = self.failing.lock().await;
        let since = failing.flatten();
        let next = match (delivery.state, delivery.cause) {
            (State::Delivered, _) => None,
            // It says nothing of the receiver.
            (_, Some(Cause::Content)) => since,
            (_, Some(cause)) if cause.side() == Side::Dispatcher => since,
            _ => since.or(Some(now)),
        };
        if next != since {
            let value = next.map(|since| since.timestamp_millis().to_string());
            delivery.keep.push((KEY.to_owned(), value));
        }
        *failing = Some(next);
        let after = self.shared.pause_after;
        let halts = next.filter(|_| !after.is_zero()).is_some_and(|since| {
            now - since >= TimeDelta::from_std(after).unwrap_or(TimeDelta::MAX)
        });
        halts.then(|| Halt {
            activity: Activity::Paused,
            reason: format!(
                "nothing has arrived for {} (webhook-dispatcher.pause_after), last: {}",
                humantime::format_duration(after),
                delivery.error
            ),
        })
    }

    async fn failing_since(&self) -> Result<Option<DateTime<Utc>>, Error> {
        let store = &self.shared.store;
        let kept = store
            .kept(&self.endpoint.name, vec![KEY.to_owned()])
            .await?;
        Ok(kept
            .get(KEY)
            .and_then(|text| text.parse().ok())
            .and_then(DateTime::from_timestamp_millis))
    }

    /// Halts the endpoint: what waits and what comes is kept, until somebody resumes it.
    pub(crate) async fn halt(&self, halt: Halt) {
        if self.halted.swap(true, std::sync::atomic::Ordering::AcqRel) {
            return;
        }
        if let Err(error) = self.try_halt(&halt).await {
            tracing::error!(
                error = mesh_runtime::chain(&error),
                endpoint = self.endpoint.name,
                "halt endpoint; the next failure tries again"
            );
            self.halted
                .store(false, std::sync::atomic::Ordering::Release);
        }
    }

    async fn try_halt(&self, halt: &Halt) -> Result<(), Error> {
        let (store, name, now) = (&self.shared.store, &self.endpoint.name, Utc::now());
        // Who resumes it begins anew.
        store
            .keep(self.lease.epoch, name, vec![(KEY.to_owned(), None)], now)
            .await?;
        let Some(stored) = store.endpoint(name).await? else {
            return Ok(());
        };
        let what = halt.activity.as_str();
        let act = announce::own_act(&self.shared.cluster, &stored, what, &halt.reason, now);
        // Somebody who paused it meanwhile had their own reason.
        if stored.activity != Activity::Active {
            return Ok(());
        }
        let notices = notices(&stored, what, &halt.reason, &store.endpoints().await?, now);
        if store
            .halt(name, halt.activity, &halt.reason, now, act, notices)
            .await?
        {
            tracing::warn!(endpoint = name, reason = halt.reason, "endpoint is {what}");
            self.shared.outcomes.notify_one();
        }
        Ok(())
    }
}
