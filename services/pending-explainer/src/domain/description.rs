//! Sentences for the free texts that Slurm prints instead of a reason.

use slurm_types::reasons::Match;

use super::pending_job::PendingJob;
use super::reason::reservation_unusable;
use super::reason_text::{
    MAX_SUMMARY_CHARS, ReasonText, clip, name, named, nodes, time_limit, with, with_advice,
};

/// Sentences for a free text. `None` if it was not recognised.
pub fn reason_text(found: &Match, waiting: &PendingJob<'_>) -> Option<ReasonText> {
    let description = found.description?;
    let captured = |key: &str| name(found.captures.get(key).map_or("", String::as_str));
    match description.reason {
        "ReqNodeNotAvail" if found.captures.contains_key("nodes") => {
            let missing = found.captures.get("nodes").map_or("", |list| list.trim());
            let which = if missing.is_empty() {
                "nodes it asks for".to_owned()
            } else {
                nodes(missing)
            };
            with(
                with_advice(
                    format!("It needs nodes that are down, drained or do not respond: {which}."),
                    "An administrator has to bring them back. If you named the nodes yourself (--nodelist), other nodes may do.",
                ),
                (!missing.is_empty())
                    .then(|| format!("nodes {}", clip(missing, MAX_SUMMARY_CHARS))),
            )
        }
        "ReqNodeNotAvail" if found.text.contains("aintenance") => with_advice(
            "A maintenance reservation on its nodes begins before it could finish.",
            format!(
                "It starts after the maintenance. Its time limit is {}: one that ends before the maintenance may let it start now.",
                time_limit(waiting.job.time_limit_minutes)
            ),
        ),
        "ReqNodeNotAvail" => with_advice(
            "Its nodes are up but planned for other jobs.",
            "Nothing is wrong. A shorter time limit, or not naming nodes (--nodelist), may let it start earlier.",
        ),
        "Resources" => with_advice(
            format!(
                "No node of {} is free for it: they are in use, out of service, or kept for partitions of higher priority.",
                named("partition", &waiting.job.partition)
            ),
            "Slurm's text names causes that may not apply. A smaller request or another partition may start earlier.",
        ),
        "JobHeldUser" if found.text.starts_with("launch") => with_advice(
            "It could not be launched on its nodes, was put back into the queue and held.",
            "Find the cause (prolog, script, working directory), then: scontrol release JOB.",
        ),
        "JobHoldMaxRequeue" => with_advice(
            "Its launch failed so often (MaxBatchRequeue) that Slurm holds it.",
            "An administrator should look for the cause on its nodes before it is released.",
        ),
        "JobHeldUser" if found.text.starts_with("user") => with_advice(
            "Your login environment could not be read (--get-user-env), so it was put back into the queue and held.",
            "Make your login files quick and free of errors, then: scontrol release JOB.",
        ),
        "JobHeldUser" if found.text.contains("special") => with_advice(
            "It ended in a special exit state, was put back into the queue and held.",
            "Look at its output for the exit code, then: scontrol release JOB.",
        ),
        "JobHeldUser" => with_advice(
            "It was put back into the queue and is held.",
            "When it is ready to run again: scontrol release JOB.",
        ),
        "ReservationDeleted" => reservation_unusable(&captured("resv"), "was deleted"),
        "ReservationInvalid" => reservation_unusable(&captured("resv"), "is not valid any more"),
        "AccountNotAllowed" | "QOSNotAllowed" if found.captures.contains_key("rule") => {
            let partition = captured("part");
            let (what, other) = if description.reason == "QOSNotAllowed" {
                ("QOS", "Use an allowed QOS or another partition.")
            } else {
                (
                    "account",
                    "Use an allowed account or another partition; an administrator can allow this one.",
                )
            };
            let rule = if captured("rule") == "allows" {
                "only"
            } else {
                "all but"
            };
            with(
                with_advice(
                    format!(
                        "Partition {partition} does not admit {what} {}: it admits {rule} {}.",
                        captured("holder"),
                        captured("names")
                    ),
                    other,
                ),
                [format!("partition {partition}")],
            )
        }
        "AccountNotAllowed" => {
            let partition = captured("part");
            with(
                with_advice(
                    format!(
                        "You are in none of the Unix groups that may use partition {partition}: {}.",
                        captured("groups")
                    ),
                    "Use another partition, or ask to be added to one of these groups.",
                ),
                [format!("partition {partition}")],
            )
        }
        "RaisedSignal" => with_advice(
            format!(
                "Its script was ended by signal {} ({}).",
                captured("sig"),
                captured("name")
            ),
            "Look at the end of its output for what it was doing.",
        ),
        "TimeLimit" if found.captures.contains_key("tres") => with_advice(
            format!(
                "It was stopped: the budget of {} minutes ({}) is used up, {} were counted.",
                captured("tres"),
                captured("limit"),
                captured("used")
            ),
            "Ask for more budget, or charge another account or QOS.",
        ),
        "TimeLimit" if found.captures.contains_key("resv") => with_advice(
            format!(
                "It was stopped because its reservation {} ended.",
                captured("resv")
            ),
            "Submit it again in a longer reservation, with a time limit that fits, or without one.",
        ),
        "TimeLimit" => with_advice(
            "It was stopped: the wall-clock budget of its QOS or association is used up.",
            "Ask for more budget, or charge another account or QOS.",
        ),
        "BurstBufferOperation" => with_advice(
            format!(
                "The burst buffer ({}) reports: {}",
                captured("plugin"),
                captured("msg")
            ),
            "An administrator has to look at the burst buffer; the job stays held until it is released.",
        ),
        _ => None,
    }
}
