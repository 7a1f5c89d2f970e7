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
use slurm_client::NodeRecord;
use slurm_types::Lifecycle;

use super::cause::{self, Cause};
use super::tracked_node::{TrackedNode, cause_of, new_incarnation};

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

#[cfg(test)]
mod tests;
