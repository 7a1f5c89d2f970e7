//! Compares a complete answer of Slurm with the known nodes.
//!
//! A node is considered gone only after [`MISSED_POLLS_BEFORE_DELETED`] consecutive answers without it, or
//! [`MISSED_POLLS_IF_MAJORITY_MISSING`] if more than half of the known nodes are missing. Empty answers do not occur here, because the
//! client refuses them.
//!
//! - A missing fixed node is `removed`.
//! - A missing cloud node is `terminated`: Slurm hides cloud nodes that are powered down (seen on 22.05).

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use mesh_events::EventType;
use slurm_client::NodeRecord;
use slurm_types::Lifecycle;

use super::cause::{self, Cause};
use super::diff::{NodeChange, diff};
use super::tracked_node::TrackedNode;

/// Consecutive answers that a node must be missing from.
pub const MISSED_POLLS_BEFORE_DELETED: u32 = 2;
/// The same, if more than half of the known nodes are missing.
pub const MISSED_POLLS_IF_MAJORITY_MISSING: u32 = 5;

/// A node after a poll.
#[derive(Clone, Debug)]
pub struct ObservedNode {
    /// Slurm's record. For a missing node, its stored state.
    pub record: NodeRecord,
    /// The state to store. Its number counts the changes.
    pub after: TrackedNode,
    /// Changes, oldest first.
    pub changes: Vec<NodeChange>,
}

/// What a node is that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewNode {
    /// News.
    Added {
        /// Number before its first event.
        count_from: u64,
    },
    /// The first poll of the cluster: `baseline`.
    Baseline {
        /// Number before its first event.
        count_from: u64,
    },
    /// Known before its stored state was lost: `baseline`. What accounting has of the time before was published, or is lost.
    Lost {
        /// Number before its first event.
        count_from: u64,
    },
}

/// Compares an answer with the known nodes. `new_node` says what each other one is.
pub fn confirm_absence(
    known: &BTreeMap<String, TrackedNode>,
    new_node: impl Fn(&str) -> NewNode,
    answer: Vec<NodeRecord>,
    now: DateTime<Utc>,
) -> Vec<ObservedNode> {
    let names: BTreeSet<String> = answer.iter().map(|node| node.name.clone()).collect();
    let expected = known
        .iter()
        .filter(|(name, node)| !node.deleted && !may_hide(node) && !names.contains(*name));
    let missing = expected.clone().count();
    let present = known.values().filter(|node| !node.deleted).count();
    let proof = if missing * 2 > present {
        MISSED_POLLS_IF_MAJORITY_MISSING
    } else {
        MISSED_POLLS_BEFORE_DELETED
    };
    let absent: Vec<ObservedNode> = expected
        .map(|(name, node)| miss(name, node, proof, now))
        .collect();
    answer
        .into_iter()
        .map(|record| {
            let new_node = new_node(&record.name);
            observe(known.get(&record.name), new_node, record, now)
        })
        .chain(absent)
        .collect()
}

/// True for a powered-down cloud node, which the list may omit at any time.
fn may_hide(node: &TrackedNode) -> bool {
    node.cloud && node.lifecycle == Lifecycle::Terminated
}

pub(super) fn observe(
    known: Option<&TrackedNode>,
    new_node: NewNode,
    record: NodeRecord,
    now: DateTime<Utc>,
) -> ObservedNode {
    let before = known.filter(|node| !node.deleted);
    let mut after = TrackedNode::after(before, &record, now);
    let is_news = matches!(new_node, NewNode::Added { .. });
    let changes = if is_news || before.is_some() {
        diff(before, &record, now)
    } else {
        vec![NodeChange {
            kind: EventType::NodeBaseline,
            previous: None,
            cause: cause::of(&record, after.lifecycle),
            at: now,
        }]
    };
    let count_from = match new_node {
        NewNode::Added { count_from }
        | NewNode::Baseline { count_from }
        | NewNode::Lost { count_from } => count_from,
    };
    after.n = known.map_or(count_from, |node| node.n) + changes.len() as u64;
    if known.is_none() && matches!(new_node, NewNode::Lost { .. }) {
        after.accounting_watermark = Some(now.timestamp());
    }
    // Accounting of cloud nodes is not read.
    if !after.cloud && before.is_some_and(|before| before.impaired != after.impaired) {
        after.unreconciled += 1;
    }
    ObservedNode {
        record,
        after,
        changes,
    }
}

fn miss(name: &str, node: &TrackedNode, proof: u32, now: DateTime<Utc>) -> ObservedNode {
    let mut after = TrackedNode {
        missing: node.missing + 1,
        ..node.clone()
    };
    let mut changes = Vec::new();
    if after.missing >= proof {
        let (kind, cause) = if node.cloud {
            (
                EventType::NodeTerminated,
                Cause {
                    code: "power_saving".to_owned(),
                    source: "slurm".to_owned(),
                    actor: None,
                },
            )
        } else {
            after.deleted = true;
            (EventType::NodeRemoved, Cause::default())
        };
        changes.push(NodeChange {
            kind,
            previous: Some(node.lifecycle),
            cause,
            at: now,
        });
        after = TrackedNode {
            n: node.n + 1,
            lifecycle: Lifecycle::Terminated,
            suspect: false,
            impaired: false,
            missing: 0,
            ..after
        };
    }
    let record = NodeRecord {
        name: name.to_owned(),
        cpus_effective: node.cpus,
        real_memory_mib: node.memory_mib,
        gres: node.gres.clone(),
        partitions: node.partitions.clone(),
        ..NodeRecord::default()
    };
    ObservedNode {
        record,
        after,
        changes,
    }
}
