//! Nodes: those that could run the job as they are configured, and those of them that are in service.

use chrono::DateTime;
use mesh_events::proto::mesh::queue::v1::{Blocker, NodeState};
use mesh_events::timestamp;
use slurm_types::reasons::Match;
use slurm_types::{Actor, ReasonClass, Tres};

use super::partition::admitting;
use super::{Evidence, PendingCause, Request, blocker};
use crate::domain::reason_text::{capital, count, list, memory, moment, name, named};

/// Longest list of nodes in an answer.
const MAX_NODES: usize = 20;

/// True if the evidence has nodes at all.
fn are_known(evidence: &Evidence) -> bool {
    !evidence.failed.contains_key("nodes") && !evidence.nodes.is_empty()
}

/// True if the partition has as many nodes as the job needs of which this holds. Stops at the last one needed.
fn enough(
    partition: &str,
    request: &Request<'_>,
    evidence: &Evidence,
    holds: impl Fn(Option<&NodeState>) -> bool,
) -> bool {
    let needed = usize::try_from(request.nodes).unwrap_or(usize::MAX);
    let members = evidence.members(partition);
    let good = members.filter(|(_, node)| holds(*node));
    good.take(needed).count() == needed
}

/// What a node lacks for a job, as it is configured.
fn lacks(node: &NodeState, request: &Request<'_>) -> Option<String> {
    if !has_features(&node.features, request.features) {
        return Some(format!("the feature {}", name(request.features)));
    }
    let tres = Tres::parse_lossy(&node.tres).0;
    let cpus = request.per_node("cpu");
    if u64::from(node.cpus) < cpus {
        return Some(count(cpus, "CPU", "CPUs"));
    }
    let mib = request.per_node("mem");
    if node.memory_mib < mib {
        return Some(format!("{} of memory", memory(mib)));
    }
    let missing = request.tres.iter().find_map(|(item, _)| {
        let requested = request.per_node(item);
        // The types of GPUs are tracked only where a site says so (AccountingStorageTRES).
        let is_plain = item.starts_with("gres/") && !item.contains(':');
        (is_plain && tres.get(item).unwrap_or(0) < requested).then_some((item, requested))
    });
    missing.map(|(item, requested)| match item {
        "gres/gpu" => count(requested, "GPU", "GPUs"),
        item => format!("{requested} {}", item.trim_start_matches("gres/")),
    })
}

/// Whether features satisfy an expression of names, `&`, `,` and `|`. More than that is not judged and counts as satisfied.
fn has_features(features: &[String], expression: &str) -> bool {
    if expression.contains(['[', '(', '*', '!']) {
        return true;
    }
    let has = |name: &str| features.iter().any(|feature| feature == name.trim());
    expression.is_empty()
        || expression
            .split('|')
            .any(|all| all.split(['&', ',']).all(has))
}

/// Why a node takes no job now. `None` if it is in service.
fn trouble(node: &NodeState) -> Option<&'static str> {
    let flag = |name: &str| node.state_flags.iter().any(|flag| flag == name);
    // Slurm powers these up for a job.
    let failed_boot = node.reason.contains("ResumeTimeout") || node.reason.contains("(Code:");
    match node.state.as_str() {
        "DOWN" if failed_boot => Some("failed to boot"),
        "DOWN" => Some("is down"),
        _ if flag("DRAIN") && (node.alloc_cpus > 0 || flag("COMPLETING")) => Some("is draining"),
        _ if flag("DRAIN") => Some("is drained"),
        _ if flag("FAIL") => Some("is failing"),
        _ if flag("INVALID_REG") => Some("registered with a wrong configuration"),
        _ if flag("NOT_RESPONDING") && !flag("POWERING_UP") && !flag("POWERED_DOWN") => {
            Some("does not respond")
        }
        "UNKNOWN" => Some("has not registered"),
        _ => None,
    }
}

/// No node is configured as the job asks, in any partition that admits it.
pub fn never(request: &Request<'_>, evidence: &Evidence) -> Option<PendingCause> {
    if !are_known(evidence) {
        return None;
    }
    let mut findings = Vec::new();
    for partition in admitting(request, evidence) {
        evidence.partition(partition)?;
        // A node without a record is a cloud node that is powered down: nothing speaks against it.
        if enough(partition, request, evidence, |node| {
            node.is_none_or(|node| lacks(node, request).is_none())
        }) {
            return None;
        }
        let mut all = 0_u64;
        let mut able = 0_u64;
        let mut lacking = None;
        for (_, node) in evidence.members(partition) {
            all += 1;
            match node.and_then(|node| lacks(node, request)) {
                Some(lack) => lacking = lacking.or(Some(lack)),
                None => able += 1,
            }
        }
        let what = match (lacking, able) {
            (None, _) => format!("has only {}", count(all, "node", "nodes")),
            (Some(lacking), 0) => format!("has no node with {lacking}"),
            (Some(lacking), able) => {
                format!("has only {} with {lacking}", count(able, "node", "nodes"))
            }
        };
        findings.push((partition, what));
    }
    let needs = count(request.nodes, "such node", "such nodes");
    let sentences: Vec<String> = findings
        .iter()
        .map(|(partition, what)| format!("{} {what}", capital(&named("partition", partition))))
        .collect();
    if sentences.is_empty() {
        return None;
    }
    let blockers = findings.iter().map(|(partition, what)| Blocker {
        need: Some(request.nodes),
        state: what.clone(),
        ..blocker(evidence, "request", partition, "nodes")
    });
    Some(
        PendingCause::new(
            ReasonClass::Request,
            Actor::User,
            format!("{}; it needs {needs}. It can never start like this.", sentences.join(". ")),
            "Correct --constraint, --gres, or the numbers of nodes, CPUs or memory, or use another partition, and submit it again.",
        )
        .blocked_by(blockers),
    )
}

