//! Sentences for the reasons that are no limits, and for the free texts Slurm prints in place of a reason.

use mesh_events::from_timestamp;
use slurm_types::reasons::Match;

use super::dependency::{any_suffices, unfulfilled};
use super::explain::{Waiting, Words};
use super::words::{LONGEST, capital, clip, list, moment, name, named, nodes, own, time_limit};

fn say(summary: impl Into<String>, advice: impl Into<String>) -> Option<Words> {
    Some(Words { summary: summary.into(), advice: advice.into(), evidence: Vec::new() })
}

fn with(words: Option<Words>, evidence: impl IntoIterator<Item = String>) -> Option<Words> {
    words.map(|mut words| {
        words.evidence.extend(evidence);
        words
    })
}

/// Words for a free text; `None` if none was recognised.
pub fn described(found: &Match, waiting: &Waiting<'_>) -> Option<Words> {
    let description = found.description?;
    let captured = |key: &str| name(found.captures.get(key).map_or("", String::as_str));
    match description.reason {
        "ReqNodeNotAvail" if found.captures.contains_key("nodes") => {
            let missing = found.captures.get("nodes").map_or("", |list| list.trim());
            let which = if missing.is_empty() { "nodes it asks for".to_owned() } else { nodes(missing) };
            with(
                say(
                    format!("It needs nodes that are down, drained or do not respond: {which}."),
                    "An administrator has to bring them back. If you named the nodes yourself (--nodelist), other nodes may do.",
                ),
                (!missing.is_empty()).then(|| format!("nodes {}", clip(missing, LONGEST))),
            )
        }
        "ReqNodeNotAvail" if found.text.contains("aintenance") => say(
            "A maintenance reservation on its nodes begins before it could finish.",
            format!("It starts after the maintenance. Its time limit is {}: one that ends before the maintenance may let it start now.", time_limit(waiting.job.time_limit_minutes)),
        ),
        "ReqNodeNotAvail" => say(
            "Its nodes are up but planned for other jobs.",
            "Nothing is wrong. A shorter time limit, or not naming nodes (--nodelist), may let it start earlier.",
        ),
        "Resources" => say(
            format!("Too many nodes of {} are down, drained or kept for partitions of higher priority.", named("partition", &waiting.job.partition)),
            "An administrator has to bring nodes back; a smaller request or another partition may start earlier.",
        ),
        "JobHeldUser" if found.text.starts_with("launch") => say(
            "It could not be launched on its nodes, was put back into the queue and held.",
            "Find the cause (prolog, script, working directory), then: scontrol release JOB.",
        ),
        "JobHoldMaxRequeue" => say(
            "Its launch failed so often (MaxBatchRequeue) that Slurm holds it.",
            "An administrator should look for the cause on its nodes before it is released.",
        ),
        "JobHeldUser" if found.text.starts_with("user") => say(
            "Your login environment could not be read (--get-user-env), so it was put back into the queue and held.",
            "Make your login files quick and free of errors, then: scontrol release JOB.",
        ),
        "JobHeldUser" if found.text.contains("special") => say(
            "It ended in a special exit state, was put back into the queue and held.",
            "Look at its output for the exit code, then: scontrol release JOB.",
        ),
        "JobHeldUser" => say(
            "It was put back into the queue and is held.",
            "When it is ready to run again: scontrol release JOB.",
        ),
        "ReservationDeleted" => reservation_gone(&captured("resv"), "was deleted"),
        "ReservationInvalid" => reservation_gone(&captured("resv"), "is not valid any more"),
        "AccountNotAllowed" => {
            let partition = captured("part");
            with(
                say(
                    format!("You are in none of the Unix groups that may use partition {partition}: {}.", captured("groups")),
                    "Use another partition, or ask to be added to one of these groups.",
                ),
                [format!("partition {partition}")],
            )
        }
        "RaisedSignal" => say(
            format!("Its script was ended by signal {} ({}).", captured("sig"), captured("name")),
            "Look at the end of its output for what it was doing.",
        ),
        "TimeLimit" if found.captures.contains_key("tres") => say(
            format!("It was stopped: the budget of {} minutes ({}) is used up, {} were counted.", captured("tres"), captured("limit"), captured("used")),
            "Ask for more budget, or charge another account or QOS.",
        ),
        "TimeLimit" if found.captures.contains_key("resv") => say(
            format!("It was stopped because its reservation {} ended.", captured("resv")),
            "Submit it again in a longer reservation, with a time limit that fits, or without one.",
        ),
        "TimeLimit" => say(
            "It was stopped: the wall-clock budget of its QOS or association is used up.",
            "Ask for more budget, or charge another account or QOS.",
        ),
        "BurstBufferOperation" => say(
            format!("The burst buffer ({}) reports: {}", captured("plugin"), captured("msg")),
            "An administrator has to look at the burst buffer; the job stays held until it is released.",
        ),
        _ => None,
    }
}

