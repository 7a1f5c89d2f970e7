//! Compares what was told with what the oracles say. Pure.

mod arrays;
mod sampled;

use std::collections::{BTreeMap, BTreeSet};

use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::job::v1::JobEvent;
use mesh_events::{Event, EventType};

use super::log::Log;
use super::sacct::Row;
use super::told::Told;
use super::verdict::Verdict;
use crate::fact;

/// Job, task, submit time.
type Run = (u32, Option<u32>, i64);

/// What a soak must compare at least one of.
pub(super) const TYPES: [&str; 25] = [
    "job.submitted",
    "job.pending",
    "job.held",
    "job.released",
    "job.started",
    "job.suspended",
    "job.resumed",
    "job.resized",
    "job.requeued",
    "job.completed",
    "job.failed",
    "job.cancelled",
    "job.timeout",
    "job.node_fail",
    "job.preempted",
    "job.updated",
    "continues",
    "array tasks",
    "queue.explained",
    "cost.estimated",
    "cost.finalized",
    "node.drained",
    "node.down",
    "node.recovered",
    "ledger",
];

/// Recorded facts by run and slot. What was compared is taken out; what stays is too much.
struct Facts<'a> {
    by_slot: BTreeMap<(Run, &'static str), Vec<&'a Event>>,
}

impl<'a> Facts<'a> {
    fn take(&mut self, run: Run, slot: &'static str) -> Vec<&'a Event> {
        self.by_slot.remove(&(run, slot)).unwrap_or_default()
    }

    /// Takes the one that happened at about this time.
    fn take_at(
        &mut self,
        run: Run,
        slot: &'static str,
        from: i64,
        until: i64,
    ) -> Option<&'a Event> {
        let events = self.by_slot.get_mut(&(run, slot))?;
        let at = events
            .iter()
            .position(|event| (from..=until).contains(&occurred(event)))?;
        let event = events.remove(at);
        if events.is_empty() {
            self.by_slot.remove(&(run, slot));
        }
        Some(event)
    }
}

/// Compares.
pub(super) fn judge(rows: &[Row], log: &Log, told: &Told) -> Verdict {
    let mut verdict = Verdict::default();
    once_each(told, &mut verdict);
    let rows = with_witnesses(rows, log);
    let mut facts = by_run(told, &mut verdict);
    let submits = arrays::submit_times(&rows);
    let mut lives: BTreeMap<(u32, Option<u32>), Vec<&Row>> = BTreeMap::new();
    for row in rows.iter().filter(|row| !row.is_remainder) {
        lives.entry((row.job, row.task)).or_default().push(row);
    }
    for life in lives.values_mut() {
        life.sort_by_key(|row| (row.submit, row.start));
        judge_life(life, &submits, &mut facts, &mut verdict);
    }
    arrays::judge(&rows, log, &submits, &mut facts, &mut verdict);
    sampled::pauses(log, &mut facts, &mut verdict);
    for ((run, slot), events) in facts.by_slot {
        for event in events {
            verdict.extra.push(format!(
                "{} of {run:?} ({slot}) at {}: neither accounting nor the driver knows it{}",
                event.r#type,
                occurred(event),
                shown(&rows, run.0)
            ));
        }
    }
    sampled::waits(log, told, &mut verdict);
    sampled::holds(log, told, &mut verdict);
    sampled::nodes(log, told, &mut verdict);
    verdict
}

/// Each id is once on the bus and once in the ledger.
fn once_each(told: &Told, verdict: &mut Verdict) {
    for id in &told.repeated {
        verdict.duplicates.push(format!("{id} is on the bus again"));
    }
    for (id, times) in &told.ledger {
        if *times > 1 {
            let text = format!("{id} is in the ledger {times} times");
            verdict.duplicates.push(text);
        }
        if !told.bus.contains_key(id) {
            let text = format!("{id} is in the ledger, not on the bus");
            verdict.extra.push(text);
        }
    }
    for (id, event) in &told.bus {
        if told.ledger.contains_key(id) {
            verdict.right("ledger");
        } else {
            let what = &event.r#type;
            verdict
                .missing
                .push(format!("{what} {id} is on the bus, not in the ledger"));
        }
    }
}

