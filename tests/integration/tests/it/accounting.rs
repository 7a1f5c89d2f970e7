//! The expected events according to accounting: an independent oracle that shares no code with ingest.

use std::collections::BTreeMap;

use integration::{Cluster, Fact, Run, Slurm as _};

/// A run in accounting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Event words of its life.
    pub event_names: Vec<&'static str>,
    /// Start and end, Unix seconds; `None` if it never ran.
    pub ran: Option<(i64, i64)>,
    /// Its nodes.
    pub nodes: String,
}

/// Every run of these jobs, from `sacct -D`. `None` while slurmdbd does not answer, or has only a part of a run.
pub async fn runs(cluster: &Cluster, jobs: &[u32]) -> Option<BTreeMap<Run, Row>> {
    let list: Vec<String> = jobs.iter().map(ToString::to_string).collect();
    // sacct's times are in whole seconds, and without a zone by default.
    let command = [
        "env",
        "SLURM_TIME_FORMAT=%s",
        "sacct",
        "-D",
        "-X",
        "-n",
        "-P",
        "-o",
        "JobID,State,Submit,Start,End,NodeList",
        "-j",
        &list.join(","),
    ];
    let text = cluster.ask("root", &command).await.ok()?;
    let mut runs = BTreeMap::new();
    for line in text.lines() {
        let columns: Vec<&str> = line.split('|').collect();
        let [id, state, submit, start, end, nodes] = columns[..] else {
            panic!("sacct printed {line:?}");
        };
        let submit: i64 = submit.parse().ok()?;
        let (job, task) = match id.split_once('_') {
            Some((job, task)) => (job.parse().unwrap(), Some(task.parse().unwrap())),
            None => (id.parse().unwrap(), None),
        };
        let ran = nodes != "None assigned";
        let mut event_names = Vec::new();
        if task.is_none() {
            event_names.push("submitted");
        } else {
            // Published once, for the array itself.
            let array = Row {
                event_names: vec!["submitted"],
                ran: None,
                nodes: String::new(),
            };
            runs.insert((job, None, submit, 0), array);
        }
        if ran {
            event_names.push("started");
        }
        event_names.extend(end_name(state));
        let start = start.parse();
        if ran && start.is_err() {
            return None;
        }
        let ran_from = start.ok().filter(|_| ran);
        let row = Row {
            event_names,
            ran: ran_from.map(|start| (start, end.parse().unwrap_or_default())),
            nodes: if ran { nodes.to_owned() } else { String::new() },
        };
        runs.insert((job, task, submit, 0), row);
    }
    Some(runs)
}

/// The event words of each run.
pub fn event_names(runs: &BTreeMap<Run, Row>) -> BTreeMap<Run, Vec<&'static str>> {
    let event_names = runs
        .iter()
        .map(|(run, row)| (*run, row.event_names.clone()));
    event_names.collect()
}

/// States of sacct(1). The user who cancelled follows the state.
fn end_name(state: &str) -> Option<&'static str> {
    match state.split(' ').next().unwrap_or_default() {
        "COMPLETED" => Some("completed"),
        "FAILED" => Some("failed"),
        "CANCELLED" => Some("cancelled"),
        "TIMEOUT" => Some("timeout"),
        "OUT_OF_MEMORY" => Some("out_of_memory"),
        "NODE_FAIL" => Some("node_fail"),
        "PREEMPTED" => Some("preempted"),
        "REQUEUED" => Some("requeued"),
        "PENDING" | "RUNNING" | "SUSPENDED" => None,
        other => panic!("sacct has a state {other:?} that this test does not know"),
    }
}

/// Ends of runs whose times or nodes differ from accounting.
pub fn differences(runs: &BTreeMap<Run, Row>, facts: &[Fact]) -> Vec<String> {
    let ends = facts.iter().filter(|fact| fact.kind.is_end());
    let mut differences = Vec::new();
    for fact in ends {
        let Some((run, row)) = fact.run().and_then(|run| runs.get_key_value(&run)) else {
            continue;
        };
        let job = fact.event.job().unwrap();
        let seconds = |time: &Option<_>| {
            let time = time.as_ref().and_then(mesh_events::from_timestamp);
            time.map(|time| time.timestamp())
        };
        let published = (
            seconds(&job.start_time).zip(seconds(&job.end_time)),
            job.nodes.as_str(),
        );
        // A run that never started may have any start.
        if row.ran.is_some() && published != (row.ran, row.nodes.as_str()) {
            let kind = fact.kind;
            differences.push(format!(
                "{run:?} {kind}: {published:?}, accounting: {row:?}"
            ));
        }
    }
    differences
}

/// The event words of every run of these jobs, once accounting has all of them and each has ended. slurmdbd receives jobs with a
/// delay, and without this check two empty results would match.
pub async fn complete(cluster: &Cluster, jobs: &[u32]) -> Option<BTreeMap<Run, Vec<&'static str>>> {
    let accounting = event_names(&runs(cluster, jobs).await?);
    let there = jobs
        .iter()
        .all(|job| accounting.keys().any(|run| run.0 == *job));
    let ended = accounting
        .iter()
        .filter(|(run, event_names)| run.1.is_none() && event_names.len() < 2)
        // An array's own record has no end.
        .all(|(run, _)| {
            accounting
                .keys()
                .any(|other| other.0 == run.0 && other.1.is_some())
        });
    (there && ended).then_some(accounting)
}
