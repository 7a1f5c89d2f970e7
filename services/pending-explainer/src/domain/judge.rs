//! Judges why a job waits, from Slurm's records instead of its words alone.
//!
//! A reason is what the last scheduler pass said, and some texts are generic: "Nodes required for job are DOWN, DRAINED or reserved …" is
//! also printed where no node is. So the causes are looked for in the evidence, in this order, and the first one found is the answer:
//!
//! 1. partitions that do not admit the job ([`partition`]);
//! 2. limits that it can never fit under ([`limit`]);
//! 3. nodes that do not exist in the shape it asks for ([`node`]);
//! 4. what the reason names, if the evidence confirms it: a limit that is used up, licenses, a reservation, a job, nodes;
//! 5. for generic reasons: a limit that is used up, nodes that are out of service, a reservation in its way;
//! 6. its turn ([`turn`]).
//!
//! A job in several partitions waits for the first one that admits it, though its reason may be about another one. Holds, begin times and ends need no evidence: for those, and where
//! evidence is missing, the sentences of the reason table count.

mod dependency;
mod jobs_ahead;
mod license;
mod limit;
mod node;
mod partition;
mod request;
mod reservation;

use mesh_events::proto::mesh::queue::v1::{Blocker, Release};
use mesh_events::timestamp;
use slurm_types::reasons::Match;
use slurm_types::{Actor, ReasonClass};

pub use self::node::of_node;
pub use self::request::Request;
use super::evidence::Evidence;
use super::pending_job::PendingJob;

/// Why a job waits.
#[derive(Clone, Debug)]
pub struct PendingCause {
    /// Class.
    pub class: ReasonClass,
    /// Who can act.
    pub actor: Actor,
    /// One or two sentences for the owner.
    pub summary: String,
    /// Advice for the owner.
    pub advice: String,
    /// Objects that it names.
    pub evidence: Vec<String>,
    /// What stands in the way, with amounts.
    pub blockers: Vec<Blocker>,
    /// Running jobs whose end helps.
    pub frees: Vec<Release>,
    /// Limit in Slurm's words. Empty if none.
    pub limit: String,
    /// True if waiting alone does not help.
    pub needs_act: bool,
}

impl PendingCause {
    fn new(
        class: ReasonClass,
        actor: Actor,
        summary: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self {
            class,
            actor,
            summary: summary.into(),
            advice: advice.into(),
            evidence: Vec::new(),
            blockers: Vec::new(),
            frees: Vec::new(),
            limit: String::new(),
            needs_act: actor != Actor::Wait,
        }
    }

    fn blocked_by(mut self, blockers: impl IntoIterator<Item = Blocker>) -> Self {
        for blocker in blockers {
            self.evidence
                .push(format!("{} {}", blocker.kind, blocker.name));
            self.blockers.push(blocker);
        }
        self
    }
}

/// A blocker read from one field of the evidence.
fn blocker(evidence: &Evidence, kind: &str, name: &str, source: &str) -> Blocker {
    Blocker {
        kind: kind.to_owned(),
        name: name.to_owned(),
        source: source.to_owned(),
        as_of: Some(timestamp(evidence.taken_at)),
        ..Blocker::default()
    }
}

/// Judges a pending job. `None` if the sentences of the reason table count.
pub fn finding(
    found: &Match,
    waiting: &PendingJob<'_>,
    evidence: &Evidence,
) -> Option<PendingCause> {
    let request = Request::of(waiting);
    let reason = found.row.map_or("", |row| row.reason);
    match found.class() {
        ReasonClass::Held
        | ReasonClass::DependencyNeverSatisfied
        | ReasonClass::BeginTime
        | ReasonClass::Failure
        | ReasonClass::BurstBuffer
        | ReasonClass::System
        | ReasonClass::Starting => return None,
        ReasonClass::Dependency => return dependency::finding(waiting, evidence),
        // The scheduler has not decided yet, but what cannot start now can be said at once.
        ReasonClass::NotEvaluated => {
            return impossible(&request, evidence)
                .or_else(|| node::out_of_service(&request, evidence, false));
        }
        ReasonClass::Limit
        | ReasonClass::License
        | ReasonClass::Reservation
        | ReasonClass::WaitingTurn
        | ReasonClass::NodeUnavailable
        | ReasonClass::Partition
        | ReasonClass::Request
        | ReasonClass::Unknown => {}
    }
    if let Some(finding) = impossible(&request, evidence) {
        return Some(finding);
    }
    match found.class() {
        ReasonClass::Limit => limit::of_reason(found, &request, evidence),
        ReasonClass::License => license::finding(&request, evidence),
        ReasonClass::Reservation => reservation::own(&request, evidence),
        ReasonClass::NodeUnavailable if reason == "ReqNodeNotAvail" => {
            node::of_reason(found, &request, evidence)
                .or_else(|| reservation::in_the_way(&request, evidence))
        }
        ReasonClass::WaitingTurn | ReasonClass::NodeUnavailable => {
            by_records(found, waiting, &request, evidence)
        }
        // The reason is about another partition of the job than those that admit it.
        ReasonClass::Partition if request.partitions.len() > 1 => {
            by_records(found, waiting, &request, evidence)
        }
        _ => None,
    }
}

/// What the records say, whatever the reason.
fn by_records(
    found: &Match,
    waiting: &PendingJob<'_>,
    request: &Request<'_>,
    evidence: &Evidence,
) -> Option<PendingCause> {
    let reason = found.row.map_or("", |row| row.reason);
    // "Nodes required for job are DOWN, DRAINED or reserved …"
    let none_free = reason == "Resources" && found.description.is_some();
    limit::used_up(request, evidence)
        .filter(|_| reason != "Priority")
        .or_else(|| node::out_of_service(request, evidence, none_free))
        .or_else(|| reservation::in_the_way(request, evidence))
        .or_else(|| license::finding(request, evidence).filter(|_| reason == "Resources"))
        .or_else(|| jobs_ahead::finding(found, waiting, request, evidence))
}

/// What keeps a job from ever starting as it is.
pub fn never(waiting: &PendingJob<'_>, evidence: &Evidence) -> Option<PendingCause> {
    impossible(&Request::of(waiting), evidence)
}

/// The same without limits, which are those of an account: of nobody's yet.
pub fn never_by_partition(waiting: &PendingJob<'_>, evidence: &Evidence) -> Option<PendingCause> {
    let request = Request::of(waiting);
    partition::not_admitted(&request, evidence).or_else(|| node::never(&request, evidence))
}

/// What can never start as it is: waiting does not help, whatever Slurm says.
fn impossible(request: &Request<'_>, evidence: &Evidence) -> Option<PendingCause> {
    partition::not_admitted(request, evidence)
        .or_else(|| limit::never(request, evidence))
        .or_else(|| node::never(request, evidence))
}

#[cfg(test)]
mod tests;
