//! Lifecycle of a node, derived from its state.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::node_state::{NodeBaseState, NodeFlag, NodeState};

/// A node's stage in its lifecycle, from one snapshot of its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lifecycle {
    /// Powering up, booting, rebooting.
    Provisioning,
    /// Can run jobs.
    Active,
    /// Accepts no new jobs and still has some.
    Draining,
    /// Accepts no new jobs and has none.
    Drained,
    /// Cannot run jobs and is not powered off.
    Down,
    /// Is being powered off.
    Terminating,
    /// Powered off or gone.
    Terminated,
    /// The controller has not heard from it since its own start.
    Unknown,
}

impl Lifecycle {
    /// The keyword used in events and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Provisioning => "provisioning",
            Self::Active => "active",
            Self::Draining => "draining",
            Self::Drained => "drained",
            Self::Down => "down",
            Self::Terminating => "terminating",
            Self::Terminated => "terminated",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Lifecycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Progress of a node that is being provisioned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProvisioningStage {
    /// Requested; the power-saving program has not run yet.
    Requested,
    /// Powering up.
    Booting,
    /// A reboot was issued.
    Rebooting,
}

impl NodeState {
    /// True if the controller has lost contact but has not set the node down: `NOT_RESPONDING` with a working base state and no power
    /// change that explains the silence. The former lifecycle stays in force meanwhile.
    pub fn is_suspect(&self) -> bool {
        use NodeFlag::*;
        self.has(NotResponding)
            && !matches!(
                self.base,
                Some(NodeBaseState::Down | NodeBaseState::Future | NodeBaseState::Unknown)
            )
            && !self.flags.any(&[
                PoweredDown,
                PoweringUp,
                PowerUp,
                PoweringDown,
                PowerDown,
                RebootIssued,
            ])
    }

    /// The lifecycle of this snapshot. `has_jobs` is the caller's further knowledge (CPUs allocated > 0).
    ///
    /// The first rule that matches applies. A node missing from the list is [`Lifecycle::Terminated`], which only the caller can know:
    ///
    /// 1. `FUTURE`, or `POWERED_DOWN` without `ALLOCATED`/`MIXED`: terminated.
    /// 2. `POWERED_DOWN` (with an allocation), `POWERING_UP`, `POWER_UP`, `REBOOT_ISSUED`: provisioning.
    /// 3. `POWERING_DOWN`, `POWER_DOWN`, `POWER_DRAIN`: terminating.
    /// 4. `DOWN`, `ERROR`, `INVALID_REG`, `FAIL` without jobs: down. `NOT_RESPONDING` alone decides nothing, see
    ///    [`is_suspect`](Self::is_suspect).
    /// 5. `DRAIN`, `FAIL`, `MAINTENANCE`: draining with jobs, else drained.
    /// 6. `IDLE`, `ALLOCATED`, `MIXED`: active.
    /// 7. else unknown.
    pub fn lifecycle(&self, has_jobs: bool) -> Lifecycle {
        use NodeFlag::*;
        let allocated = matches!(
            self.base,
            Some(NodeBaseState::Allocated | NodeBaseState::Mixed)
        );
        let has_jobs = has_jobs || self.has_jobs();
        if self.base == Some(NodeBaseState::Future) || (self.has(PoweredDown) && !allocated) {
            Lifecycle::Terminated
        } else if self
            .flags
            .any(&[PoweredDown, PoweringUp, PowerUp, RebootIssued])
        {
            Lifecycle::Provisioning
        } else if self.flags.any(&[PoweringDown, PowerDown, PowerDrain]) {
            Lifecycle::Terminating
        } else if matches!(self.base, Some(NodeBaseState::Down | NodeBaseState::Error))
            || self.has(InvalidReg)
            || (self.has(Fail) && !has_jobs)
        {
            Lifecycle::Down
        } else if self.flags.any(&[Drain, Fail, Maintenance]) {
            if has_jobs {
                Lifecycle::Draining
            } else {
                Lifecycle::Drained
            }
        } else if matches!(
            self.base,
            Some(NodeBaseState::Idle | NodeBaseState::Allocated | NodeBaseState::Mixed)
        ) {
            Lifecycle::Active
        } else {
            Lifecycle::Unknown
        }
    }

    /// Progress of a node in [`Lifecycle::Provisioning`].
    pub fn provisioning_stage(&self) -> Option<ProvisioningStage> {
        if self.lifecycle(false) != Lifecycle::Provisioning {
            None
        } else if self.has(NodeFlag::RebootIssued) {
            Some(ProvisioningStage::Rebooting)
        } else if self.has(NodeFlag::PoweringUp) {
            Some(ProvisioningStage::Booting)
        } else {
            Some(ProvisioningStage::Requested)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, has_jobs: bool, expected: Lifecycle) {
        assert_eq!(
            NodeState::parse(text).lifecycle(has_jobs),
            expected,
            "{text}"
        );
    }

    #[test]
    fn states_seen_on_real_clusters_have_a_stage() {
        check("IDLE", false, Lifecycle::Active);
        check("MIXED+DRAIN", true, Lifecycle::Draining);
        check("IDLE+DRAIN", false, Lifecycle::Drained);
        check("IDLE+COMPLETING+DRAIN", false, Lifecycle::Draining);
        check("DOWN+CLOUD+POWERED_DOWN", false, Lifecycle::Terminated);
        check("IDLE+CLOUD+POWERED_DOWN", false, Lifecycle::Terminated);
        check("MIXED+CLOUD+POWERED_DOWN", true, Lifecycle::Provisioning);
        check(
            "MIXED+CLOUD+NOT_RESPONDING+POWERING_UP",
            true,
            Lifecycle::Provisioning,
        );
        check("MIXED+CLOUD", true, Lifecycle::Active);
        check("IDLE+CLOUD+POWERING_DOWN", false, Lifecycle::Terminating);
        check(
            "IDLE+CLOUD+POWER_DOWN+POWERED_DOWN",
            false,
            Lifecycle::Terminated,
        );
        check("DOWN+NOT_RESPONDING", false, Lifecycle::Down);
        check("IDLE+FAIL", false, Lifecycle::Down);
        check("MIXED+FAIL", true, Lifecycle::Draining);
        check("IDLE+MAINTENANCE", false, Lifecycle::Drained);
        check("IDLE+PLANNED", false, Lifecycle::Active);
        check("UNKNOWN+NOT_RESPONDING", false, Lifecycle::Unknown);
        check("FUTURE", false, Lifecycle::Terminated);
        check("", false, Lifecycle::Unknown);
    }

    #[test]
    fn silence_alone_is_only_suspect() {
        let silent = NodeState::parse("MIXED+NOT_RESPONDING");
        assert!(silent.is_suspect());
        assert_eq!(silent.lifecycle(true), Lifecycle::Active);
        assert!(!NodeState::parse("DOWN+NOT_RESPONDING").is_suspect());
        assert!(!NodeState::parse("IDLE+CLOUD+NOT_RESPONDING+POWERING_UP").is_suspect());
    }
}