fn reservation_gone(reservation: &str, what: &str) -> Option<Words> {
    with(
        say(
            format!("Its {} {what}, so it is held.", own("reservation", reservation)),
            "Choose another (scontrol update jobid=JOB reservation=NAME), then: scontrol release JOB.",
        ),
        (!reservation.is_empty()).then(|| format!("reservation {reservation}")),
    )
}

/// Words for a reason; `None` if there are none of its own.
pub fn words(reason: &str, waiting: &Waiting<'_>) -> Option<Words> {
    queue_words(reason, waiting).or_else(|| request_words(reason, waiting)).or_else(|| rare_words(reason, waiting))
}

/// Waiting for one's turn, for others, for a time, for somebody.
fn queue_words(reason: &str, waiting: &Waiting<'_>) -> Option<Words> {
    let job = waiting.job;
    let partition = named("partition", &job.partition);
    match reason {
        "None" => say(
            "The scheduler has not looked at this job yet.",
            "Nothing to do: the reason appears after the next scheduling cycle, usually within a minute.",
        ),
        "Priority" => {
            let ahead = match waiting.place.map_or(0, |place| place.ahead) {
                0 => "Jobs of higher priority are ahead of it".to_owned(),
                1 => "One waiting job of higher priority is ahead of it".to_owned(),
                ahead => format!("{ahead} waiting jobs of higher priority are ahead of it"),
            };
            say(
                format!("{ahead} in {partition}."),
                "Nothing is wrong. A shorter time limit or a smaller request fits into gaps more easily.",
            )
        }
        "Resources" => {
            let planned = if job.scheduled_nodes.is_empty() { String::new() } else { format!(" Slurm has planned {} for it.", nodes(&job.scheduled_nodes)) };
            with(
                say(
                    format!("It is next in {partition} and waits for enough free CPUs, memory, GPUs or nodes.{planned}"),
                    "Nothing is wrong. A smaller or shorter request may start earlier.",
                ),
                (!job.scheduled_nodes.is_empty()).then(|| format!("nodes {}", clip(&job.scheduled_nodes, LONGEST))),
            )
        }
        "Dependency" | "DependencyNeverSatisfied" => dependency_words(reason, waiting),
        "BeginTime" => {
            let begin = job.eligible_time.as_ref().and_then(from_timestamp).filter(|begin| *begin > waiting.now);
            let when = begin.map_or_else(|| "its begin time has come".to_owned(), |begin| moment(begin, waiting.now));
            let why = if job.restarts > 0 { " Slurm makes jobs wait for about two minutes after a requeue." } else { "" };
            say(
                format!("It must not start before {when}.{why}"),
                "Nothing to do, unless you want another --begin (scontrol update jobid=JOB StartTime=now).",
            )
        }
        "Licenses" => {
            let wanted = if job.licenses.is_empty() { "it asks for".to_owned() } else { name(&job.licenses) };
            with(
                say(
                    format!("Not enough licences are free: {wanted}."),
                    "It starts when other jobs give them back (scontrol show licenses shows the use). Asking for fewer may help.",
                ),
                (!job.licenses.is_empty()).then(|| format!("licences {}", clip(&job.licenses, LONGEST))),
            )
        }
        "Reservation" => with(
            say(
                format!("Its {} has not begun, has no room yet, or lacks the nodes it asks for.", own("reservation", &job.reservation)),
                "scontrol show reservation tells when it begins. Without --reservation it may start elsewhere.",
            ),
            (!job.reservation.is_empty()).then(|| format!("reservation {}", name(&job.reservation))),
        ),
        "ReservationDeleted" => reservation_gone(&name(&job.reservation), "was deleted"),
        "ReservationInvalid" => reservation_gone(&name(&job.reservation), "is not valid any more"),
        "ReqNodeNotAvail" => say(
            "A node it needs is down, drained, does not respond, or is kept for something else, such as maintenance.",
            "An administrator has to bring it back. If you named nodes (--nodelist), other nodes may do.",
        ),
        "JobHeldAdmin" => say(
            "An administrator, or Slurm itself, holds this job.",
            "Ask an administrator why and to release it; you cannot release it yourself.",
        ),
        "JobHeldUser" => say(
            "You, or a coordinator of your account, hold this job.",
            "When it should run: scontrol release JOB.",
        ),
        "JobHoldMaxRequeue" => say(
            "It was requeued so often (MaxBatchRequeue) that Slurm holds it.",
            "Find out why it does not start on its nodes, then: scontrol release JOB.",
        ),
        "JobArrayTaskLimit" => {
            let most = job.array.as_ref().map_or(0, |array| array.max_running);
            let limit = if most > 0 { format!("{most} tasks") } else { "as many tasks as allowed".to_owned() };
            say(
                format!("Its array runs {limit} at a time (%N of --array), and so many are running."),
                "The next task starts when one ends. To run more at a time: scontrol update jobid=JOB ArrayTaskThrottle=N.",
            )
        }
        "QOSUsageThreshold" => say(
            format!("The fair share of your account is below what {} demands (UsageThreshold).", named("QOS", &job.qos)),
            "It starts when past use has decayed; another QOS may start earlier.",
        ),
        "Cleaning" => say(
            "Its last run is still being cleaned up on its nodes.",
            "Nothing to do. If it takes more than a few minutes, an administrator should look for a stuck epilog.",
        ),
        "Prolog" => say(
            "It has its nodes; they are booting or being prepared for it.",
            "Nothing to do. If it takes longer than nodes usually need to boot, ask an administrator.",
        ),
        "MaxPoweredUpNodes" => say(
            "The site has as many nodes switched on as it allows at a time.",
            "It starts when other nodes are switched off. An administrator may raise max_powered_nodes.",
        ),
        _ => None,
    }
}

