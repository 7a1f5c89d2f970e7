//! Computes the events of one node between two polls.
//!
//! The lifecycle stage follows from the state by the rules of [`slurm_types::NodeState::lifecycle`]. Events follow from its changes:
//!
//! | from | to | event |
//! | --- | --- | --- |
//! | not known | any | `added`; for a cloud node that appears powered up, the event of its stage, because Slurm hides it while it is powered down |
//! | any | provisioning | `reboot` while one is issued, else `provisioning` |
//! | impaired since it was last active | active | `recovered` |
//! | any other | active | `active` |
//! | any | draining, drained | `draining`, `drained`; only `maintenance`, once, while nothing but a maintenance reservation keeps jobs off |
//! | any | down | `down`; `preempted` if the provider reclaimed the node |
//! | any | terminating, terminated | `terminating`, `terminated`; `preempted` if the provider reclaimed the node |
//! | active | active, another machine | `terminated`, `provisioning`, `active` for cloud nodes; `reboot`, `active` for others |
//!
//! A node that does not respond but is not down yet keeps its stage and is *suspect*, without an event. The same holds for a node
//! whose state a restarted controller does not know yet. Both conditions end by themselves, in a new stage or the former one.

use chrono::{DateTime, Utc};
use mesh_events::EventType;
use serde::{Deserialize, Serialize};
use slurm_client::NodeRecord;
use slurm_types::{Lifecycle, NodeFlag};

use super::cause::{self, Cause};
use super::spot_notice::SpotNotice;

/// Difference between two boot times that does not count as a boot, in seconds. slurmd computes the boot time from the uptime, which
/// rounds (seen on 22.05: three different seconds for one boot), and clocks are corrected.
const BOOT_TIME_TOLERANCE_SECS: i64 = 120;

/// State of a node, stored between polls and across restarts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrackedNode {
    /// Number of its newest event, which is also the event's `run_seq`.
    pub n: u64,
    /// Lifecycle stage. Does not change while the node is suspect.
    pub lifecycle: Lifecycle,
    /// The node does not respond, but is not down yet.
    pub suspect: bool,
    /// Down, draining or drained since it was last active.
    pub impaired: bool,
    /// Only a maintenance reservation keeps jobs off.
    pub maintenance: bool,
    /// A reboot is under way.
    pub rebooting: bool,
    /// Keyword of the cause.
    pub cause: String,
    /// Boot time, in Unix seconds.
    pub boot_time: Option<i64>,
    /// Cloud instance, if known.
    pub instance_id: String,
    /// CPUs available to jobs. Stored with memory, generic resources and partitions for events after Slurm has dropped the record.
    pub cpus: u32,
    /// Memory in MiB. See [`Self::cpus`].
    pub memory_mib: u64,
    /// Generic resources. See [`Self::cpus`].
    pub gres: String,
    /// Partitions. See [`Self::cpus`].
    pub partitions: Vec<String>,
    /// A cloud node, which may disappear from Slurm's list while it is powered down.
    pub cloud: bool,
    /// The node was removed. Stored so that its numbers continue if it returns.
    #[serde(rename = "gone")]
    pub deleted: bool,
    /// Notice of the provider that it will reclaim the node, until it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<SpotNotice>,
    /// A notice about this machine came to nothing: another one does not explain an outage.
    #[serde(default, skip_serializing_if = "mesh_events::is_default")]
    pub had_false_notice: bool,
    /// Newest change of its downtimes in accounting that is published, in Unix seconds by Slurm's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accounting_watermark: Option<i64>,
    /// Number of changes between impaired and not that polls have published and accounting has not shown yet.
    #[serde(default, skip_serializing_if = "mesh_events::is_default")]
    pub unreconciled: u32,
    /// Number of consecutive answers without the node. Not stored, so a restart counts from zero.
    #[serde(skip)]
    pub missing: u32,
}

/// A change of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeChange {
    /// Type of the event.
    pub kind: EventType,
    /// Lifecycle stage before. `None` if the node was not known.
    pub previous: Option<Lifecycle>,
    /// Cause and actor.
    pub cause: Cause,
    /// Time of the poll, because Slurm does not report a time for these facts.
    pub at: DateTime<Utc>,
}