/// Too few of the nodes that could run it are in service, in every partition that admits it.
///
/// `none_free`: Slurm said that no node is free for it. Slurm 22.05 shows no record of a cloud node that is powered down, also if it failed
/// to boot. Such a node is available unless Slurm says so.
pub fn out_of_service(
    request: &Request<'_>,
    evidence: &Evidence,
    none_free: bool,
) -> Option<PendingCause> {
    if !are_known(evidence) {
        return None;
    }
    let is_able = |node: &NodeState| lacks(node, request).is_none();
    let mut troubled: Vec<&NodeState> = Vec::new();
    let mut hidden: Vec<&str> = Vec::new();
    let mut counts = None;
    for partition in admitting(request, evidence) {
        evidence.partition(partition)?;
        let serves = |node: Option<&NodeState>| {
            node.map_or(!none_free, |node| is_able(node) && trouble(node).is_none())
        };
        if enough(partition, request, evidence, serves) {
            return None;
        }
        let members = evidence.members(partition);
        let able: Vec<_> = members
            .filter(|(_, node)| node.is_none_or(is_able))
            .collect();
        let serving = able.iter().filter(|(_, node)| serves(*node)).count();
        counts = counts.or(Some((partition, serving, able.len())));
        for (name, node) in able {
            match node {
                Some(node) if trouble(node).is_some() => troubled.push(node),
                None if none_free => hidden.push(name),
                _ => {}
            }
        }
    }
    let (partition, serving, able) = counts?;
    let mut what = Vec::new();
    if !troubled.is_empty() {
        what.push(sentences(&troubled, request));
    }
    if !hidden.is_empty() {
        let names: Vec<String> = hidden.iter().map(|host| name(host)).collect();
        what.push(format!(
            "Slurm does not start {}, which probably failed to boot (it shows no record of them)",
            list(&names, 4)
        ));
    }
    let summary = format!(
        "It needs {}, and {serving} of the {able} in {} that could run it {} in service: {}.",
        count(request.nodes, "node", "nodes"),
        named("partition", partition),
        if serving == 1 { "is" } else { "are" },
        what.join("; ")
    );
    let known = troubled.iter().map(|node| of_node(node, evidence));
    let unknown = hidden
        .iter()
        .map(|name| blocker(evidence, "node", name, "nodes"));
    Some(
        PendingCause::new(
            ReasonClass::NodeUnavailable,
            Actor::Admin,
            summary,
            "An administrator has to bring nodes back; a smaller request or another partition may start earlier.",
        )
        .blocked_by(known.chain(unknown).take(MAX_NODES)),
    )
}

/// The nodes that a reason names, with their own states and reasons.
fn named_nodes<'a>(found: &Match, evidence: &'a Evidence) -> Vec<&'a NodeState> {
    let hosts = found.captures.get("nodes").map_or("", String::as_str);
    let nodes = evidence.nodes_of(hosts.trim());
    let known = nodes.into_iter().filter_map(|(_, node)| node);
    known.filter(|node| trouble(node).is_some()).collect()
}

/// `ReqNodeNotAvail, UnavailableNodes:…`, if the nodes are indeed out of service.
pub fn of_reason(
    found: &Match,
    request: &Request<'_>,
    evidence: &Evidence,
) -> Option<PendingCause> {
    let nodes = named_nodes(found, evidence);
    if nodes.is_empty() {
        return None;
    }
    Some(
        PendingCause::new(
            ReasonClass::NodeUnavailable,
            Actor::Admin,
            format!("It needs nodes that are out of service: {}.", sentences(&nodes, request)),
            "An administrator has to bring them back. If you named the nodes yourself (--nodelist), other nodes may do.",
        )
        .blocked_by(nodes.iter().take(MAX_NODES).map(|node| of_node(node, evidence))),
    )
}

/// `n4 is drained (bad disk, by root since 10:00)`.
fn sentences(nodes: &[&NodeState], request: &Request<'_>) -> String {
    let texts: Vec<String> = nodes
        .iter()
        .map(|node| {
            let state = trouble(node).unwrap_or("is not in service");
            let mut why = name(&node.reason);
            if !node.reason_user.is_empty() {
                why.push_str(&format!(", by {}", name(&node.reason_user)));
            }
            if let Some(since) = DateTime::from_timestamp(node.reason_time, 0)
                && node.reason_time > 0
            {
                why.push_str(&format!(" since {}", moment(since, request.now)));
            }
            match node.reason.is_empty() {
                true => format!("{} {state}", node.name),
                false => format!("{} {state} ({why})", node.name),
            }
        })
        .collect();
    list(&texts, 2)
}

/// A node as a blocker.
pub fn of_node(node: &NodeState, evidence: &Evidence) -> Blocker {
    let mut state = node.state.clone();
    for flag in &node.state_flags {
        state.push('+');
        state.push_str(flag);
    }
    if !node.reason.is_empty() {
        state.push_str(": ");
        state.push_str(&node.reason);
    }
    Blocker {
        state,
        actor: node.reason_user.clone(),
        since: DateTime::from_timestamp(node.reason_time, 0)
            .filter(|_| node.reason_time > 0)
            .map(timestamp),
        ..blocker(evidence, "node", &node.name, "nodes")
    }
}
