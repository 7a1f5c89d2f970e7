//! Sentences for reasons other than limits: priority, other jobs, a time, a person's action.

use mesh_events::from_timestamp;

use super::dependency::{any_suffices, unfulfilled};
use super::pending_job::PendingJob;
use super::reason_text::{
    MAX_SUMMARY_CHARS, ReasonText, clip, count, list, moment, name, named, nodes, own, with,
    with_advice,
};
use super::{rare_reasons, request};

/// Text for a reservation that no longer exists.
pub fn reservation_unusable(reservation: &str, problem: &str) -> Option<ReasonText> {
    with(
        with_advice(
            format!(
                "Its {} {problem}, so it is held.",
                own("reservation", reservation)
            ),
            "Choose another (scontrol update jobid=JOB reservation=NAME), then: scontrol release JOB.",
        ),
        (!reservation.is_empty()).then(|| format!("reservation {reservation}")),
    )
}

/// Sentences for a reason. `None` if it has none.
pub fn reason_text(reason: &str, waiting: &PendingJob<'_>) -> Option<ReasonText> {
    queue_text(reason, waiting)
        .or_else(|| request::reason_text(reason, waiting))
        .or_else(|| rare_reasons::reason_text(reason, waiting))
}

/// Sentences for waiting for priority, other jobs, a time, or a person's action.
fn queue_text(reason: &str, waiting: &PendingJob<'_>) -> Option<ReasonText> {
    let job = waiting.job;
    let partition = named("partition", &job.partition);
    match reason {
        "None" => with_advice(
            "The scheduler has not evaluated this job yet.",
            "Nothing to do: the reason appears after the next scheduling cycle, usually within a minute.",
        ),
        "Priority" => {
            let ahead = match waiting.position.map_or(0, |position| position.ahead) {
                0 => "Jobs of higher priority are ahead of it".to_owned(),
                1 => "One waiting job of higher priority is ahead of it".to_owned(),
                ahead => format!("{ahead} waiting jobs of higher priority are ahead of it"),
            };
            with_advice(
                format!("{ahead} in {partition}."),
                "Nothing is wrong. A shorter time limit or a smaller request fits into gaps more easily.",
            )
        }
        "Resources" => {
            let planned = if job.scheduled_nodes.is_empty() {
                String::new()
            } else {
                format!(" Slurm has planned {} for it.", nodes(&job.scheduled_nodes))
            };
            with(
                with_advice(
                    format!(
                        "It is next in {partition} and waits for enough free CPUs, memory, GPUs or nodes.{planned}"
                    ),
                    "Nothing is wrong. A smaller or shorter request may start earlier.",
                ),
                (!job.scheduled_nodes.is_empty())
                    .then(|| format!("nodes {}", clip(&job.scheduled_nodes, MAX_SUMMARY_CHARS))),
            )
        }
        "Dependency" | "DependencyNeverSatisfied" => dependency_text(reason, waiting),
        "BeginTime" => {
            let begin = job
                .eligible_time
                .as_ref()
                .and_then(from_timestamp)
                .filter(|begin| *begin > waiting.now);
            let when = begin.map_or_else(
                || "its begin time has come".to_owned(),
                |begin| moment(begin, waiting.now),
            );
            let why = if job.restarts.is_some_and(|restarts| restarts > 0) {
                " Slurm lets a requeued job wait for a while."
            } else {
                ""
            };
            with_advice(
                format!("It must not start before {when}.{why}"),
                "Nothing to do, unless you want another --begin (scontrol update jobid=JOB StartTime=now).",
            )
        }
        "Licenses" => {
            let requested_licenses = if job.licenses.is_empty() {
                "it asks for".to_owned()
            } else {
                name(&job.licenses)
            };
            with(
                with_advice(
                    format!("Not enough licenses are free: {requested_licenses}."),
                    "It starts when other jobs give them back (scontrol show licenses shows the use). Asking for fewer may help.",
                ),
                (!job.licenses.is_empty())
                    .then(|| format!("licenses {}", clip(&job.licenses, MAX_SUMMARY_CHARS))),
            )
        }
        "Reservation" => with(
            with_advice(
                format!(
                    "Its {} has not begun, has no room yet, or lacks the nodes it asks for.",
                    own("reservation", &job.reservation)
                ),
                "scontrol show reservation shows when it begins. Without --reservation it may start elsewhere.",
            ),
            (!job.reservation.is_empty())
                .then(|| format!("reservation {}", name(&job.reservation))),
        ),
        "ReservationDeleted" => reservation_unusable(&name(&job.reservation), "was deleted"),
        "ReservationInvalid" => {
            reservation_unusable(&name(&job.reservation), "is not valid any more")
        }
        "ReqNodeNotAvail" => with_advice(
            "A node it needs is down, drained, does not respond, or is kept for something else, such as maintenance.",
            "An administrator has to bring it back. If you named nodes (--nodelist), other nodes may do.",
        ),
        "JobHeldAdmin" => with_advice(
            "An administrator, or Slurm itself, holds this job.",
            "Ask an administrator why and to release it; you cannot release it yourself.",
        ),
        "JobHeldUser" => with_advice(
            "You, or a coordinator of your account, hold this job.",
            "When it should run: scontrol release JOB.",
        ),
        "JobHoldMaxRequeue" => with_advice(
            "It was requeued so often (MaxBatchRequeue) that Slurm holds it.",
            "Find out why it does not start on its nodes, then: scontrol release JOB.",
        ),
        "JobArrayTaskLimit" => {
            let array_limit = job.array.as_ref().map_or(0, |array| array.max_running);
            let limit = if array_limit > 0 {
                count(u64::from(array_limit), "task", "tasks")
            } else {
                "as many tasks as allowed".to_owned()
            };
            with_advice(
                format!(
                    "Its array runs {limit} at a time (%N of --array), and so many are running."
                ),
                "The next task starts when one ends. To run more at a time: scontrol update jobid=JOB ArrayTaskThrottle=N.",
            )
        }
        "QOSUsageThreshold" => with_advice(
            format!(
                "The fair share of your account is below what {} demands (UsageThreshold).",
                named("QOS", &job.qos)
            ),
            "It starts when past use has decayed; another QOS may start earlier.",
        ),
        "Cleaning" => with_advice(
            "Its last run is still being cleaned up on its nodes.",
            "Nothing to do. If it takes more than a few minutes, an administrator should look for a stuck epilog.",
        ),
        "Prolog" => with_advice(
            "It has its nodes; they are booting or being prepared for it.",
            "Nothing to do. If it takes longer than nodes usually need to boot, ask an administrator.",
        ),
        "MaxPoweredUpNodes" => with_advice(
            "The site has as many nodes switched on as it allows at a time.",
            "It starts when other nodes are switched off. An administrator may raise max_powered_nodes.",
        ),
        _ => None,
    }
}