/// The changes of a node since `previous`. `None` means that the node is new in the cluster.
pub fn diff(
    previous: Option<&TrackedNode>,
    current: &NodeRecord,
    now: DateTime<Utc>,
) -> Vec<NodeChange> {
    let after = TrackedNode::after(previous, current, now);
    let cause = cause_of(previous, current, after.lifecycle, now);
    let change = |kind, previous: Option<Lifecycle>| NodeChange {
        kind,
        previous,
        cause: cause.clone(),
        at: now,
    };
    let Some(before) = previous else {
        // `scontrol -a show node` hides powered-down cloud nodes (seen on 22.05; PrivateData=cloud in slurm.conf(5)). So a cloud node
        // that appears powered up is not a new node.
        let appeared =
            after.cloud && !matches!(after.lifecycle, Lifecycle::Terminated | Lifecycle::Unknown);
        let kind = if appeared {
            stage_event(None, &after, &cause)
        } else {
            EventType::NodeAdded
        };
        return vec![change(kind, None)];
    };
    let from = Some(before.lifecycle);
    if before.lifecycle == after.lifecycle {
        return match after.lifecycle {
            Lifecycle::Active if new_incarnation(before, &after) => {
                let stages: &[EventType] = if after.cloud || before.instance_id != after.instance_id
                {
                    &[
                        EventType::NodeTerminated,
                        EventType::NodeProvisioning,
                        EventType::NodeActive,
                    ]
                } else {
                    &[EventType::NodeReboot, EventType::NodeActive]
                };
                let replaced = Cause {
                    code: "new_incarnation".to_owned(),
                    ..Cause::default()
                };
                stages
                    .iter()
                    .map(|kind| NodeChange {
                        cause: replaced.clone(),
                        ..change(*kind, from)
                    })
                    .collect()
            }
            Lifecycle::Provisioning if after.rebooting && !before.rebooting => {
                vec![change(EventType::NodeReboot, from)]
            }
            // Maintenance begins on a node that is already drained, or ends and leaves it drained.
            Lifecycle::Draining | Lifecycle::Drained if after.maintenance != before.maintenance => {
                vec![change(stage_event(previous, &after, &cause), from)]
            }
            // The provider's reason arrives later: the node is first down, then preempted.
            Lifecycle::Down | Lifecycle::Terminating | Lifecycle::Terminated
                if cause::is_preemption(&cause)
                    && before.cause != after.cause
                    && before.notice.is_none() =>
            {
                vec![change(EventType::NodePreempted, from)]
            }
            _ => Vec::new(),
        };
    }
    // The reservation's jobs start and end during the maintenance.
    let still_in_maintenance = before.maintenance && after.maintenance;
    if still_in_maintenance {
        return Vec::new();
    }
    let recovered = after.lifecycle == Lifecycle::Active && before.impaired;
    let kind = if recovered {
        EventType::NodeRecovered
    } else {
        stage_event(previous, &after, &cause)
    };
    vec![change(kind, from)]
}

/// The event for entering a stage.
fn stage_event(before: Option<&TrackedNode>, after: &TrackedNode, cause: &Cause) -> EventType {
    // Once the preemption is published, later stages (powered down, booted again) are published as usual.
    let published =
        before.is_some_and(|before| before.cause == cause.code || before.notice.is_some());
    match after.lifecycle {
        Lifecycle::Provisioning if after.rebooting => EventType::NodeReboot,
        Lifecycle::Provisioning => EventType::NodeProvisioning,
        Lifecycle::Active => EventType::NodeActive,
        Lifecycle::Draining | Lifecycle::Drained if after.maintenance => EventType::NodeMaintenance,
        Lifecycle::Draining => EventType::NodeDraining,
        Lifecycle::Drained => EventType::NodeDrained,
        Lifecycle::Down | Lifecycle::Terminating | Lifecycle::Terminated
            if cause::is_preemption(cause) && !published =>
        {
            EventType::NodePreempted
        }
        Lifecycle::Down => EventType::NodeDown,
        Lifecycle::Terminating => EventType::NodeTerminating,
        Lifecycle::Terminated => EventType::NodeTerminated,
        // Never an event by itself, because `TrackedNode::after` keeps the former stage.
        Lifecycle::Unknown => EventType::NodeAdded,
    }
}

