//! Parses any output of Slurm the way the collectors do, for bug reports: `smesh inspect`.
//!
//! The kind of output is detected from the text itself: JSON of slurmrestd and `--json`, `scontrol show` in one line or several, tables of
//! sacct, squeue and sinfo with column names. What cannot be read for certain is refused, with a command that prints it so. Pure.

mod columns;
mod document;
mod names;
mod table;
mod times;

use std::{collections::HashMap, fmt};

use serde::Serialize;
use serde_json::Value;

use self::times::Times;
use crate::{Error, parse};

pub use times::ReadTime;

/// Result of an inspection.
#[derive(Clone, Debug, PartialEq)]
pub struct Inspection {
    /// Detected kind: `scontrol show job`, `slurmrestd or --json`, …
    pub source: &'static str,
    /// The records.
    pub records: Vec<InspectedRecord>,
    /// True if a time in it had no zone, so the caller's was used.
    pub local_times: bool,
}

impl Inspection {
    const fn of(source: &'static str, records: Vec<InspectedRecord>) -> Self {
        Self {
            source,
            records,
            local_times: false,
        }
    }
}

/// One record.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InspectedRecord {
    /// `job`, `accounting`, `node`, `partition`, …
    pub kind: String,
    /// Its fields by the collectors' names.
    pub record: Value,
}

/// Why the text cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectError {
    /// The line, counted from 1; 0 if it concerns the whole text.
    pub line: usize,
    /// The record or field, if known.
    pub place: String,
    /// What is wrong, and what was expected.
    pub problem: String,
    /// The command to ask Slurm with.
    pub ask: &'static str,
}

/// How to ask for any of the known outputs.
const ASK_ANY: &str = "sacct -D -P -j ID, scontrol show job ID, squeue --json or sinfo --json";

impl InspectError {
    fn new(
        line: usize,
        place: impl Into<String>,
        problem: impl Into<String>,
        ask: &'static str,
    ) -> Self {
        Self {
            line,
            place: place.into(),
            problem: problem.into(),
            ask,
        }
    }
}

impl fmt::Display for InspectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}: ", self.line)?;
        }
        if !self.place.is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        write!(f, "{}; ask Slurm with: {}", self.problem, self.ask)
    }
}

impl std::error::Error for InspectError {}

/// Parses the output of one command or the body of one response. `time` reads times that are not in Unix seconds.
///
/// # Errors
/// If it is empty, truncated, an error of Slurm's, or no output of Slurm, or has a time that cannot be read.
pub fn inspect(bytes: &[u8], time: &ReadTime<'_>) -> Result<Inspection, InspectError> {
    let times = Times::new(time);
    let mut inspection = read(bytes, &times)?;
    inspection.local_times = times.had_local();
    Ok(inspection)
}

fn read(bytes: &[u8], times: &Times<'_>) -> Result<Inspection, InspectError> {
    let text = String::from_utf8_lossy(bytes);
    let Some(start) = text.find(|c: char| !c.is_whitespace()) else {
        let problem = "it is empty, which does not prove that there are no jobs";
        return Err(InspectError::new(0, "", problem, ASK_ANY));
    };
    let first = text[start..].lines().next().unwrap_or_default();
    match first {
        _ if first.starts_with('{') => document::read(bytes),
        _ if first.starts_with("JobId=") => jobs(&text, times),
        _ if first.starts_with("NodeName=") => {
            let (nodes, unread) = parse::nodes(&times.nodes(&text)?);
            whole(
                "scontrol show node",
                "node",
                nodes,
                unread.count,
                "NodeName, State and CPUTot",
            )
        }
        _ if first.starts_with("PartitionName=") => {
            let (partitions, unread) = parse::partitions(&text);
            whole(
                "scontrol show partition",
                "partition",
                partitions,
                unread.count,
                "PartitionName",
            )
        }
        _ if first.starts_with("ReservationName=") => {
            let joined = joined(&text);
            let lines = joined.lines().filter(|line| !line.trim().is_empty());
            let records = lines.map(|line| raw("reservation", line)).collect();
            Ok(Inspection::of("scontrol show reservation", records))
        }
        _ if first.starts_with("Configuration data as of ") => {
            let records = vec![record("config", &parse::config(&text))];
            Ok(Inspection::of("scontrol show config", records))
        }
        _ if first.starts_with("Slurmctld(") => {
            let records = text.lines().map(|line| raw("ping", line)).collect();
            Ok(Inspection::of("scontrol ping", records))
        }
        _ => table::read(&text, times).unwrap_or_else(|| Err(unknown(&text, first))),
    }
}