fn dependency_words(reason: &str, waiting: &Waiting<'_>) -> Option<Words> {
    let expression = &waiting.job.dependency;
    let terms = unfulfilled(expression);
    let evidence: Vec<String> = terms.iter().filter(|term| !term.job.is_empty()).map(|term| format!("job {}", term.job)).collect();
    let words = if reason == "DependencyNeverSatisfied" {
        let failed: Vec<_> = terms.iter().filter(|term| term.failed).map(|term| term.wait.clone()).collect();
        let what = if failed.is_empty() { "what it depends on".to_owned() } else { list(&failed, 2) };
        say(
            format!("It waits for {what}, which can never happen any more."),
            "Cancel it, or change what it depends on: scontrol update jobid=JOB dependency=…",
        )
    } else {
        let waits: Vec<_> = terms.into_iter().map(|term| term.wait).collect();
        let what = match (waits.is_empty(), expression.is_empty()) {
            (false, _) => list(&waits, 3),
            (true, false) => format!("{} (its dependency)", name(expression)),
            (true, true) => "another job".to_owned(),
        };
        let any = if waits.len() > 1 && any_suffices(expression) { "; one of them is enough" } else { "" };
        say(
            format!("It waits for {what}{any}."),
            "Nothing to do. You can change or drop it: scontrol update jobid=JOB dependency=…",
        )
    };
    with(words, evidence)
}

/// The request, the account or the partition does not fit.
fn request_words(reason: &str, waiting: &Waiting<'_>) -> Option<Words> {
    let job = waiting.job;
    let partition = named("partition", &job.partition);
    let account = named("account", waiting.account);
    let qos = named("QOS", &job.qos);
    match reason {
        "PartitionNodeLimit" => say(
            format!("It asks for {} nodes: {partition} does not allow that many or that few, or too many of its nodes are down.", job.node_count.max(1)),
            "Change the number of nodes or the partition. If the number is within its limits, an administrator has to bring nodes back.",
        ),
        "PartitionTimeLimit" => say(
            format!("Its time limit ({}) is above the longest that {partition} allows (MaxTime).", time_limit(job.time_limit_minutes)),
            "Shorten it (scontrol update jobid=JOB TimeLimit=…) or use another partition.",
        ),
        "PartitionDown" => say(capital(&format!("{partition} is down: it takes jobs but starts none.")), "An administrator has to bring it up; another partition may start it now."),
        "PartitionInactive" => say(capital(&format!("{partition} is inactive: it takes no jobs and starts none.")), "Move the job to another partition, or ask an administrator."),
        "PartitionConfig" => say(
            format!("It breaks a rule of {partition} (nodes, time, memory or groups)."),
            "Compare it with the limits of the partition: scontrol show partition.",
        ),
        "BadConstraints" => say(
            format!("No nodes of the cluster, as it is configured, can meet what it asks for{}.", asks(waiting)),
            "Correct --constraint, --gres, or the numbers of nodes, CPUs or memory, and submit it again.",
        ),
        "Constraints" => say(
            format!("No node can meet its constraints at the moment{}.", asks(waiting)),
            "It may start when matching nodes come up; a looser --constraint would help.",
        ),
        "MaxMemPerLimit" => say(
            "It asks for more memory per CPU or per node than allowed (MaxMemPerCPU, MaxMemPerNode).",
            "Lower --mem or --mem-per-cpu, or ask for more CPUs so that each has less.",
        ),
        "InvalidAccount" => say(
            capital(&format!("{account} is not, or no longer, valid for you.")),
            "Use another account (scontrol update jobid=JOB account=…), or ask to be added to it.",
        ),
        "InvalidQOS" => say(
            format!("You may not use {qos} with {account}."),
            "Use another QOS (scontrol update jobid=JOB qos=…), or ask for access to it.",
        ),
        "QOSNotAllowed" => say(
            capital(&format!("{partition} does not allow {qos}.")),
            "Use another QOS or another partition.",
        ),
        "AccountNotAllowed" => say(
            capital(&format!("{account} (or your Unix group) may not use {partition}.")),
            "Use another account or partition; an administrator can allow this one.",
        ),
        "SchedDefer" => say(
            "It was to start at once (--immediate), but this cluster never starts jobs at submission (defer).",
            "Submit it again without --immediate.",
        ),
        "AccountingPolicy" => say(
            format!("A rule of accounting, of {qos} or {account}, stops it."),
            "Look at the limits of both (sacctmgr show qos, sacctmgr show assoc), or ask an administrator.",
        ),
        _ => None,
    }
}

