//! Partitions that do not admit a job: state, accounts, QOS, time and node counts.

use mesh_events::proto::mesh::queue::v1::Partition;
use slurm_types::{Actor, ReasonClass};

use super::{Evidence, PendingCause, Request, blocker};
use crate::domain::reason_text::{capital, count, duration, list, named, time_limit};

/// A rule that keeps the job out.
struct PartitionRefusal {
    class: ReasonClass,
    actor: Actor,
    /// Continues "Partition cpu".
    why: String,
    advice: &'static str,
}

/// The refusal, if every partition of the job refuses it. Partitions that the evidence lacks are taken to admit it.
pub fn not_admitted(request: &Request<'_>, evidence: &Evidence) -> Option<PendingCause> {
    let mut refusals = Vec::new();
    for name in &request.partitions {
        let partition = evidence.partition(name)?;
        refusals.push((*name, refusal(partition, request)?));
    }
    let (_, first) = refusals.first()?;
    let sentences: Vec<String> = refusals
        .iter()
        .map(|(name, refusal)| format!("{} {}.", capital(&named("partition", name)), refusal.why))
        .collect();
    let blockers = refusals.iter().map(|(name, refusal)| {
        let mut blocker = blocker(evidence, "partition", name, "partitions");
        blocker.state.clone_from(&refusal.why);
        blocker
    });
    Some(
        PendingCause::new(first.class, first.actor, sentences.join(" "), first.advice)
            .blocked_by(blockers),
    )
}

/// The partitions of the job that admit it.
pub fn admitting<'a>(request: &Request<'a>, evidence: &Evidence) -> Vec<&'a str> {
    let admits = |name: &&&str| {
        let partition = evidence.partition(name);
        partition.is_none_or(|partition| refusal(partition, request).is_none())
    };
    request.partitions.iter().filter(admits).copied().collect()
}

fn refusal(partition: &Partition, request: &Request<'_>) -> Option<PartitionRefusal> {
    let rule = |class, actor, why: String, advice| {
        Some(PartitionRefusal {
            class,
            actor,
            why,
            advice,
        })
    };
    let other = "Move it to another partition (scontrol update jobid=JOB partition=…), or ask an administrator to allow it there.";
    match partition.state.as_str() {
        "DOWN" => {
            let why = "is down: it takes jobs but starts none".to_owned();
            let advice = "An administrator has to bring it up; another partition may start it now.";
            return rule(ReasonClass::Partition, Actor::Admin, why, advice);
        }
        "INACTIVE" => {
            let why = "is inactive: it takes no jobs and starts none".to_owned();
            return rule(ReasonClass::Partition, Actor::Admin, why, other);
        }
        _ => {}
    }
    let lists = |names: &[String], name: &str| names.iter().any(|listed| listed == name);
    let account = named("account", request.account);
    // AllowAccounts takes precedence over DenyAccounts, as AllowQos over DenyQos (slurm.conf, 22.05 to 26.05).
    if !partition.allow_accounts.is_empty() && !request.account.is_empty() {
        if !lists(&partition.allow_accounts, request.account) {
            let allowed = list(&partition.allow_accounts, 3);
            let why = format!("does not admit {account}, only {allowed} (AllowAccounts)");
            let advice = "Use one of these accounts (scontrol update jobid=JOB account=…) or another partition; an administrator can allow yours.";
            return rule(ReasonClass::Request, Actor::User, why, advice);
        }
    } else if lists(&partition.deny_accounts, request.account) {
        let why = format!("does not admit {account} (DenyAccounts)");
        return rule(ReasonClass::Request, Actor::User, why, other);
    }
    let qos = named("QOS", request.qos);
    if !partition.allow_qos.is_empty() && !request.qos.is_empty() {
        if !lists(&partition.allow_qos, request.qos) {
            let allowed = list(&partition.allow_qos, 3);
            let why = format!("does not admit {qos}, only {allowed} (AllowQos)");
            let advice =
                "Use one of these QOS (scontrol update jobid=JOB qos=…) or another partition.";
            return rule(ReasonClass::Request, Actor::User, why, advice);
        }
    } else if lists(&partition.deny_qos, request.qos) {
        let why = format!("does not admit {qos} (DenyQos)");
        return rule(ReasonClass::Request, Actor::User, why, other);
    }
    if let Some(most) = partition.max_minutes
        && request.minutes.is_none_or(|minutes| minutes > most)
    {
        let why = format!(
            "allows at most {} (MaxTime), and it asks for {}",
            duration(u64::from(most) * 60),
            time_limit(request.minutes)
        );
        let advice = "Shorten it (scontrol update jobid=JOB TimeLimit=…) or use another partition.";
        return rule(ReasonClass::Partition, Actor::User, why, advice);
    }
    if let Some(most) = partition.max_nodes
        && request.nodes > u64::from(most)
    {
        let why = format!(
            "allows at most {} (MaxNodes), and it asks for {}",
            count(u64::from(most), "node", "nodes"),
            request.nodes
        );
        return rule(
            ReasonClass::Partition,
            Actor::User,
            why,
            "Ask for fewer nodes, or use another partition.",
        );
    }
    if request.nodes < u64::from(partition.min_nodes) {
        let why = format!(
            "starts no job below {} (MinNodes), and it asks for {}",
            count(u64::from(partition.min_nodes), "node", "nodes"),
            request.nodes
        );
        return rule(
            ReasonClass::Partition,
            Actor::User,
            why,
            "Ask for more nodes, or use another partition.",
        );
    }
    None
}
