//! Sentences for requests, accounts and partitions that do not match.

use super::pending_job::PendingJob;
use super::reason_text::{ReasonText, capital, name, named, time_limit, with_advice};

/// Sentences for a reason. `None` if it is not one of these.
pub fn reason_text(reason: &str, waiting: &PendingJob<'_>) -> Option<ReasonText> {
    let job = waiting.job;
    let partition = named("partition", &job.partition);
    let account = named("account", waiting.account);
    let qos = named("QOS", &job.qos);
    match reason {
        "PartitionNodeLimit" => with_advice(
            format!(
                "It asks for {} nodes: {partition} does not allow that many or that few, or too many of its nodes are down.",
                job.node_count.max(1)
            ),
            "Change the number of nodes or the partition. If the number is within its limits, an administrator has to bring nodes back.",
        ),
        "PartitionTimeLimit" => with_advice(
            format!(
                "Its time limit ({}) is above the longest that {partition} allows (MaxTime).",
                time_limit(job.time_limit_minutes)
            ),
            "Shorten it (scontrol update jobid=JOB TimeLimit=…) or use another partition.",
        ),
        "PartitionDown" => with_advice(
            capital(&format!(
                "{partition} is down: it takes jobs but starts none."
            )),
            "An administrator has to bring it up; another partition may start it now.",
        ),
        "PartitionInactive" => with_advice(
            capital(&format!(
                "{partition} is inactive: it takes no jobs and starts none."
            )),
            "Move the job to another partition, or ask an administrator.",
        ),
        "PartitionConfig" => with_advice(
            format!("It breaks a rule of {partition} (nodes, time, memory or groups)."),
            "Compare it with the limits of the partition: scontrol show partition.",
        ),
        "BadConstraints" => with_advice(
            format!(
                "No nodes of the cluster, as it is configured, can meet what it asks for{}.",
                asks(waiting)
            ),
            "Correct --constraint, --gres, or the numbers of nodes, CPUs or memory, and submit it again.",
        ),
        "Constraints" => with_advice(
            format!(
                "No node can meet its constraints at the moment{}.",
                asks(waiting)
            ),
            "It may start when matching nodes come up; a looser --constraint would help.",
        ),
        "MaxMemPerLimit" => with_advice(
            "It asks for more memory per CPU or per node than allowed (MaxMemPerCPU, MaxMemPerNode).",
            "Lower --mem or --mem-per-cpu, or ask for more CPUs so that each has less.",
        ),
        "InvalidAccount" => with_advice(
            capital(&format!("{account} is not, or no longer, valid for you.")),
            "Use another account (scontrol update jobid=JOB account=…), or ask to be added to it.",
        ),
        "InvalidQOS" => with_advice(
            format!("You may not use {qos} with {account}."),
            "Use another QOS (scontrol update jobid=JOB qos=…), or ask for access to it.",
        ),
        "QOSNotAllowed" => with_advice(
            capital(&format!("{partition} does not allow {qos}.")),
            "Use another QOS or another partition.",
        ),
        "AccountNotAllowed" => with_advice(
            capital(&format!(
                "{account} (or your Unix group) may not use {partition}."
            )),
            "Use another account or partition; an administrator can allow this one.",
        ),
        "SchedDefer" => with_advice(
            "It was to start at once (--immediate), but this cluster never starts jobs at submission (defer).",
            "Submit it again without --immediate.",
        ),
        "AccountingPolicy" => with_advice(
            format!("A rule of accounting, of {qos} or {account}, stops it."),
            "Look at the limits of both (sacctmgr show qos, sacctmgr show assoc), or ask an administrator.",
        ),
        _ => None,
    }
}

fn asks(waiting: &PendingJob<'_>) -> String {
    let job = waiting.job;
    let asked = if job.features.is_empty() {
        &job.req_tres
    } else {
        &job.features
    };
    if asked.is_empty() {
        String::new()
    } else {
        format!(" ({})", name(asked))
    }
}