fn dependency_text(reason: &str, waiting: &PendingJob<'_>) -> Option<ReasonText> {
    let expression = &waiting.job.dependency;
    let terms = unfulfilled(expression);
    let evidence: Vec<String> = terms
        .iter()
        .filter(|term| !term.job.is_empty())
        .map(|term| format!("job {}", term.job))
        .collect();
    let reason_text = if reason == "DependencyNeverSatisfied" {
        let failed: Vec<_> = terms
            .iter()
            .filter(|term| term.failed)
            .map(|term| term.wait.clone())
            .collect();
        let dependencies = if failed.is_empty() {
            "what it depends on".to_owned()
        } else {
            list(&failed, 2)
        };
        with_advice(
            format!("It waits for {dependencies}, which can never happen any more."),
            "Cancel it, or change what it depends on: scontrol update jobid=JOB dependency=…",
        )
    } else {
        let waits: Vec<_> = terms.into_iter().map(|term| term.wait).collect();
        let dependencies = match (waits.is_empty(), expression.is_empty()) {
            (false, _) => list(&waits, 3),
            (true, false) => format!("{} (its dependency)", name(expression)),
            (true, true) => "another job".to_owned(),
        };
        let any = if waits.len() > 1 && any_suffices(expression) {
            "; one of them is enough"
        } else {
            ""
        };
        with_advice(
            format!("It waits for {dependencies}{any}."),
            "Nothing to do. You can change or drop it: scontrol update jobid=JOB dependency=…",
        )
    };
    with(reason_text, evidence)
}
