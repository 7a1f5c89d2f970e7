//! The state of a node between two polls.
//!
//! A node that does not respond, or that a restarted controller does not know yet, keeps its lifecycle stage. The cause of an outage is
//! that of Slurm's record, or a notice of a cloud provider if [`super::spot_notice`] allows it.

use chrono::{DateTime, Utc};
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

/// The cause of a node's stage, in the light of a notice about it before. See the rules of [`super::spot_notice`].
pub(super) fn cause_of(
    previous: Option<&TrackedNode>,
    current: &NodeRecord,
    lifecycle: Lifecycle,
    now: DateTime<Utc>,
) -> Cause {
    let cause = cause::of(current, lifecycle);
    let Some((node, notice)) = previous.and_then(|node| Some((node, node.notice.as_ref()?))) else {
        return cause;
    };
    if !is_gone(lifecycle) || !["", "unreachable"].contains(&cause.code.as_str()) {
        return cause;
    }
    let explains = if is_gone(node.lifecycle) {
        // As at its beginning.
        cause::is_preemption(&Cause::system(&node.cause, ""))
    } else {
        is_cloud(node, current) && !node.had_false_notice && notice.is_in_time(current, now)
    };
    match explains {
        true => notice.cause(),
        false => cause,
    }
}

const fn is_gone(lifecycle: Lifecycle) -> bool {
    matches!(
        lifecycle,
        Lifecycle::Down | Lifecycle::Terminating | Lifecycle::Terminated
    )
}

/// True if a provider can reclaim the machine.
fn is_cloud(node: &TrackedNode, record: &NodeRecord) -> bool {
    node.cloud
        || record.state.has(NodeFlag::Cloud)
        || !(node.instance_id.is_empty()
            && record.instance_id.is_empty()
            && record.instance_type.is_empty())
}

/// True if another machine has appeared behind the node's name, or the same one was booted.
pub(super) fn new_incarnation(before: &TrackedNode, after: &TrackedNode) -> bool {
    let instance = !before.instance_id.is_empty()
        && !after.instance_id.is_empty()
        && before.instance_id != after.instance_id;
    let boot = matches!((before.boot_time, after.boot_time), (Some(before), Some(after)) if after - before > BOOT_TIME_TOLERANCE_SECS);
    instance || boot
}