/// Accounting's rows, and what slurmctld showed of jobs that accounting never lists.
fn with_witnesses(rows: &[Row], log: &Log) -> Vec<Row> {
    let known: BTreeSet<u32> = rows.iter().map(|row| row.job).collect();
    let unknown = log
        .witnesses
        .iter()
        .filter(|witness| !known.contains(&witness.job));
    let added = unknown.map(|witness| Row {
        job: witness.job,
        task: None,
        is_remainder: log.arrays.contains_key(&witness.job),
        user: witness.user.clone(),
        state: witness.state.clone(),
        submit: witness.submit,
        start: None,
        end: Some(witness.end),
        nodes: String::new(),
        exit: (0, 0),
        line: format!("no row; squeue showed {witness:?}"),
    });
    rows.iter().cloned().chain(added).collect()
}

/// Everything recorded and everything derived from it, by run and slot.
fn by_run<'a>(told: &'a Told, verdict: &mut Verdict) -> Facts<'a> {
    let runs = told
        .bus
        .values()
        .filter_map(|event| Some((fact::run(event)?, slot(event)?, event)));
    let runs: Vec<_> = runs.collect();
    // Attempts that share a submit time: accounting knows the last one only (seen on 22.05).
    let mut last: BTreeMap<Run, u32> = BTreeMap::new();
    for ((job, task, submit, attempt), ..) in &runs {
        let known = last.entry((*job, *task, *submit)).or_default();
        *known = (*known).max(*attempt);
    }
    let mut facts = Facts {
        by_slot: BTreeMap::new(),
    };
    for ((job, task, submit, attempt), slot, event) in runs {
        let run = (job, task, submit);
        if last.get(&run).is_some_and(|last| attempt < *last) && slot != "submitted" {
            let text = format!(
                "{} of {run:?}, attempt {attempt}: a later one has its row",
                event.r#type
            );
            verdict.unjudged.push(text);
        } else if attempt == 0 || slot != "submitted" {
            facts.by_slot.entry((run, slot)).or_default().push(event);
        }
    }
    facts
}

/// What of a run's life it is; `None` for what has no time of Slurm's.
fn slot(event: &Event) -> Option<&'static str> {
    let kind = event.kind().ok()?;
    Some(match kind {
        EventType::JobSubmitted => "submitted",
        EventType::JobStarted => "started",
        EventType::JobSuspended => "suspended",
        EventType::JobResumed => "resumed",
        EventType::JobResized => "resized",
        EventType::JobBaseline => "baseline",
        EventType::JobCancelled if !payload(event)?.array_tasks.is_empty() => "tasks",
        EventType::JobUpdated => "updated",
        EventType::CostEstimated => "estimated",
        EventType::CostFinalized => "finalized",
        kind if kind.is_end() => "end",
        _ => return None,
    })
}