/// The cause of a node's stage, in the light of a notice.
fn cause_of(
    previous: Option<&TrackedNode>,
    current: &NodeRecord,
    lifecycle: Lifecycle,
    now: DateTime<Utc>,
) -> Cause {
    let cause = cause::of(current, lifecycle);
    SpotNotice::explain(previous, current, cause, lifecycle, now)
}

fn new_incarnation(before: &TrackedNode, after: &TrackedNode) -> bool {
    let instance = !before.instance_id.is_empty()
        && !after.instance_id.is_empty()
        && before.instance_id != after.instance_id;
    let boot = matches!((before.boot_time, after.boot_time), (Some(before), Some(after)) if after - before > BOOT_TIME_TOLERANCE_SECS);
    instance || boot
}

impl TrackedNode {
    /// The state to store after a poll. The caller counts the events.
    pub fn after(previous: Option<&Self>, current: &NodeRecord, now: DateTime<Utc>) -> Self {
        let seen = current.lifecycle();
        // A missing response alone does not change the stage. Nor does a restarted controller that has no report of the node yet.
        let undecided =
            current.state.is_suspect() && seen == Lifecycle::Active || seen == Lifecycle::Unknown;
        let lifecycle = match previous {
            Some(previous) if undecided => previous.lifecycle,
            _ => seen,
        };
        let impaired = match lifecycle {
            Lifecycle::Down | Lifecycle::Draining | Lifecycle::Drained => true,
            Lifecycle::Active | Lifecycle::Terminated | Lifecycle::Terminating => false,
            Lifecycle::Provisioning | Lifecycle::Unknown => {
                previous.is_some_and(|previous| previous.impaired)
            }
        };
        let retained = |now: Option<i64>, before: fn(&Self) -> Option<i64>| {
            now.or_else(|| previous.and_then(before))
        };
        let instance =
            || previous.map_or_else(String::new, |previous| previous.instance_id.clone());
        let mut after = Self {
            n: previous.map_or(0, |previous| previous.n),
            lifecycle,
            suspect: current.state.is_suspect(),
            impaired,
            maintenance: matches!(lifecycle, Lifecycle::Draining | Lifecycle::Drained)
                && cause::in_maintenance_only(current),
            rebooting: cause::rebooting(current),
            cause: cause_of(previous, current, lifecycle, now).code,
            boot_time: retained(current.boot_time.map(|time| time.as_secs()), |previous| {
                previous.boot_time
            }),
            instance_id: if current.instance_id.is_empty() {
                instance()
            } else {
                current.instance_id.clone()
            },
            cpus: current.cpus_effective,
            memory_mib: current.real_memory_mib,
            gres: current.gres.clone(),
            partitions: current.partitions.clone(),
            cloud: current.state.has(NodeFlag::Cloud)
                || previous.is_some_and(|previous| previous.cloud),
            deleted: false,
            notice: None,
            had_false_notice: false,
            accounting_watermark: previous.and_then(|previous| previous.accounting_watermark),
            unreconciled: previous.map_or(0, |previous| previous.unreconciled),
            missing: 0,
        };
        let is_same_machine = |previous: &&Self| match lifecycle {
            Lifecycle::Provisioning => false,
            Lifecycle::Active => {
                previous.lifecycle == Lifecycle::Active && !new_incarnation(previous, &after)
            }
            _ => true,
        };
        after.notice = previous
            .filter(is_same_machine)
            .and_then(|previous| previous.notice.clone());
        after.had_false_notice = previous.is_some_and(|previous| {
            let is_kept =
                lifecycle != Lifecycle::Provisioning && !new_incarnation(previous, &after);
            // It answers again, and was not booted.
            let is_back = lifecycle == Lifecycle::Active
                && previous.lifecycle != Lifecycle::Active
                && previous.notice.is_some()
                && current.boot_time.is_some();
            is_kept && (previous.had_false_notice || is_back)
        });
        after
    }
}

#[cfg(test)]
mod tests;
