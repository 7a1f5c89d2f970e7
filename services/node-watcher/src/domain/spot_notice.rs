//! Notices of a cloud provider that it will reclaim a node.
//!
//! | provider | form | deadline |
//! | --- | --- | --- |
//! | AWS | `{"action", "time"}` (instance metadata, `spot/instance-action`) | `time` |
//! | AWS | EventBridge, `EC2 Spot Instance Interruption Warning` | two minutes after `time` |
//! | Google Cloud | `TRUE` (instance metadata, `instance/preempted`) | 30 seconds after the call |
//! | Azure | Scheduled Events with an event of type `Preempt` | `NotBefore`; none once it has begun |
//!
//! A notice is no state of Slurm, so it is stored with the node, and each is published once. Its only source is a hook, so it does not
//! decide alone why a node is down. It explains an outage if Slurm's record agrees:
//!
//! - the node is a cloud machine,
//! - it has stopped answering after the notice, in time: up to ten minutes after the deadline,
//! - no former notice of the same machine came to nothing.

use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use slurm_client::NodeRecord;

use super::cause::Cause;

/// Time between an interruption warning of EventBridge and the interruption.
const AWS_NOTICE: TimeDelta = TimeDelta::minutes(2);
/// Time between a preemption notice of Compute Engine and the end of the machine.
const GCP_NOTICE: TimeDelta = TimeDelta::seconds(30);
/// Longest notice of Azure's Scheduled Events, unless the owner of the machine sets another; of `Preempt` events 30 seconds at least.
const AZURE_NOTICE: TimeDelta = TimeDelta::minutes(15);
/// Time in which slurmctld finds a machine gone: it sets a node down that has not answered for SlurmdTimeout, 300 seconds by default, and asks
/// each once within a third of that (slurm.conf(5)).
const DETECTION_TIME: TimeDelta = TimeDelta::minutes(10);
/// Time after a published notice without another one about the node.
const REPEAT_INTERVAL: TimeDelta = TimeDelta::minutes(10);

/// How far the clock of a host may be ahead.
const MAX_CLOCK_SKEW: TimeDelta = TimeDelta::seconds(60);
/// Maximum age of a notice.
const MAX_AGE: TimeDelta = TimeDelta::days(14);
/// How long before the call a deadline may have been: hooks store what they cannot send.
const MAX_PAST_DEADLINE: TimeDelta = TimeDelta::hours(24);
/// Start of the cause's source where a hook's word is all that there is.
const HOOK_SOURCE: &str = "SpotNotice ";

/// A notice about a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpotNotice {
    /// `aws`, `gcp` or `azure`.
    pub provider: String,
    /// What the provider will do: `terminate`, `stop`, `hibernate`, `preempt`.
    pub action: String,
    /// When it will do so at the earliest. `None` if the notice does not say, or if it has begun.
    pub deadline: Option<DateTime<Utc>>,
    /// When the hook was called.
    pub noticed_at: DateTime<Utc>,
    /// When it was published, by our own clock: the hook chooses the other times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_at: Option<DateTime<Utc>>,
}

/// What a text of a provider says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The provider will reclaim a node.
    Notice {
        /// The notice.
        notice: SpotNotice,
        /// Cloud instance that it names. Empty if it names none.
        instance_id: String,
    },
    /// Nothing is reclaimed: no event, a recommendation, or maintenance.
    Nothing,
    /// Not a form of the table above.
    Unknown,
}

/// A notice and the nodes that it is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeNotice {
    /// NodeNames. Empty: the node with this instance id.
    pub nodes: Vec<String>,
    /// Cloud instance.
    pub instance_id: String,
    /// The notice.
    pub notice: SpotNotice,
}

/// Reads a provider's text.
pub fn parse(text: &str, noticed_at: DateTime<Utc>) -> Parsed {
    let notice = |provider: &str, action: &str, deadline| SpotNotice {
        provider: provider.to_owned(),
        action: action.to_owned(),
        deadline,
        noticed_at,
        published_at: None,
    };
    let of_instance = |notice, instance_id: &str| Parsed::Notice {
        notice,
        instance_id: instance_id.to_owned(),
    };
    let text = text.trim();
    if text.eq_ignore_ascii_case("TRUE") {
        let deadline = noticed_at.checked_add_signed(GCP_NOTICE);
        return of_instance(notice("gcp", "preempt", deadline), "");
    }
    if text.is_empty() || text.eq_ignore_ascii_case("FALSE") {
        return Parsed::Nothing;
    }
    let Ok(value) = serde_json::from_str::<Value>(text) else {
        return Parsed::Unknown;
    };
    let rfc3339 = |value: &Value| {
        let time = DateTime::parse_from_rfc3339(value.as_str()?).ok()?;
        Some(time.with_timezone(&Utc))
    };
    if let Some(events) = value["Events"].as_array() {
        let Some(event) = events.iter().find(|event| event["EventType"] == "Preempt") else {
            return Parsed::Nothing;
        };
        let not_before = event["NotBefore"].as_str().unwrap_or_default();
        let deadline = DateTime::parse_from_rfc2822(not_before).ok();
        let deadline = deadline.map(|time| time.with_timezone(&Utc));
        return of_instance(notice("azure", "preempt", deadline), "");
    }
    if let Some(kind) = value["detail-type"].as_str() {
        if kind != "EC2 Spot Instance Interruption Warning" {
            return Parsed::Nothing;
        }
        let detail = &value["detail"];
        let action = detail["instance-action"].as_str().unwrap_or("terminate");
        let deadline = rfc3339(&value["time"]).and_then(|time| time.checked_add_signed(AWS_NOTICE));
        let instance_id = detail["instance-id"].as_str().unwrap_or_default();
        return of_instance(notice("aws", action, deadline), instance_id);
    }
    match (value["action"].as_str(), rfc3339(&value["time"])) {
        (Some(action @ ("terminate" | "stop" | "hibernate")), Some(time)) => {
            of_instance(notice("aws", action, Some(time)), "")
        }
        // The rebalance recommendation of AWS: the machine may stay.
        _ if value["noticeTime"].is_string() => Parsed::Nothing,
        _ => Parsed::Unknown,
    }
}