/// The rows of a job, oldest first: attempts, and parts that a resize made of one.
fn judge_life(
    life: &[&Row],
    submits: &BTreeMap<u32, i64>,
    facts: &mut Facts<'_>,
    verdict: &mut Verdict,
) {
    let mut before: Option<(Run, &'static str)> = None;
    let mut open: Option<Run> = None;
    for row in life {
        let run = open.unwrap_or((row.job, row.task, row.submit));
        let is_task = row
            .task
            .is_some_and(|_| submits.get(&row.job) == Some(&row.submit));
        if is_task && !row.ran() {
            // A task that never became a job of its own: judged with its array.
            continue;
        }
        if open.is_none() {
            // The array's own is told of the array.
            if !is_task {
                submitted(run, row, before, facts, verdict);
            }
            if row.ran() {
                let at = row.start;
                one(run, "started", "job.started", at, row, facts, verdict);
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
        if row.state == "RESIZING" {
            let end = row.end.unwrap_or_default();
            match facts.take_at(run, "resized", end - 1, end + 1) {
                Some(_) => verdict.right("job.resized"),
                None => verdict
                    .missing
                    .push(told_as(run, "job.resized", Some(end), row)),
            }
            open = Some(run);
            continue;
        }
        open = None;
        let (Some(word), Some(end)) = (row.end_word(), row.end) else {
            facts.take(run, "end");
            facts.take(run, "finalized");
            facts.take(run, "updated");
            let text = format!("{run:?}: accounting has no end: {}", row.line);
            verdict.unjudged.push(text);
            continue;
        };
        ended(run, word, end, row, facts, verdict);
        if row.ran() {
            for (slot, kind) in [("finalized", "cost.finalized"), ("updated", "job.updated")] {
                one(run, slot, kind, None, row, facts, verdict);
            }
        }
        before = Some((run, word));
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
    word: &'static str,
    end: i64,
    row: &Row,
    facts: &mut Facts<'_>,
    verdict: &mut Verdict,
) {
    let kind = kind_of(word);
    let events = facts.take(run, "end");
    let Some(event) = only(run, kind, Some(end), row, &events, verdict) else {
        return;
    };
    let mut faults = Vec::new();
    if event.r#type != kind {
        faults.push(format!("it is {}", event.r#type));
    }
    if occurred(event) != end {
        faults.push(format!("it is at {}", occurred(event)));
    }
    let job = event.job();
    let exit = job.and_then(|job| job.exit_code.as_ref());
    let exit = exit.map(|exit| (exit.code, exit.signal));
    if row.ran() && matches!(word, "completed" | "failed") && exit != Some(row.exit) {
        faults.push(format!("its exit code is {exit:?}"));
    }
    if row.ran() && job.is_some_and(|job| job.nodes != row.nodes) {
        faults.push(format!("its nodes are {:?}", job.map(|job| &job.nodes)));
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

/// Takes the one fact of a slot, whose time is this.
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

/// The one that is to be there.
fn only<'a>(
    run: Run,
    kind: &str,
    at: Option<i64>,
    row: &Row,
    events: &[&'a Event],
    verdict: &mut Verdict,
) -> Option<&'a Event> {
    let Some((first, others)) = events.split_first() else {
        verdict.missing.push(told_as(run, kind, at, row));
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

fn told_as(run: Run, kind: &str, at: Option<i64>, row: &Row) -> String {
    let at = at.map(|at| format!(" at {at}")).unwrap_or_default();
    format!("{kind} of {run:?}{at}; accounting: {}", row.line)
}

fn kind_of(word: &str) -> &'static str {
    let kinds = EventType::ALL.iter().filter(|kind| kind.is_end());
    let kind = kinds.copied().find(|kind| kind.event() == word);
    let types = TYPES.iter().copied();
    let named = types
        .filter_map(|name| name.strip_prefix("job.").map(|event| (name, event)))
        .find(|(_, event)| kind.is_some_and(|kind| kind.event() == *event));
    named.map_or("job.end", |(name, _)| name)
}

/// The entity key of docs/events.md.
fn key((job, task, submit): Run) -> String {
    let task = task.map(|task| format!("_{task}")).unwrap_or_default();
    format!("job/{job}{task}/{submit}")
}

/// The payload of `job.*`.
fn payload(event: &Event) -> Option<&JobEvent> {
    match event.payload.as_ref()? {
        Payload::Job(job) => Some(job),
        _ => None,
    }
}

/// Unix seconds of a fact.
fn occurred(event: &Event) -> i64 {
    event
        .occurred_at
        .as_ref()
        .map(|time| time.seconds)
        .unwrap_or_default()
}

fn shown(rows: &[Row], job: u32) -> String {
    let lines: Vec<_> = rows
        .iter()
        .filter(|row| row.job == job)
        .map(|row| row.line.as_str())
        .collect();
    if lines.is_empty() {
        "; no row".to_owned()
    } else {
        format!("; accounting: {}", lines.join("  "))
    }
}
