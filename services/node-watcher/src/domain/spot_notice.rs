//! Notices of a cloud provider that it will reclaim a node.
//!
//! | provider | form | deadline |
//! | --- | --- | --- |
//! | AWS | `{"action", "time"}` (instance metadata, `spot/instance-action`) | `time` |
//! | AWS | EventBridge, `EC2 Spot Instance Interruption Warning` | two minutes after `time` |
//! | Google Cloud | `TRUE` (instance metadata, `instance/preempted`) | 30 seconds after the call |
//! | Azure | Scheduled Events with an event of type `Preempt` | `NotBefore`; none once it has begun |
//!
//! A notice is no state of Slurm, so it is stored with the node: it explains why the node is down later, and each is published once.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use mesh_events::EventType;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use slurm_types::Lifecycle;

use super::absence::ObservedNode;
use super::cause::{self, Cause};
use super::diff::NodeChange;

/// Time between an interruption warning of EventBridge and the interruption.
const AWS_NOTICE: TimeDelta = TimeDelta::minutes(2);
/// Time between a preemption notice of Compute Engine and the end of the machine.
const GCP_NOTICE: TimeDelta = TimeDelta::seconds(30);
/// How long after its deadline a notice is without effect on a node that still works.
const RETENTION: TimeDelta = TimeDelta::minutes(10);

/// How far the clock of a host may be ahead.
const MAX_CLOCK_SKEW: TimeDelta = TimeDelta::seconds(60);
/// Maximum age of a notice.
const MAX_AGE: TimeDelta = TimeDelta::days(14);
/// Maximum distance of a deadline from the call.
const MAX_NOTICE: TimeDelta = TimeDelta::hours(24);
/// Notices published in a minute, over all nodes: whoever has the hook's password can send as many as they like. Others wait for the
/// next minute.
const MAX_PER_MINUTE: u32 = 600;
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

/// Counts the notices of a minute.
#[derive(Debug, Default)]
pub struct NoticeLimit {
    minute: i64,
    used: u32,
}

impl NoticeLimit {
    fn take(&mut self, now: DateTime<Utc>) -> bool {
        let minute = now.timestamp().div_euclid(60);
        if self.minute != minute {
            *self = Self { minute, used: 0 };
        }
        self.used += 1;
        self.used <= MAX_PER_MINUTE
    }
}

/// Notices for the next poll.
#[derive(Debug, Default)]
pub struct Notices {
    /// What doorbells brought.
    pub given: Vec<NodeNotice>,
    /// Bounds what is published of them.
    pub limit: NoticeLimit,
    /// Those that the limit did not admit. They are given again.
    pub postponed: Vec<NodeNotice>,
}

impl SpotNotice {
    /// Checks that the deadline is near the call.
    ///
    /// # Errors
    /// If it is not.
    pub fn check_deadline(&self) -> Result<(), &'static str> {
        match self.deadline {
            Some(deadline) if (deadline - self.noticed_at).abs() > MAX_NOTICE => {
                Err("the deadline of the spot notice is more than 24 hours from the call")
            }
            _ => Ok(()),
        }
    }

    /// True if it is without effect now.
    fn is_over(&self, now: DateTime<Utc>) -> bool {
        now - self.deadline.unwrap_or(self.noticed_at) > RETENTION && !self.is_recent(now)
    }

    /// True if it was published a short time ago: no other one of the node is published until later.
    fn is_recent(&self, now: DateTime<Utc>) -> bool {
        // A clock that was ahead may have been set back since.
        self.published_at
            .is_some_and(|at| (now - at).abs() < RETENTION)
    }

    /// True if both are the same notice, read twice: metadata of Compute Engine has no time of its own.
    fn repeats(&self, other: &Self) -> bool {
        self.provider == other.provider
            && (self.deadline == other.deadline
                || (self.noticed_at - other.noticed_at).abs() < RETENTION)
    }

    /// The cause of a node that is gone after this notice.
    fn cause(&self) -> Cause {
        Cause::system("spot_preempted", &format!("{HOOK_SOURCE}{}", self.provider))
    }

    /// The cause of a node's stage. A node that does not answer after a notice was reclaimed.
    pub fn explain(notice: Option<&Self>, cause: Cause, lifecycle: Lifecycle) -> Cause {
        let is_gone = matches!(
            lifecycle,
            Lifecycle::Down | Lifecycle::Terminating | Lifecycle::Terminated
        );
        match notice {
            Some(notice) if is_gone && ["", "unreachable"].contains(&cause.code.as_str()) => {
                notice.cause()
            }
            _ => cause,
        }
    }
}

/// Adds the notices to the nodes of an answer, each once, and removes those that came to nothing. Returns the nodes with a new one.
pub fn apply(seen: &mut [ObservedNode], notices: &mut Notices, now: DateTime<Utc>) -> Vec<String> {
    let Notices {
        given: notices,
        limit,
        postponed,
    } = notices;
    postponed.clear();
    let mut noticed = Vec::new();
    let by_name: BTreeMap<&str, &NodeNotice> = notices
        .iter()
        .flat_map(|given| given.nodes.iter().map(move |node| (node.as_str(), given)))
        .collect();
    for node in seen {
        // What the provider's reason has said already, or a notice explains.
        let is_gone = node.after.lifecycle != Lifecycle::Active
            && cause::is_preemption(&Cause::system(&node.after.cause, ""));
        if !is_gone {
            node.after.notice.take_if(|notice| notice.is_over(now));
        }
        let instance = &node.after.instance_id;
        let of_instance = || {
            let is_named =
                |given: &&NodeNotice| given.nodes.is_empty() && given.instance_id == *instance;
            let given = notices.iter().find(is_named);
            given.filter(|_| !instance.is_empty())
        };
        let named = by_name.get(node.record.name.as_str()).copied();
        let Some(given) = named.or_else(of_instance) else {
            continue;
        };
        let notice = &given.notice;
        let is_known = node
            .after
            .notice
            .as_ref()
            .is_some_and(|known| known.is_recent(now) || known.repeats(notice));
        if is_known || is_gone {
            continue;
        }
        if !limit.take(now) {
            if !postponed.contains(given) {
                postponed.push(given.clone());
            }
            continue;
        }
        node.after.notice = Some(SpotNotice {
            published_at: Some(now),
            ..notice.clone()
        });
        node.after.n += 1;
        node.changes.push(NodeChange {
            kind: EventType::NodePreempted,
            previous: Some(node.after.lifecycle),
            cause: notice.cause(),
            at: now,
        });
        noticed.push(node.record.name.clone());
    }
    if !postponed.is_empty() {
        tracing::warn!(
            postponed = postponed.len(),
            "more than {MAX_PER_MINUTE} nodes with a spot notice in a minute: the others are published later"
        );
    }
    noticed
}

#[cfg(test)]
mod tests;
