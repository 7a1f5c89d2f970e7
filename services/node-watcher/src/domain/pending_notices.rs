//! Notices of a cloud provider that wait for the next poll, and what they change in its nodes.
//!
//! Each notice is published once, and a limit bounds the notices of a minute. The others are given again at the next poll.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use mesh_events::EventType;
use slurm_types::Lifecycle;

use super::absence::ObservedNode;
use super::cause::{self, Cause};
use super::diff::NodeChange;
use super::spot_notice::{NodeNotice, SpotNotice};

/// Notices published in a minute, over all nodes: whoever has the hook's password can send as many as they like. Others wait for the
/// next minute.
const MAX_PER_MINUTE: u32 = 600;

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
        if !is_gone && let Some(over) = node.after.notice.take_if(|notice| notice.is_over(now)) {
            let answers = node.after.lifecycle == Lifecycle::Active && !node.after.suspect;
            node.after.had_false_notice |= answers;
            tracing::debug!(
                node = node.record.name,
                provider = over.provider,
                answers,
                "spot notice came to nothing"
            );
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
