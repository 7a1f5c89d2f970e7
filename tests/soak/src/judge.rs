//! Compares the published facts with the oracles. Pure.

mod arrays;
mod facts;
mod life;
mod restarts;
mod sampled;
#[cfg(test)]
mod tests;
mod used;

use std::collections::{BTreeMap, BTreeSet};

use mesh_events::proto::mesh::event::v1::Confidence;
use mesh_events::{Event, EventType};

use self::facts::{Facts, by_run, occurred};
use super::Run;
use super::log::{Log, Witness};
use super::plan::{FaultKind, Source};
use super::published::Published;
use super::sacct::Row;
use super::verdict::Verdict;

/// Seconds after an end within which a killed slurmctld may not have saved it.
const UNSAVED_SECONDS: i64 = 10;

/// Types of which every soak must compare at least one fact.
pub(super) const TYPES: [&str; 30] = [
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
    "elapsed and exit code",
    "CPU seconds",
    "nodes",
    "continues",
    "an end before a requeue",
    "restarts",
    "array tasks",
    "queue.explained",
    "cost.estimated",
    "cost.finalized",
    "node.drained",
    "node.down",
    "node.recovered",
    "ledger",
];

/// Types that only polls show. They cannot be compared if polls are far apart.
const SAMPLED: [&str; 7] = [
    "job.pending",
    "job.held",
    "job.released",
    "queue.explained",
    "node.drained",
    "node.down",
    "node.recovered",
];

/// Types that need not be compared with this source.
pub(super) const fn left_out(source: Source) -> &'static [&'static str] {
    match source {
        Source::Commands => &[],
        Source::Rest => &SAMPLED,
    }
}

/// Compares. `is_final` means that accounting will not change any more. Its gaps are then filled with slurmctld's output as seen by
/// the driver.
pub(super) fn judge(
    rows: &[Row],
    log: &Log,
    published: &Published,
    source: Source,
    is_final: bool,
) -> Verdict {
    let mut verdict = Verdict::default();
    once_each(published, &mut verdict);
    let mut rows = with_witnesses(rows, log);
    if is_final {
        end_by_witnesses(&mut rows, log, &mut verdict);
    }
    let known: BTreeSet<u32> = rows.iter().map(|row| row.job).collect();
    for job in log.jobs.difference(&known) {
        verdict.open.push(format!("job {job} has no row"));
    }
    let mut facts = by_run(published, &mut verdict);
    ended_before_requeue(&mut rows, log, &mut verdict);
    ended_twice(&mut rows, log, &facts, &mut verdict);
    contradicted(published, log, &mut verdict);
    ended_before_it_started(published, &mut verdict);
    let submits = arrays::submit_times(&rows);
    let mut lives: BTreeMap<(u32, Option<u32>), Vec<&Row>> = BTreeMap::new();
    for row in rows.iter().filter(|row| !row.is_remainder) {
        lives.entry((row.job, row.task)).or_default().push(row);
    }
    for life in lives.values_mut() {
        life.sort_by_key(|row| (row.submit, row.start));
        life::judge(life, &submits, source, &mut facts, &mut verdict);
        restarts::judge(life, log, published, &mut verdict);
    }
    arrays::judge(&rows, log, &submits, &mut facts, &mut verdict);
    sampled::pauses(log, &mut facts, &mut verdict);
    for ((run, slot), events) in facts.by_slot {
        for event in events {
            verdict.extra.push(format!(
                "{} of {run:?} ({slot}) at {}: neither accounting nor the driver knows it{}",
                event.r#type,
                occurred(event),
                lines_of(&rows, run.0)
            ));
        }
    }
    sampled::waits(log, published, &mut verdict);
    sampled::holds(log, published, &mut verdict);
    sampled::node_events(log, published, &mut verdict);
    verdict
}

/// Checks that each id is once on the bus and once in the ledger.
fn once_each(published: &Published, verdict: &mut Verdict) {
    for id in &published.repeated {
        verdict.duplicates.push(format!("{id} is on the bus again"));
    }
    for (id, times) in &published.ledger {
        if *times > 1 {
            let text = format!("{id} is in the ledger {times} times");
            verdict.duplicates.push(text);
        }
        if !published.bus.contains_key(id) {
            let text = format!("{id} is in the ledger, not on the bus");
            verdict.extra.push(text);
        }
    }
    for (id, event) in &published.bus {
        if published.ledger.contains_key(id) {
            verdict.right("ledger");
        } else {
            let what = &event.r#type;
            verdict
                .missing
                .push(format!("{what} {id} is on the bus, not in the ledger"));
        }
    }
}

/// Accounting's rows, plus slurmctld's output about jobs that accounting never lists: cancelled before they could run.
fn with_witnesses(rows: &[Row], log: &Log) -> Vec<Row> {
    let known: BTreeSet<u32> = rows.iter().map(|row| row.job).collect();
    let is_whole = |job: u32, task: Option<u32>| task.is_none() && !known.contains(&job);
    let added = log
        .witnesses
        .iter()
        .filter(|((job, task, _), witness)| {
            is_whole(*job, *task) && witness.state == "CANCELLED" && witness.nodes.is_empty()
        })
        .map(|(run, witness)| Row {
            is_remainder: log.arrays.contains_key(&run.0),
            line: format!("no row; squeue showed {witness:?}"),
            start: None,
            ..witnessed(*run, witness)
        });
    rows.iter().cloned().chain(added).collect()
}

