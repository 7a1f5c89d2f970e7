//! Coarse classes of reasons: a change of class is a change that matters to a person.

use serde::{Deserialize, Serialize};

use super::table::ReasonRow;

/// The class of a reason. Events about waiting are sent when the class changes, so it must not follow reasons that the scheduler rewrites
/// on every cycle.
///
/// Classes come from the column `category` of the reason table:
///
/// | class | categories |
/// | --- | --- |
/// | `not_evaluated` | `unknown` (the reason `None`) |
/// | `waiting_turn` | `queue`, `resources`: `Priority` and `Resources` swap places whenever the head of the queue changes |
/// | `limit` | `assoc_*`, `qos_*`, `array`, `fairshare`, `policy` |
/// | `dependency` | `dependency`, as long as it may be fulfilled |
/// | `dependency_never_satisfied` | `dependency` that can never be fulfilled: a person has to act |
/// | `held` | `hold` |
/// | `node_unavailable` | `node_unavailable` |
/// | `license` | `license` |
/// | `reservation` | `reservation` |
/// | `begin_time` | `begin_time` |
/// | `partition` | `partition_state`, `partition_limit` |
/// | `burst_buffer` | `burst_buffer` |
/// | `starting` | `prolog`, `provisioning`, `requeue_cleanup` |
/// | `request` | `account`, `request_invalid`, `immediate` |
/// | `failure` | `failure`: reasons of a job that ended |
/// | `system` | `system`, `federation`, `obsolete` |
/// | `unknown` | a text that no table contains |
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasonClass {
    /// The scheduler has not evaluated the job yet. Not worth an event: the class changes soon.
    NotEvaluated,
    /// Other jobs are ahead, or the job is next and waits for resources.
    WaitingTurn,
    /// A limit of an association, a QOS or the array itself.
    Limit,
    /// Waits for another job.
    Dependency,
    /// Its dependency can never be fulfilled.
    DependencyNeverSatisfied,
    /// Priority 0, until it is released.
    Held,
    /// Nodes it needs are down, drained or reserved.
    NodeUnavailable,
    /// No free license.
    License,
    /// Its reservation is not active, gone or invalid.
    Reservation,
    /// Its begin time has not come.
    BeginTime,
    /// The partition is down, or its limits exclude the job.
    Partition,
    /// Burst buffer: space, staging, or a failed operation.
    BurstBuffer,
    /// Nodes are being powered up, a prolog runs, or the last run is still cleaned up.
    Starting,
    /// The request cannot be met as it is.
    Request,
    /// Why a job ended.
    Failure,
    /// Slurm itself, or the federation.
    System,
    /// No table contains the text.
    Unknown,
}

impl ReasonClass {
    /// Every class.
    pub const ALL: [Self; 17] = [
        Self::NotEvaluated,
        Self::WaitingTurn,
        Self::Limit,
        Self::Dependency,
        Self::DependencyNeverSatisfied,
        Self::Held,
        Self::NodeUnavailable,
        Self::License,
        Self::Reservation,
        Self::BeginTime,
        Self::Partition,
        Self::BurstBuffer,
        Self::Starting,
        Self::Request,
        Self::Failure,
        Self::System,
        Self::Unknown,
    ];

    /// The keyword used in events and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotEvaluated => "not_evaluated",
            Self::WaitingTurn => "waiting_turn",
            Self::Limit => "limit",
            Self::Dependency => "dependency",
            Self::DependencyNeverSatisfied => "dependency_never_satisfied",
            Self::Held => "held",
            Self::NodeUnavailable => "node_unavailable",
            Self::License => "license",
            Self::Reservation => "reservation",
            Self::BeginTime => "begin_time",
            Self::Partition => "partition",
            Self::BurstBuffer => "burst_buffer",
            Self::Starting => "starting",
            Self::Request => "request",
            Self::Failure => "failure",
            Self::System => "system",
            Self::Unknown => "unknown",
        }
    }
}

impl std::fmt::Display for ReasonClass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

fn of_category(category: &str) -> ReasonClass {
    match category {
        "unknown" => ReasonClass::NotEvaluated,
        "queue" | "resources" => ReasonClass::WaitingTurn,
        "array" | "fairshare" | "policy" => ReasonClass::Limit,
        limit if limit.starts_with("assoc_") || limit.starts_with("qos_") => ReasonClass::Limit,
        "dependency" => ReasonClass::Dependency,
        "hold" => ReasonClass::Held,
        "node_unavailable" => ReasonClass::NodeUnavailable,
        "license" => ReasonClass::License,
        "reservation" => ReasonClass::Reservation,
        "begin_time" => ReasonClass::BeginTime,
        "partition_state" | "partition_limit" => ReasonClass::Partition,
        "burst_buffer" => ReasonClass::BurstBuffer,
        "prolog" | "provisioning" | "requeue_cleanup" => ReasonClass::Starting,
        "account" | "request_invalid" | "immediate" => ReasonClass::Request,
        "failure" => ReasonClass::Failure,
        "system" | "federation" | "obsolete" => ReasonClass::System,
        _ => ReasonClass::Unknown,
    }
}

/// A dependency waits for another job; once it can never be fulfilled, a person has to act.
pub(super) fn of_row(row: &ReasonRow) -> ReasonClass {
    match of_category(row.category) {
        ReasonClass::Dependency if row.actor != super::Actor::Wait => {
            ReasonClass::DependencyNeverSatisfied
        }
        class => class,
    }
}
