//! The closed list of events.

use std::fmt;
use std::str::FromStr;

use crate::proto::mesh::event::v1::IdSource;

/// First word of an event type; decides payload and subject form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Category {
    /// Jobs and their runs.
    Job,
    /// Nodes.
    Node,
    /// Users, their access and quotas.
    User,
    /// What runs cost.
    Cost,
    /// Why jobs wait.
    Queue,
    /// Capture itself.
    Capture,
}

impl Category {
    /// Every category.
    pub const ALL: [Self; 6] = [
        Self::Job,
        Self::Node,
        Self::User,
        Self::Cost,
        Self::Queue,
        Self::Capture,
    ];

    /// The word in types and subjects.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Job => "job",
            Self::Node => "node",
            Self::User => "user",
            Self::Cost => "cost",
            Self::Queue => "queue",
            Self::Capture => "capture",
        }
    }
}

/// How the id of an event comes about; see [`crate::ids`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FactKind {
    /// Once per run, or once per time that Slurm's record gives: id from the run and a slot.
    Recorded,
    /// Slurm does not time it: id from the entity, the kind and a counter.
    Sampled,
    /// Computed from another event or run: id from that and the kind.
    Derived,
    /// Derived where it answers another event, else sampled.
    SampledOrDerived,
}

impl FactKind {
    /// Whether an id of this origin fits.
    pub const fn allows(self, id_source: &IdSource) -> bool {
        match (!id_source.slot.is_empty(), !id_source.cause.is_empty()) {
            (false, true) => matches!(self, Self::Derived | Self::SampledOrDerived),
            (false, false) if id_source.n > 0 => {
                matches!(self, Self::Sampled | Self::SampledOrDerived)
            }
            (_, false) => matches!(self, Self::Recorded),
            (true, true) => false,
        }
    }
}

/// A word that is no event type.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown event type {0:?}; `smesh events --help` lists them")]
pub struct UnknownEventType(pub String);

macro_rules! event_types {
    ($($variant:ident = $category:ident . $event:literal, $identity:ident, $summary:literal;)*) => {
        /// What happened.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum EventType {
            $(#[doc = $summary] $variant,)*
        }

        impl EventType {
            /// Every event type, by category.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The category.
            pub const fn category(self) -> Category {
                match self { $(Self::$variant => Category::$category,)* }
            }

            /// Last word of the type.
            pub const fn event(self) -> &'static str {
                match self { $(Self::$variant => $event,)* }
            }

            /// How ids of this type come about.
            pub const fn identity(self) -> FactKind {
                match self { $(Self::$variant => FactKind::$identity,)* }
            }

            /// What it means, in one sentence.
            pub const fn summary(self) -> &'static str {
                match self { $(Self::$variant => $summary,)* }
            }
        }
    };
}