/// Checks the time of the call.
///
/// # Errors
/// If it is not plausible.
pub fn check_call(called: DateTime<Utc>, now: DateTime<Utc>) -> Result<(), &'static str> {
    if called - now > MAX_CLOCK_SKEW {
        return Err("the time of the spot notice is in the future; are the clocks right?");
    }
    if now - called > MAX_AGE {
        return Err("the spot notice is more than 14 days old; are the clocks right?");
    }
    Ok(())
}

/// True if only a hook says that the provider reclaims the node.
pub fn is_hooks_word(cause: &Cause) -> bool {
    cause.source.starts_with(HOOK_SOURCE)
}

impl SpotNotice {
    /// Checks that the deadline is as near the call as the provider's are.
    ///
    /// # Errors
    /// If it is not.
    pub fn check_deadline(&self) -> Result<(), &'static str> {
        let Some(deadline) = self.deadline else {
            return Ok(());
        };
        let notice = deadline - self.noticed_at;
        if notice > self.longest() + MAX_CLOCK_SKEW {
            return Err(
                "the deadline of the spot notice is later than its provider's are: 2 minutes after the call on AWS, 30 seconds on Google Cloud, 15 minutes on Azure",
            );
        }
        if notice < -MAX_PAST_DEADLINE {
            return Err("the deadline of the spot notice is more than 24 hours before the call");
        }
        Ok(())
    }

    /// Longest time between a notice of the provider and the end of the machine.
    fn longest(&self) -> TimeDelta {
        match self.provider.as_str() {
            "aws" => AWS_NOTICE,
            "gcp" => GCP_NOTICE,
            _ => AZURE_NOTICE,
        }
    }

    /// The last time at which an outage is its effect. By our own clock too, as the hook chooses the other times.
    fn effective_until(&self) -> DateTime<Utc> {
        let at = self.deadline.unwrap_or(self.noticed_at);
        let at = self
            .published_at
            .map_or(at, |published| at.min(published + self.longest()));
        at.checked_add_signed(DETECTION_TIME).unwrap_or(at)
    }

    /// True if it is without effect now.
    pub(super) fn is_over(&self, now: DateTime<Utc>) -> bool {
        now > self.effective_until() && !self.is_recent(now)
    }

    /// True if it was published a short time ago: no other one of the node is published until later.
    pub(super) fn is_recent(&self, now: DateTime<Utc>) -> bool {
        // A clock that was ahead may have been set back since.
        self.published_at
            .is_some_and(|at| (now - at).abs() < REPEAT_INTERVAL)
    }

    /// True if both are the same notice, read twice: metadata of Compute Engine has no time of its own.
    pub(super) fn repeats(&self, other: &Self) -> bool {
        self.provider == other.provider
            && (self.deadline == other.deadline
                || (self.noticed_at - other.noticed_at).abs() < REPEAT_INTERVAL)
    }

    /// True if an outage began after it and in time. When it began, Slurm's record says, or else it is now.
    pub(super) fn is_in_time(&self, record: &NodeRecord, now: DateTime<Utc>) -> bool {
        let of_record = record.reason_time.map(slurm_types::UnixTime::as_secs);
        let of_record = of_record.and_then(|secs| DateTime::from_timestamp(secs, 0));
        // Slurm keeps the reason of an earlier outage.
        let of_record = of_record.filter(|began| *began + MAX_CLOCK_SKEW >= self.noticed_at);
        let began = of_record.map_or(now, |began| began.min(now));
        began <= self.effective_until()
    }

    /// The cause of a node that is gone after this notice.
    pub(super) fn cause(&self) -> Cause {
        Cause::system("spot_preempted", &format!("{HOOK_SOURCE}{}", self.provider))
    }
}

#[cfg(test)]
mod tests;
