//! What happened to one node between two looks at it.
//!
//! The stage of life comes from the state by the rules of [`slurm_types::NodeState::lifecycle`]. Events follow from its changes:
//!
//! | from | to | event |
//! | --- | --- | --- |
//! | not known | any | `added`; a cloud node that shows up while it is powered: the event of its stage, since Slurm hides it while it is off |
//! | any | provisioning | `reboot` while one is issued, else `provisioning` |
//! | impaired since it was last active | active | `recovered` |
//! | any other | active | `active` |
//! | any | draining, drained | `draining`, `drained`; only `maintenance`, once, while nothing but a maintenance reservation keeps jobs off |
//! | any | down | `down`; `preempted` if the provider took the node back |
//! | any | terminating, terminated | `terminating`, `terminated`; `preempted` if the provider took the node back |
//! | active | active, another machine | `terminated`, `provisioning`, `active` for cloud nodes; `reboot`, `active` for others |
//!
//! A node that does not respond but is not given up keeps its stage and is *suspect*: no event. So does a node of which the controller
//! knows nothing yet after its own restart. Both pass by themselves, into a stage or back.

use chrono::{DateTime, Utc};
use mesh_events::EventType;
use serde::{Deserialize, Serialize};
use slurm_client::NodeRecord;
use slurm_types::{Lifecycle, NodeFlag};

use super::cause::{self, Cause};

/// A boot time may differ by this much without a boot, in seconds: slurmd computes it from the uptime, which rounds (seen on 22.05: three
/// different seconds for one boot), and clocks are corrected.
const BOOT_TIME_TOLERANCE_SECS: i64 = 120;

/// What is stored of a node between two looks, and over restarts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrackedNode {
    /// Number of its newest event; also the event's `run_seq`.
    pub n: u64,
    /// Its stage of life. Stays what it was while the node is suspect.
    pub lifecycle: Lifecycle,
    /// It does not respond, but is not given up.
    pub suspect: bool,
    /// Down, draining or drained since it was last active.
    pub impaired: bool,
    /// Only a maintenance reservation keeps jobs off.
    pub maintenance: bool,
    /// A reboot is under way.
    pub rebooting: bool,
    /// The word for its cause.
    pub cause: String,
    /// When it booted, in Unix seconds.
    pub boot_time: Option<i64>,
    /// Cloud instance, if known.
    pub instance_id: String,
    /// CPUs jobs can use, memory in MiB, generic resources and partitions: what an event can still say once the record is gone.
    pub cpus: u32,
    /// See [`Self::cpus`].
    pub memory_mib: u64,
    /// See [`Self::cpus`].
    pub gres: String,
    /// See [`Self::cpus`].
    pub partitions: Vec<String>,
    /// It is a cloud node: it may vanish from Slurm's list while it is switched off.
    pub cloud: bool,
    /// It was removed; stored so that its numbers go on should it come back.
    pub gone: bool,
    /// In how many answers in a row it was missing. Not stored: a restart counts anew.
    #[serde(skip)]
    pub missing: u32,
}

/// Something that happened to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeChange {
    /// What.
    pub kind: EventType,
    /// Stage of life before; `None` at the first sight.
    pub previous: Option<Lifecycle>,
    /// Why, and who did it.
    pub cause: Cause,
    /// When it was seen: Slurm does not time these facts.
    pub at: DateTime<Utc>,
}

/// What happened to a node since `previous`; nothing known of it means that it is new in the cluster.
pub fn diff(
    previous: Option<&TrackedNode>,
    current: &NodeRecord,
    now: DateTime<Utc>,
) -> Vec<NodeChange> {
    let after = TrackedNode::after(previous, current);
    let cause = cause::of(current, after.lifecycle);
    let change = |kind, previous: Option<Lifecycle>| NodeChange {
        kind,
        previous,
        cause: cause.clone(),
        at: now,
    };
    let Some(before) = previous else {
        // `scontrol -a show node` leaves out cloud nodes that are powered down (seen on 22.05; PrivateData=cloud in slurm.conf(5)), so the
        // first sight of one that is powered up is no new node.
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
                    word: "new_incarnation".to_owned(),
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
            // The maintenance begins on a node that is drained already, or ends and leaves it drained.
            Lifecycle::Draining | Lifecycle::Drained if after.maintenance != before.maintenance => {
                vec![change(stage_event(previous, &after, &cause), from)]
            }
            // The provider's word comes after the silence: first down, then the reason.
            Lifecycle::Down | Lifecycle::Terminating | Lifecycle::Terminated
                if cause::is_preemption(&cause) && before.cause != after.cause =>
            {
                vec![change(EventType::NodePreempted, from)]
            }
            _ => Vec::new(),
        };
    }
    // Jobs of the reservation come and go; the maintenance goes on.
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

/// The event for having come into a stage.
fn stage_event(before: Option<&TrackedNode>, after: &TrackedNode, cause: &Cause) -> EventType {
    // Once the loss is published, what follows (switched off, booted again) is published as usual.
    let published = before.is_some_and(|before| before.cause == cause.word);
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
        // Never an event of its own: `TrackedNode::after` keeps the former stage.
        Lifecycle::Unknown => EventType::NodeAdded,
    }
}

fn new_incarnation(before: &TrackedNode, after: &TrackedNode) -> bool {
    let instance = !before.instance_id.is_empty()
        && !after.instance_id.is_empty()
        && before.instance_id != after.instance_id;
    let boot = matches!((before.boot_time, after.boot_time), (Some(before), Some(after)) if after - before > BOOT_TIME_TOLERANCE_SECS);
    instance || boot
}

impl TrackedNode {
    /// What to store after a look. The number of events is the caller's to count.
    pub fn after(previous: Option<&Self>, current: &NodeRecord) -> Self {
        let seen = current.lifecycle();
        // Silence alone changes no stage, and neither does a controller that has not heard of the node since its own start.
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
        Self {
            n: previous.map_or(0, |previous| previous.n),
            lifecycle,
            suspect: current.state.is_suspect(),
            impaired,
            maintenance: matches!(lifecycle, Lifecycle::Draining | Lifecycle::Drained)
                && cause::in_maintenance_only(current),
            rebooting: cause::rebooting(current),
            cause: cause::of(current, lifecycle).word,
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
            gone: false,
            missing: 0,
        }
    }
}

#[cfg(test)]
#[path = "diff_tests.rs"]
mod tests;