event_types! {
    JobBaseline = Job."baseline", Recorded, "The job existed when capture started; its earlier history is not published.";
    JobSubmitted = Job."submitted", Recorded, "A run entered the queue: a new job, or the next run of a requeued one.";
    JobPending = Job."pending", Sampled, "The class of the pending reason changed.";
    JobHeld = Job."held", Sampled, "The job was held: its priority is 0.";
    JobReleased = Job."released", Sampled, "The job is no longer held.";
    JobStarted = Job."started", Recorded, "The run started: it has its allocation.";
    JobSuspended = Job."suspended", Recorded, "The run was suspended; memory and GPUs stay allocated.";
    JobResumed = Job."resumed", Recorded, "The suspended run was resumed.";
    JobRequeued = Job."requeued", Recorded, "The run ended by a requeue; a new run of the same job follows.";
    JobResized = Job."resized", Recorded, "The allocation of the run was resized.";
    JobCompleted = Job."completed", Recorded, "The run ended with exit code 0.";
    JobFailed = Job."failed", Recorded, "The run ended with another exit code, by a signal, or could not be launched.";
    JobCancelled = Job."cancelled", Recorded, "The run was cancelled while pending or running.";
    JobTimeout = Job."timeout", Recorded, "The run reached its time limit.";
    JobOutOfMemory = Job."out_of_memory", Recorded, "The run was ended by the out-of-memory killer.";
    JobNodeFail = Job."node_fail", Recorded, "The run ended because a node failed.";
    JobPreempted = Job."preempted", Recorded, "The run was preempted by another job.";
    JobBootFail = Job."boot_fail", Recorded, "The run's nodes could not boot.";
    JobDeadline = Job."deadline", Recorded, "The job could not finish before its deadline.";
    JobRevoked = Job."revoked", Recorded, "A sibling of the federation ran instead.";
    JobUpdated = Job."updated", Recorded, "Accounting completed the record, e.g. with the usage.";
    JobCorrected = Job."corrected", Derived, "A better record corrects an earlier event.";
    NodeBaseline = Node."baseline", Sampled, "The node existed when capture started.";
    NodeProvisioning = Node."provisioning", Sampled, "The node is being powered up or booted.";
    NodeActive = Node."active", Sampled, "The node can run jobs.";
    NodeDraining = Node."draining", Sampled, "The node takes no new jobs; some still run.";
    NodeDrained = Node."drained", Sampled, "The node takes no jobs and none run.";
    NodeDown = Node."down", Sampled, "The node is down.";
    NodeRecovered = Node."recovered", Sampled, "The node is usable again after being down, draining or drained.";
    NodeTerminating = Node."terminating", Sampled, "The node is being powered down.";
    NodeTerminated = Node."terminated", Sampled, "The node is powered down.";
    NodePreempted = Node."preempted", Sampled, "The cloud provider reclaimed the node.";
    NodeReboot = Node."reboot", Sampled, "The node is being rebooted.";
    NodeMaintenance = Node."maintenance", Sampled, "A maintenance reservation has begun on the node.";
    NodeAdded = Node."added", Sampled, "The node is new in the cluster.";
    NodeRemoved = Node."removed", Sampled, "The node was removed from the configuration.";
    UserLogin = User."login", Derived, "A user logged in on a host with the PAM hook.";
    UserIdentityLinked = User."identity_linked", Sampled, "The OIDC identity of a Unix user became known or changed.";
    UserAccessGranted = User."access_granted", Sampled, "A user or account was granted access: an account, a QOS, an admin level, coordination.";
    UserAccessChanged = User."access_changed", Sampled, "A limit, share or default of a user or account changed.";
    UserAccessRevoked = User."access_revoked", Sampled, "A user or account lost access.";
    UserQuotaHigh = User."quota_high", Sampled, "A budget is nearly used up.";
    UserQuotaExceeded = User."quota_exceeded", Sampled, "A budget is used up.";
    UserQuotaCleared = User."quota_cleared", Sampled, "A budget has room again.";
    UserNotified = User."notified", SampledOrDerived, "A rule tells its owner something, or a step of a job with `--mesh-notify` does.";
    UserApprovalRequested = User."approval_requested", Sampled, "A run of a rule waits for the approval of this user.";
    CostEstimated = Cost."estimated", Recorded, "Burn rate and estimated cost of a run that started.";
    CostAccrued = Cost."accrued", Derived, "Cost of a running job so far, when it passes an amount, its rate changes, or an interval is over.";
    CostFinalized = Cost."finalized", Recorded, "Final cost of a run.";
    CostAdjusted = Cost."adjusted", Derived, "A final cost was corrected.";
    QueueExplained = Queue."explained", Derived, "Why a job is pending, who can act, and its expected start.";
    CaptureGapOpened = Capture."gap_opened", Sampled, "Events may be missing from here on.";
    CaptureGapClosed = Capture."gap_closed", SampledOrDerived, "Which events of a gap were recovered, and which cannot be.";
    CaptureCaughtUp = Capture."caught_up", Sampled, "Capture has caught up after a start or an absence.";
    CaptureSourceDown = Capture."source_down", Sampled, "A source of Slurm facts does not answer.";
    CaptureSourceUp = Capture."source_up", Sampled, "A source of Slurm facts answers again.";
    CaptureSchemaDrift = Capture."schema_drift", Sampled, "Slurm printed a value that this version does not know.";
}

impl EventType {
    /// True for the end of a run: exactly one of these per run.
    pub const fn is_end(self) -> bool {
        matches!(
            self,
            Self::JobRequeued
                | Self::JobCompleted
                | Self::JobFailed
                | Self::JobCancelled
                | Self::JobTimeout
                | Self::JobOutOfMemory
                | Self::JobNodeFail
                | Self::JobPreempted
                | Self::JobBootFail
                | Self::JobDeadline
                | Self::JobRevoked
        )
    }
}

impl fmt::Display for EventType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.category().as_str(), self.event())
    }
}

impl FromStr for EventType {
    type Err = UnknownEventType;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (category, event) = text
            .split_once('.')
            .ok_or_else(|| UnknownEventType(text.to_owned()))?;
        Self::ALL
            .iter()
            .copied()
            .find(|t| t.category().as_str() == category && t.event() == event)
            .ok_or_else(|| UnknownEventType(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_parses_back() {
        for kind in EventType::ALL {
            assert_eq!(kind.to_string().parse(), Ok(*kind));
        }
    }

    #[test]
    fn unknown_names_are_refused() {
        assert_eq!(
            "job.exploded".parse::<EventType>(),
            Err(UnknownEventType("job.exploded".into()))
        );
        assert!("job".parse::<EventType>().is_err());
    }
}