fn asks(waiting: &Waiting<'_>) -> String {
    let job = waiting.job;
    let asked = if job.features.is_empty() { &job.req_tres } else { &job.features };
    if asked.is_empty() { String::new() } else { format!(" ({})", name(asked)) }
}

/// What is rarely seen: how jobs end, special hardware, Slurm's own troubles, and platforms that are gone.
fn rare_words(reason: &str, waiting: &Waiting<'_>) -> Option<Words> {
    let job = waiting.job;
    match reason {
        "NvidiaImexChannels" => say("All channels for multi-node NVLink jobs (NVIDIA IMEX) are in use.", "It starts when such a job ends; an administrator can raise the number of channels."),
        "MpiPortsBusy" => say("Not enough MPI ports are free on the nodes (MpiParams=ports).", "It starts when other jobs on those nodes end; an administrator can widen the range."),
        "BurstBufferResources" => say("There is no room for it in the burst buffer yet.", "It starts when room is given back. Asking for less may help."),
        "BurstBufferStageIn" => say("Its data is being copied into the burst buffer.", "Nothing to do: it starts when the copy is done."),
        "BurstBufferOperation" => say("An operation of the burst buffer failed, so it is held.", "An administrator has to look at the burst buffer before it is released."),
        "FedJobLock" => say("The clusters of the federation are agreeing on which of them runs it.", "Nothing to do. If it takes minutes, its cluster of origin may be out of reach."),
        "SystemFailure" => say("Slurm met a failure of its own, of a file system or of the network.", "An administrator should read the log of slurmctld; the job is usually held until then."),
        "FrontEndDown" => say("No front-end node is up.", "An administrator has to bring one back."),
        "PowerNotAvail" => say("The power limit of the site leaves no room for it.", "It starts when other jobs end and power is free again."),
        "PowerReserved" => say("The power it needs is kept for a power reservation.", "It starts when that reservation ends."),
        "BlockMaxError" => say("A hardware block of a BlueGene machine has too many errors.", "An administrator has to clear them."),
        "BlockFreeAction" => say("A hardware block of a BlueGene machine is being freed.", "Nothing to do: it starts when the block is free."),
        "NodeDown" => {
            let node = if job.failed_node.is_empty() { "a node it ran on".to_owned() } else { format!("node {}", nodes(&job.failed_node)) };
            say(format!("It ended because {node} failed."), "Submit it again; with --requeue Slurm does that by itself.")
        }
        "JobLaunchFailure" => say("It could not be launched: its script, credentials or a file system failed.", "Check the path of the script and the working directory. If it is held, release it when they are right."),
        "NonZeroExitCode" => say("Its script ended with an exit code other than 0.", "Look at the end of its output."),
        "RaisedSignal" => say("Its script was ended by a signal.", "Look at the end of its output for what it was doing."),
        "TimeLimit" => say(
            format!("It was stopped at its time limit ({}), its budget, or the end of its reservation.", time_limit(job.time_limit_minutes)),
            "Ask for more time, or let it save its state and go on from there.",
        ),
        "InactiveLimit" => say("It was stopped because its salloc or srun gave no sign of life for too long (InactiveLimit).", "Keep the terminal that started it alive, or use sbatch."),
        "OutOfMemory" => say("It was stopped because it used more memory than it asked for.", "Ask for more memory (--mem), or make it use less."),
        "DeadLine" => say("It can no longer finish before its --deadline, so Slurm cancelled it.", "Submit it again with a later deadline or a shorter time limit."),
        _ => None,
    }
}
