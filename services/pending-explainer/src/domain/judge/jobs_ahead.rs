//! Its turn: the jobs ahead, and what is in use.

use std::collections::BTreeSet;

use chrono::DateTime;
use mesh_events::proto::mesh::queue::v1::Blocker;
use slurm_types::reasons::Match;
use slurm_types::{Actor, HostList, ReasonClass};

use super::partition::admitting;
use super::{Evidence, PendingCause, Request, blocker, limit};
use crate::domain::pending_job::PendingJob;
use crate::domain::reason_text::{capital, count, list, moment, named, nodes};

/// A job that nothing but other jobs keeps from starting.
pub fn finding(
    found: &Match,
    waiting: &PendingJob<'_>,
    request: &Request<'_>,
    evidence: &Evidence,
) -> Option<PendingCause> {
    let partitions = admitting(request, evidence);
    let names: Vec<String> = partitions
        .iter()
        .map(|name| named("partition", name))
        .collect();
    let at = list(&names, 3);
    let ahead = waiting.position.map(|position| position.ahead);
    let is_next = ahead == Some(0);
    let mut summary = match ahead {
        // No snapshot shows it yet.
        None => format!("It waits for its turn, or for free resources, in {at}."),
        Some(0) => {
            format!("It is next in {at} and waits for enough free CPUs, memory, GPUs or nodes.")
        }
        Some(1) => format!("It waits its turn: one job is ahead of it in {at}."),
        Some(ahead) => format!("It waits its turn: {ahead} jobs are ahead of it in {at}."),
    };
    if is_next && let Some(in_use) = in_use(&partitions, request, evidence) {
        summary.push(' ');
        summary.push_str(&in_use);
    }
    let planned = &waiting.job.scheduled_nodes;
    if is_next && !planned.is_empty() {
        summary.push_str(&format!(" Slurm has planned {} for it.", nodes(planned)));
    }
    let mut finding = PendingCause::new(
        ReasonClass::WaitingTurn,
        Actor::Wait,
        summary,
        "A shorter time limit or a smaller request fits into gaps more easily.",
    );
    finding.blockers.push(Blocker {
        have: ahead.map(|ahead| ahead as u64),
        ..blocker(evidence, "jobs_ahead", &partitions.join(","), "squeue")
    });
    // A reason is what the last pass said: Priority may hide a limit.
    if found.row.is_some_and(|row| row.reason == "Priority")
        && let Some(over) = limit::used_up(request, evidence)
    {
        finding
            .summary
            .push_str(" When its turn comes, a limit may stop it: ");
        finding.summary.push_str(&over.summary);
        finding = finding.blocked_by(over.blockers);
        finding.frees = over.frees;
    }
    Some(finding)
}

/// What is in use in the partitions, and when the first running job there ends.
fn in_use(partitions: &[&str], request: &Request<'_>, evidence: &Evidence) -> Option<String> {
    let mut busy = 0_usize;
    let mut all = 0_usize;
    let mut first_end: Option<i64> = None;
    for partition in partitions {
        let mut names = BTreeSet::new();
        for (name, node) in evidence.members(partition) {
            names.insert(name);
            all += 1;
            busy += usize::from(node.is_some_and(|node| node.alloc_cpus > 0));
        }
        for job in &evidence.running {
            let on = HostList::expand(&job.nodes).unwrap_or_default();
            if job.end > 0 && on.iter().any(|node| names.contains(node.as_str())) {
                first_end = Some(first_end.map_or(job.end, |end| end.min(job.end)));
            }
        }
    }
    if busy == 0 {
        return None;
    }
    let end = first_end.and_then(|end| DateTime::from_timestamp(end, 0));
    let until = end.map_or_else(String::new, |end| {
        format!(
            "; the first job there ends by {} at the latest",
            moment(end, request.now)
        )
    });
    Some(format!(
        "{} of {} {} in use{until}.",
        capital(&busy.to_string()),
        count(all as u64, "node", "nodes"),
        if busy == 1 { "is" } else { "are" }
    ))
}
