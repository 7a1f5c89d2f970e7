//! `smesh tree`: the chain of events, rules and jobs around a job.

use std::collections::BTreeSet;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::triggers;
use crate::cli::{Global, Tree};
use crate::error::Error;
use crate::{settings, show};

/// Runs that are shown of a chain, at most.
const MAX_RUNS: usize = 10_000;

pub(super) async fn run(global: &Global, args: &Tree) -> Result<ExitCode, Error> {
    let client = settings::client(global)?;
    let runs = async |key: &'static str, value: String| -> Result<Vec<Value>, Error> {
        triggers::all_runs(&client, vec![(key, value)], MAX_RUNS).await
    };
    let of_job = runs("job", args.job.to_string()).await?;
    let roots: BTreeSet<String> = of_job
        .iter()
        .map(|run| show::value(&run["root_event_id"]))
        .collect();
    let mut trees = Vec::new();
    for root in roots {
        let mut chain = runs("root", root.clone()).await?;
        chain.reverse();
        trees.push((root, chain));
    }
    if global.json {
        let trees: Vec<Value> = trees
            .iter()
            .map(|(root, runs)| json!({"root_event_id": root, "runs": runs}))
            .collect();
        show::line(json!({ "trees": trees }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if trees.is_empty() {
        show::line(format!(
            "no rule that you may see submitted job {} or fired because of it",
            args.job
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    for (_, chain) in &trees {
        show::line(tree(chain))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The chain as lines, each indented below the run that led to it.
fn tree(runs: &[Value]) -> String {
    let mut lines = Vec::new();
    // What a caller may not see leaves its followers without a parent.
    let is_known = |key: &Value| runs.iter().any(|run| run["key"] == *key);
    for first in runs.iter().filter(|run| !is_known(&run["parent"])) {
        add(&mut lines, runs, first, 0);
    }
    lines.join("\n")
}

fn add(lines: &mut Vec<String>, runs: &[Value], run: &Value, depth: usize) {
    let value = |key: &str| show::clean(&show::value(&run[key]));
    let of_job = match value("event_job_id").as_str() {
        "" => String::new(),
        job => format!(" of job {job}"),
    };
    let led_to = match (triggers::job(run).as_str(), triggers::ended(run).as_str()) {
        ("", _) => String::new(),
        (job, "") => format!(" job {job}"),
        (job, ended) => format!(" job {job} ({ended})"),
    };
    let error = match value("error").as_str() {
        "" => String::new(),
        error => format!(": {error}"),
    };
    lines.push(format!(
        "{}{}{of_job} → {} → {}{led_to}{error}",
        "  ".repeat(depth),
        value("event_type"),
        value("rule"),
        value("state"),
    ));
    for next in runs.iter().filter(|next| next["parent"] == run["key"]) {
        add(lines, runs, next, depth + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_stands_below_the_one_that_led_to_it() {
        let runs = [
            json!({"key": "a", "rule": "alice/first", "event_type": "s3.object_created", "state": "released", "job_id": 7, "ended_as": "completed"}),
            json!({"key": "b", "parent": "a", "rule": "alice/next", "event_type": "job.completed", "event_job_id": 7, "state": "released", "job_id": 8, "ended_as": "completed", "restarts": 1}),
            json!({"key": "f", "parent": "b", "rule": "alice/again", "event_type": "job.out_of_memory", "event_job_id": 8, "state": "done", "job_id": 8}),
            json!({"key": "c", "parent": "a", "rule": "alice/note", "event_type": "job.completed", "event_job_id": 7, "state": "done"}),
            json!({"key": "e", "parent": "c", "rule": "alice/again", "event_type": "job.timeout", "event_job_id": 13, "state": "done", "job_id": 10, "tasks": "3,5-7"}),
            json!({"key": "d", "parent": "hidden", "rule": "alice/other", "event_type": "job.failed", "event_job_id": 9, "state": "refused", "error": "the rule is paused"}),
        ];
        assert_eq!(
            tree(&runs),
            "s3.object_created → alice/first → released job 7 (completed)\n  \
             job.completed of job 7 → alice/next → released job 8 (completed after 1 restart)\n    \
             job.out_of_memory of job 8 → alice/again → done job 8\n  \
             job.completed of job 7 → alice/note → done\n    \
             job.timeout of job 13 → alice/again → done job 10_[3,5-7]\n\
             job.failed of job 9 → alice/other → refused: the rule is paused"
        );
    }
}
