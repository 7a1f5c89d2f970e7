//! Jobs that do not wait for their turn any more: provisioning, configuring, running, ended.

use chrono::{DateTime, Utc};
use mesh_events::from_timestamp;
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::proto::mesh::queue::v1::{Blocker, Explanation, NodeState, RunningJob};
use slurm_types::ReasonClass;

use super::confidence;
use super::evidence::Evidence;
use super::judge::of_node;
use super::pending_job::ClusterView;
use super::reason_text::{duration, list, moment, nodes};

/// Explains a job that left the queue. `job` is the newest record, from an event at `heard_at`; the newest evidence may be older or newer.
pub fn explain(
    job: &Job,
    heard_at: DateTime<Utc>,
    view: ClusterView<'_>,
    now: DateTime<Utc>,
) -> Explanation {
    let runs = job.state == "RUNNING" || job.state == "SUSPENDED";
    if !runs {
        return ended(job, now);
    }
    let newer = view.evidence.filter(|evidence| {
        evidence.taken_at >= heard_at && !evidence.failed.contains_key("running")
    });
    match newer.and_then(|evidence| evidence.running(job.job_id)) {
        Some(row) => explain_row(row, view, now),
        None => explain_row(&row_of(job), view, now),
    }
}

/// Explains a job by its row among those that hold an allocation.
pub fn explain_row(row: &RunningJob, view: ClusterView<'_>, now: DateTime<Utc>) -> Explanation {
    let start = DateTime::from_timestamp(row.start, 0).filter(|_| row.start > 0);
    let since = start.map_or_else(String::new, |start| {
        let age = u64::try_from((now - start).num_seconds()).unwrap_or(0);
        format!(" since {}", duration(age))
    });
    let on = nodes(&row.nodes);
    let mut explanation = Explanation {
        reason: "None".to_owned(),
        actor: "wait".to_owned(),
        confidence_note: confidence::of_started(view, now),
        no_estimate_because: "started: its allocation has begun".to_owned(),
        ..Explanation::default()
    };
    if row.state != "CONFIGURING" {
        let until = DateTime::from_timestamp(row.end, 0).filter(|_| row.end > 0);
        let until = until.map_or_else(
            || "It has no time limit.".to_owned(),
            |end| format!("It ends by {} at the latest.", moment(end, now)),
        );
        let verb = if row.state == "SUSPENDED" {
            "is suspended; it started on"
        } else {
            "runs on"
        };
        "running".clone_into(&mut explanation.stage);
        explanation.summary = format!("It {verb} {on}{since}. {until}");
        return explanation;
    }
    explanation.reason_class = ReasonClass::Starting.to_string();
    let booting = view
        .evidence
        .map_or_else(Vec::new, |evidence| booting(row, evidence));
    if booting.is_empty() {
        "configuring".clone_into(&mut explanation.stage);
        explanation.summary =
            format!("It has its nodes ({on}); they are being prepared for it{since}.");
        "Nothing to do. If it takes longer than usual, ask an administrator to look at the prolog and the nodes."
            .clone_into(&mut explanation.advice);
        return explanation;
    }
    let names: Vec<String> = booting.iter().map(|(name, _)| name.clone()).collect();
    "provisioning".clone_into(&mut explanation.stage);
    explanation.summary = format!(
        "It has its nodes ({on}), and {} {} booting for it{since}.",
        list(&names, 4),
        if names.len() == 1 { "is" } else { "are" }
    );
    "Nothing to do: it starts when they have booted. If that fails, Slurm puts it back into the queue (ResumeTimeout)."
        .clone_into(&mut explanation.advice);
    explanation.evidence = names.iter().map(|name| format!("node {name}")).collect();
    explanation.blockers = booting
        .into_iter()
        .filter_map(|(_, blocker)| blocker)
        .collect();
    explanation
}

/// Nodes of the job that are not up yet.
fn booting(row: &RunningJob, evidence: &Evidence) -> Vec<(String, Option<Blocker>)> {
    let is_booting = |node: &NodeState| {
        let boots = ["POWERING_UP", "POWER_UP", "POWERED_DOWN", "REBOOT_ISSUED"];
        node.state_flags
            .iter()
            .any(|flag| boots.contains(&flag.as_str()))
    };
    evidence
        .nodes_of(&row.nodes)
        .into_iter()
        .filter(|(_, node)| node.is_some_and(is_booting))
        .map(|(name, node)| (name, node.map(|node| of_node(node, evidence))))
        .collect()
}

fn row_of(job: &Job) -> RunningJob {
    let configuring = job.state_flags.iter().any(|flag| flag == "CONFIGURING");
    let start = job.start_time.as_ref().map_or(0, |time| time.seconds);
    let limit = job
        .time_limit_minutes
        .map_or(0, |minutes| i64::from(minutes) * 60);
    RunningJob {
        job_id: job.job_id,
        display_id: job.display_id.clone(),
        state: if configuring {
            "CONFIGURING".to_owned()
        } else {
            job.state.clone()
        },
        start,
        end: if limit > 0 && start > 0 {
            start + limit
        } else {
            0
        },
        nodes: job.nodes.clone(),
        ..RunningJob::default()
    }
}

fn ended(job: &Job, now: DateTime<Utc>) -> Explanation {
    let end = job.end_time.as_ref().and_then(from_timestamp);
    let at = end.map_or_else(String::new, |end| format!(" at {}", moment(end, now)));
    let why = match job.reason.as_str() {
        "" | "None" => String::new(),
        reason => format!(" Slurm's reason: {reason}."),
    };
    Explanation {
        stage: "ended".to_owned(),
        summary: format!("It ended{at}: {}.{why}", job.state),
        reason: job.reason.clone(),
        actor: "user".to_owned(),
        no_estimate_because: "ended".to_owned(),
        ..Explanation::default()
    }
}
