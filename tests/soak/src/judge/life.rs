//! Lives of jobs: the published events of each run, compared with accounting.

use std::collections::BTreeMap;

use mesh_events::proto::mesh::event::v1::Confidence;
use mesh_events::{Event, EventType};

use super::facts::{Facts, occurred, payload};
use super::{Run, TYPES, used};
use crate::plan::Source;
use crate::sacct::Row;
use crate::verdict::Verdict;

/// The rows of a job, oldest first: attempts, and parts of one attempt split by a resize.
pub(super) fn judge(
    life: &[&Row],
    submits: &BTreeMap<u32, i64>,
    source: Source,
    facts: &mut Facts<'_>,
    verdict: &mut Verdict,
) {
    let mut before: Option<(Run, &'static str)> = None;
    let mut open: Option<Run> = None;
    let mut has_started = false;
    let mut parts: Vec<&Row> = Vec::new();
    for row in life {
        let run = open.unwrap_or((row.job, row.task, row.submit));
        let is_task = row
            .task
            .is_some_and(|_| submits.get(&row.job) == Some(&row.submit));
        if is_task && !row.ran() {
            // A task that never became a job is judged with its array.
            continue;
        }
        if open.is_none() {
            parts.clear();
            // The array's own event counts for the array.
            if !is_task {
                submitted(run, row, before, facts, verdict);
            }
            has_started = row.ran() && (row.start.is_some() || facts.has(run, "started"));
            if row.ran() && !has_started {
                // slurmctld writes the row of a job within five seconds. If the job ends before that, the row may lack a start (seen
                // on 22.05).
                let text = format!(
                    "job.started of {run:?}: accounting has no start: {}",
                    row.line
                );
                verdict.unjudged.push(text);
                // Its usage may be published all the same.
                facts.take(run, "updated");
            }
            if has_started {
                let at = row.start;
                one(run, "started", "job.started", at, row, facts, verdict);
            }
            // A start that accounting has lost is inferred, and what is inferred costs nothing.
            if has_started && row.start.is_some() {
                one(
                    run,
                    "estimated",
                    "cost.estimated",
                    None,
                    row,
                    facts,
                    verdict,
                );
            }
        }
        parts.push(row);
        if row.state == "RESIZING" {
            let end = row.end.unwrap_or_default();
            match facts.take_at(run, "resized", end - 1, end + 1) {
                Some(_) => verdict.right("job.resized"),
                None => verdict
                    .missing
                    .push(describe(run, "job.resized", Some(end), row)),
            }
            open = Some(run);
            continue;
        }
        open = None;
        let (Some(event_name), Some(end)) = (row.end_kind(), row.end) else {
            facts.take(run, "end");
            facts.take(run, "finalized");
            facts.take(run, "updated");
            let text = format!("{run:?} has no end: {}", row.line);
            verdict.open.push(text);
            continue;
        };
        ended(run, event_name, end, row, facts, verdict);
        if has_started {
            if parts[0].start.is_some() {
                one(
                    run,
                    "finalized",
                    "cost.finalized",
                    None,
                    row,
                    facts,
                    verdict,
                );
            } else {
                facts.take(run, "estimated");
                facts.take(run, "finalized");
            }
            if row.exit.is_none() {
                // Its usage is lost, too, and whether it was resized.
                facts.take(run, "updated");
                facts.take(run, "resized");
            } else if let Some(event) =
                one(run, "updated", "job.updated", None, row, facts, verdict)
            {
                used::judge(run, &parts, event, source, verdict);
            }
        }
        before = Some((run, event_name));
    }
}

fn submitted(
    run: Run,
    row: &Row,
    before: Option<(Run, &'static str)>,
    facts: &mut Facts<'_>,
    verdict: &mut Verdict,
) {
    let at = Some(row.submit);
    let Some(event) = one(run, "submitted", "job.submitted", at, row, facts, verdict) else {
        return;
    };
    let Some((earlier, cause)) = before else {
        return;
    };
    let named = payload(event)
        .and_then(|job| job.continues.as_ref())
        .map(|continues| (continues.run.clone(), continues.cause.clone()));
    let expected = (key(earlier), cause.to_owned());
    if named.as_ref() == Some(&expected) {
        verdict.right("continues");
    } else {
        verdict.wrong.push(format!(
            "job.submitted of {run:?} continues {named:?}, by accounting {expected:?}"
        ));
    }
}

fn ended(
    run: Run,
    event_name: &'static str,
    end: i64,
    row: &Row,
    facts: &mut Facts<'_>,
    verdict: &mut Verdict,
) {
    let kind = kind_of(event_name);
    let events = facts.take(run, "end");
    let Some(event) = only(run, kind, Some(end), row, &events, verdict) else {
        return;
    };
    let mut faults = Vec::new();
    if event.r#type != kind {
        faults.push(format!("it is {}", event.r#type));
    }
    // The step from which an end is inferred may have ended a second before its run.
    let step = i64::from(event.confidence() == Confidence::Inferred);
    if !(end - step..=end).contains(&occurred(event)) {
        faults.push(format!("it is at {}", occurred(event)));
    }
    let job = event.job();
    let exit = job.and_then(|job| job.exit_code.as_ref());
    let exit = exit.map(|exit| (exit.code, exit.signal));
    let expected = row
        .exit
        .filter(|_| matches!(event_name, "completed" | "failed"));
    if row.ran() && expected.is_some() && exit != expected {
        faults.push(format!("its exit code is {exit:?}"));
    }
    if let Some(job) = job.filter(|_| !row.nodes.is_empty()) {
        if job.nodes == row.nodes {
            verdict.right("nodes");
        } else {
            faults.push(format!("its nodes are {:?}", job.nodes));
        }
    }
    if event
        .owner
        .as_ref()
        .is_some_and(|owner| owner.user != row.user)
    {
        faults.push(format!("its owner is {:?}", event.owner));
    }
    if faults.is_empty() {
        verdict.right(kind);
    } else {
        verdict.wrong.push(format!(
            "{kind} of {run:?} at {end}: {}; source {:?}, {:?}; accounting: {}",
            faults.join(", "),
            event.source(),
            event.confidence(),
            row.line
        ));
    }
}

/// Takes the only fact of a slot, which must have this time.
fn one<'a>(
    run: Run,
    slot: &'static str,
    kind: &'static str,
    at: Option<i64>,
    row: &Row,
    facts: &mut Facts<'a>,
    verdict: &mut Verdict,
) -> Option<&'a Event> {
    let events = facts.take(run, slot);
    let event = only(run, kind, at, row, &events, verdict)?;
    if at.is_some_and(|at| at != occurred(event)) {
        let text = format!(
            "{kind} of {run:?} is at {}, accounting: {}",
            occurred(event),
            row.line
        );
        verdict.wrong.push(text);
    } else {
        verdict.right(kind);
    }
    Some(event)
}

/// The only fact of a slot.
fn only<'a>(
    run: Run,
    kind: &str,
    at: Option<i64>,
    row: &Row,
    events: &[&'a Event],
    verdict: &mut Verdict,
) -> Option<&'a Event> {
    let Some((first, others)) = events.split_first() else {
        verdict.missing.push(describe(run, kind, at, row));
        return None;
    };
    for other in others {
        verdict.duplicates.push(format!(
            "{} and {} of {run:?}: {} and {}",
            first.r#type, other.r#type, first.id, other.id
        ));
    }
    Some(first)
}

fn describe(run: Run, kind: &str, at: Option<i64>, row: &Row) -> String {
    let at = at.map(|at| format!(" at {at}")).unwrap_or_default();
    format!("{kind} of {run:?}{at}; accounting: {}", row.line)
}

fn kind_of(event_name: &str) -> &'static str {
    let kinds = EventType::ALL.iter().filter(|kind| kind.is_end());
    let kind = kinds.copied().find(|kind| kind.event() == event_name);
    let types = TYPES.iter().copied();
    let named = types
        .filter_map(|name| name.strip_prefix("job.").map(|event| (name, event)))
        .find(|(_, event)| kind.is_some_and(|kind| kind.event() == *event));
    named.map_or("job.end", |(name, _)| name)
}

/// The entity key of docs/reference/events.md.
fn key((job, task, submit): Run) -> String {
    let task = task.map(|task| format!("_{task}")).unwrap_or_default();
    format!("job/{job}{task}/{submit}")
}