fn record(kind: &str, record: &impl Serialize) -> InspectedRecord {
    InspectedRecord {
        kind: kind.to_owned(),
        record: serde_json::to_value(record).unwrap_or_default(),
    }
}

/// A record that no collector reads.
fn raw(kind: &str, line: &str) -> InspectedRecord {
    record(
        kind,
        &serde_json::json!({ "text": line, "collected": false }),
    )
}

fn whole<T: Serialize>(
    source: &'static str,
    kind: &str,
    records: Vec<T>,
    unread: usize,
    needed: &str,
) -> Result<Inspection, InspectError> {
    if unread > 0 {
        let problem = format!("{unread} cannot be parsed; each needs {needed}, and each key once");
        return Err(InspectError::new(
            0,
            format!("records of {source}"),
            problem,
            source,
        ));
    }
    let records = records.iter().map(|one| record(kind, one)).collect();
    Ok(Inspection::of(source, records))
}

/// Joins each record of `scontrol show` into one line; without `-o` the later lines of a record are indented.
fn joined(text: &str) -> String {
    let mut joined = String::with_capacity(text.len());
    for line in text.lines() {
        match line.strip_prefix("   ") {
            Some(more) if !joined.is_empty() => {
                joined.truncate(joined.trim_end_matches('\n').len());
                joined.push(' ');
                joined.push_str(more.trim_start());
            }
            _ => joined.push_str(line),
        }
        joined.push('\n');
    }
    joined
}

const ASK_JOB: &str = "scontrol show job ID";

/// `scontrol show job`.
fn jobs(text: &str, times: &Times<'_>) -> Result<Inspection, InspectError> {
    let mut lines: HashMap<String, usize> = HashMap::new();
    for (number, line) in text.lines().enumerate() {
        if let Some(id) = line
            .strip_prefix("JobId=")
            .and_then(|rest| rest.split(' ').next())
        {
            lines.entry(id.to_owned()).or_insert(number + 1);
        }
    }
    let answer = parse::jobs(&times.jobs(text)?, &HashMap::new());
    if let Some((id, rejected)) = answer.unclear.first() {
        let line = lines.get(&id.to_string()).copied().unwrap_or(0);
        let place = format!("job {id}");
        return Err(InspectError::new(line, place, rejected.problem, ASK_JOB));
    }
    if answer.records.is_empty() {
        return Err(InspectError::new(
            1,
            "",
            "no record starts with JobId=<number> and a space",
            ASK_JOB,
        ));
    }
    let records = answer.records.iter().map(|job| record("job", job));
    Ok(Inspection::of("scontrol show job", records.collect()))
}

/// The best error for a text of no known kind.
fn unknown(text: &str, first: &str) -> InspectError {
    if first.contains("error:") || first.contains(" error") || first.ends_with(" not found") {
        let kind = Error::from_stderr("slurm", 1, text).kind();
        let problem = format!(
            "this is an error of Slurm ({kind}), not an answer; it contains nothing about jobs or nodes"
        );
        let ask = "scontrol ping; if that answers, the same command again, or sacct -D -P -j ID";
        return InspectError::new(1, "", problem, ask);
    }
    let first = first.chars().take(60).collect::<String>();
    if first.contains('|') {
        let problem = format!(
            "this table has no header line of squeue, sacct or sinfo, without which its columns could only be guessed: {first:?}"
        );
        let ask = "squeue -o or sinfo -o without -h, or sacct -P without -n";
        return InspectError::new(1, "", problem, ask);
    }
    let problem = format!(
        "this is not known output of squeue, sacct, scontrol, sinfo or slurmrestd, and not a table with their header line: {first:?}"
    );
    InspectError::new(1, "", problem, ASK_ANY)
}

#[cfg(test)]
mod tests;