/// Fills gaps of accounting with slurmctld's output: runs whose end, or all of which, it never received. Seen when slurmdbd was
/// killed.
fn end_by_witnesses(rows: &mut Vec<Row>, log: &Log, verdict: &mut Verdict) {
    let has_end = |row: &Row| row.end_kind().is_some() && row.end.is_some();
    let mut whole: Vec<(Run, i64)> = Vec::new();
    for row in rows.iter_mut() {
        let run: Run = (row.job, row.task, row.submit);
        if has_end(row) || row.is_remainder || row.state == "RESIZING" {
            continue;
        }
        if let Some(witness) = log.witnesses.get(&run) {
            let lost = format!(
                "the end of {run:?}: {}; squeue showed {witness:?}",
                row.line
            );
            *row = Row {
                line: lost.clone(),
                ..witnessed(run, witness)
            };
            verdict.lost.push(lost);
            whole.push((run, witness.end));
        }
    }
    // A resize whose end was lost leaves two rows for one run of slurmctld.
    rows.retain(|row| {
        let is_part = |((job, task, submit), end): &(Run, i64)| {
            (row.job, row.task) == (*job, *task) && (submit + 1..*end).contains(&row.submit)
        };
        !whole.iter().any(is_part)
    });
    let known: BTreeSet<u32> = rows.iter().map(|row| row.job).collect();
    for (run, witness) in &log.witnesses {
        if !known.contains(&run.0) && !log.arrays.contains_key(&run.0) {
            let lost = format!("all of {run:?}; squeue showed {witness:?}");
            rows.push(Row {
                line: lost.clone(),
                ..witnessed(*run, witness)
            });
            verdict.lost.push(lost);
        }
    }
}

/// Ends that slurmctld reported twice: restarted before it had saved the first, it ended the run again, and accounting has the second
/// (seen on 22.05). Either of them may be published, so it cannot be judged.
fn ended_twice(rows: &mut [Row], log: &Log, facts: &Facts<'_>, verdict: &mut Verdict) {
    for row in rows {
        let run = (row.job, row.task, row.submit);
        let events = facts.by_slot.get(&(run, "end"));
        let (Some([event]), Some(end)) = (events.map(Vec::as_slice), row.end) else {
            continue;
        };
        let published = occurred(event);
        let is_restart = |what| matches!(what, FaultKind::Slurmctld);
        if (row.start.unwrap_or(row.submit)..end).contains(&published)
            && log.was_broken(is_restart, published, end)
        {
            let text = format!(
                "the end of {run:?} at {published}: slurmctld, restarted, ended it again: {}",
                row.line
            );
            verdict.unjudged.push(text);
            row.end = Some(published);
        }
    }
}

/// A finished run that was requeued: accounting of 22.05 and 24.11 overwrites its row. Its end is taken from slurmctld's output to the
/// driver.
fn ended_before_requeue(rows: &mut [Row], log: &Log, verdict: &mut Verdict) {
    for row in rows.iter_mut().filter(|row| !row.is_remainder) {
        let run: Run = (row.job, row.task, row.submit);
        let Some(witness) = log
            .witnesses
            .get(&run)
            .filter(|_| log.requeued.contains(&row.job))
        else {
            continue;
        };
        verdict.right("an end before a requeue");
        if row.state == "REQUEUED" {
            let ran = witness.start.map_or(0, |start| witness.end - start);
            row.state.clone_from(&witness.state);
            row.end = Some(witness.end);
            row.elapsed = u64::try_from(ran).unwrap_or_default();
            row.line = format!("{}; squeue showed {witness:?}", row.line);
        }
    }
}

/// No run ends before it starts. Also holds for runs that share a submit time, of which accounting has only the last one.
fn ended_before_it_started(published: &Published, verdict: &mut Verdict) {
    let events = published.bus.values();
    let certain = events.filter(|event| event.confidence() != Confidence::Inferred);
    let mut starts: BTreeMap<&str, i64> = BTreeMap::new();
    let mut ends: Vec<&Event> = Vec::new();
    for event in certain {
        match event.kind() {
            Ok(EventType::JobStarted) => {
                starts.insert(event.entity_key(), occurred(event));
            }
            Ok(kind) if kind.is_end() => ends.push(event),
            _ => {}
        }
    }
    for end in ends {
        let (run, at) = (end.entity_key(), occurred(end));
        if let Some(start) = starts.get(run).filter(|start| at < **start) {
            let text = format!("{} of {run} is at {at}, its start at {start}", end.r#type);
            verdict.wrong.push(text);
        }
    }
}

/// All doorbells of a soak are genuine, so none may be reported as contradicted. Unless slurmctld was killed right after the end, before it
/// saved its state: then it ran the job on, and ended it again.
fn contradicted(published: &Published, log: &Log, verdict: &mut Verdict) {
    let is_lost = |line: &&String| {
        let mut fields = line.split_whitespace();
        let end = fields.find_map(|field| field.strip_prefix("end=")?.parse().ok());
        end.is_some_and(|end| {
            log.was_broken(
                |what| what == FaultKind::Slurmctld,
                end,
                end + UNSAVED_SECONDS,
            )
        })
    };
    let lines = published.contradicted_hooks.iter();
    let refused = lines.filter(|line| !is_lost(line));
    verdict
        .wrong
        .extend(refused.map(|line| format!("evidence of a genuine hook was refused: {line}")));
}

fn witnessed((job, task, submit): Run, witness: &Witness) -> Row {
    Row {
        job,
        task,
        is_remainder: false,
        user: witness.user.clone(),
        state: witness.state.clone(),
        submit,
        start: witness.start,
        end: Some(witness.end),
        nodes: witness.nodes.clone(),
        exit: None,
        elapsed: 0,
        cpu_millis: 0,
        line: String::new(),
    }
}

fn lines_of(rows: &[Row], job: u32) -> String {
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
