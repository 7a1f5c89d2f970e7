//! Arrays: every task ends once, by itself or with its array.

use std::collections::BTreeMap;

use super::Run;
use super::facts::{Facts, occurred, payload};
use crate::log::Log;
use crate::sacct::Row;
use crate::verdict::Verdict;

/// Submit time of each array. A later submit time of a task means that the task was requeued.
pub(super) fn submit_times(rows: &[Row]) -> BTreeMap<u32, i64> {
    let mut submits = BTreeMap::new();
    for row in rows
        .iter()
        .filter(|row| row.task.is_some() || row.is_remainder)
    {
        let submit = submits.entry(row.job).or_insert(row.submit);
        *submit = row.submit.min(*submit);
    }
    submits
}

/// Compares the events of arrays themselves.
pub(super) fn judge(
    rows: &[Row],
    log: &Log,
    submits: &BTreeMap<u32, i64>,
    facts: &mut Facts<'_>,
    verdict: &mut Verdict,
) {
    for (job, submit) in submits {
        let run: Run = (*job, None, *submit);
        match facts.take(run, "submitted")[..] {
            [event] if occurred(event) == *submit => verdict.right("job.submitted"),
            [] => verdict
                .missing
                .push(format!("job.submitted of array {run:?}")),
            [event, ..] => verdict.wrong.push(format!(
                "job.submitted of array {run:?} is at {} or there are several",
                occurred(event)
            )),
        }
        judge_tasks(run, rows, log, facts, verdict);
    }
}

/// Tasks that never became jobs must be listed in the array's `cancelled` event, each once, and no others.
fn judge_tasks(run: Run, rows: &[Row], log: &Log, facts: &mut Facts<'_>, verdict: &mut Verdict) {
    let (job, _, submit) = run;
    let own = rows.iter().filter(|row| row.job == job);
    let became_jobs: Vec<u32> = own
        .clone()
        .filter(|row| row.ran() || row.submit != submit)
        .filter_map(|row| row.task)
        .collect();
    let events = facts.take(run, "tasks");
    let mut published: BTreeMap<u32, u32> = BTreeMap::new();
    for event in &events {
        let tasks = payload(event)
            .map(|job| job.array_tasks.as_str())
            .unwrap_or_default();
        for task in expand(tasks) {
            *published.entry(task).or_default() += 1;
        }
    }
    let Some(count) = log.arrays.get(&job) else {
        verdict
            .unjudged
            .push(format!("array {job}: not the driver's"));
        return;
    };
    for task in 0..*count {
        let (is_job, times) = (
            became_jobs.contains(&task),
            published.remove(&task).unwrap_or_default(),
        );
        match (is_job, times) {
            (false, 1) => verdict.right("array tasks"),
            (true, 0) => {}
            (false, 0) => verdict
                .missing
                .push(format!("job.cancelled of array {job} with task {task}")),
            (true, _) => verdict.wrong.push(format!(
                "job.cancelled of array {job} names task {task}, which is a job of its own"
            )),
            (false, times) => verdict.duplicates.push(format!(
                "task {task} of array {job} is cancelled {times} times"
            )),
        }
    }
    for task in published.keys() {
        let text = format!("job.cancelled of array {job} names task {task}, which it never had");
        verdict.extra.push(text);
    }
    let rest = own
        .filter(|row| !row.ran() && row.submit == submit)
        .find(|row| row.state == "CANCELLED");
    if let Some(end) = rest.and_then(|row| row.end)
        && !events.is_empty()
    {
        if events.iter().any(|event| occurred(event) == end) {
            verdict.right("job.cancelled");
        } else {
            let at: Vec<_> = events.iter().map(|event| occurred(event)).collect();
            verdict.wrong.push(format!(
                "job.cancelled of array {job} is at {at:?}, not {end}"
            ));
        }
    }
}

/// Expands `1,3-5`.
fn expand(tasks: &str) -> Vec<u32> {
    let tasks = tasks.split('%').next().unwrap_or_default();
    let parts = tasks.split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<u32>().ok()?..=last.trim().parse::<u32>().ok()?)
    });
    parts.flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_expanded() {
        assert_eq!(expand("1,3-5"), [1, 3, 4, 5]);
        assert_eq!(expand("0-1%2"), [0, 1]);
        assert_eq!(expand(""), [] as [u32; 0]);
    }
}
