//! Tables of sacct, squeue and sinfo: with bars or padded columns, with or without column names.
//!
//! Column names identify the columns. Without them, the job, its state and a node's state are found by their form, and other columns are
//! shown unchanged.

use serde_json::{Map, Value, json};
use slurm_types::{JobRef, JobState, NodeState, Reason, UnixTime};

use super::columns::{self, Ambiguous};
use super::names::{self, Command};
use super::{InspectError, InspectedRecord, Inspection, record};
use crate::parse;

/// Separator of our own polls by squeue.
const UNIT: char = '\x1f';

/// `None` if the text is not a known table.
pub(super) fn read(text: &str) -> Option<Result<Inspection, InspectError>> {
    let mut lines: Vec<(usize, &str)> = text
        .lines()
        .enumerate()
        .map(|(number, line)| (number + 1, line))
        .filter(|(_, line)| !line.trim().is_empty())
        .collect();
    if lines[0].1.contains(UNIT) {
        return Some(queue_rows(&lines));
    }
    // `squeue -l` and `sinfo -l` begin with the date.
    if lines.len() > 1 && is_date(lines[0].1) {
        lines.remove(0);
    }
    let (_, header) = lines[0];
    let has_bars = header.contains('|');
    let names: Vec<String> = match has_bars {
        true => header
            .split('|')
            .map(|name| name.trim().to_owned())
            .collect(),
        false => header.split_whitespace().map(str::to_owned).collect(),
    };
    let command = match names::command(&names) {
        None if has_bars => return unnamed(&lines),
        None => return None,
        Some(Err(problem)) => return Some(Err(InspectError::new(lines[0].0, "", problem))),
        Some(Ok(command)) => command,
    };
    let ruler = lines.get(1).filter(|(_, line)| is_ruler(line)).copied();
    let rows = lines.split_off(if ruler.is_some() { 2 } else { 1 });
    let cells = match (has_bars, ruler) {
        (true, _) => rows
            .iter()
            .map(|(_, line)| line.split('|').map(str::to_owned).collect())
            .collect(),
        (false, Some((_, ruler))) => rows
            .iter()
            .map(|(_, line)| columns::ruled(ruler, line))
            .collect(),
        (false, None) => {
            let text: Vec<&str> = rows.iter().map(|(_, line)| *line).collect();
            match columns::cut(header, &text) {
                Ok(cells) => cells,
                Err(Ambiguous { left, right }) => {
                    return Some(Err(InspectError::new(
                        0,
                        left.as_str(),
                        format!(
                            "the boundary to {right} is ambiguous in these rows; use separators ({}) or --json",
                            with_bars(command),
                        ),
                    )));
                }
            }
        }
    };
    Some(named(command, &names, &rows, &cells))
}

/// How to request a table that can always be split.
const fn with_bars(command: Command) -> &'static str {
    match command {
        Command::Sacct => "sacct -P",
        Command::Squeue => "squeue -o '%i|%T|%r|…'",
        Command::Sinfo => "sinfo -o '%P|%D|%T|%N|…'",
    }
}

fn queue_rows(lines: &[(usize, &str)]) -> Result<Inspection, InspectError> {
    let mut records = Vec::new();
    for (number, line) in lines {
        let row = parse::queue_columns(line).ok_or_else(|| {
            let problem =
                "not the columns that a poll requests from squeue, with a job id in the first";
            InspectError::new(*number, "", problem)
        })?;
        records.push(record("queue", &row));
    }
    Ok(Inspection {
        source: "squeue, as a poll requests",
        records,
    })
}

/// `Fri Nov 20 20:35:33 2026`
fn is_date(line: &str) -> bool {
    let tokens: Vec<&str> = line.split_whitespace().collect();
    tokens.len() == 5 && tokens[3].split(':').count() == 3
}

fn is_ruler(line: &str) -> bool {
    line.contains("--") && line.chars().all(|c| c == '-' || c == ' ')
}

fn named(
    command: Command,
    names: &[String],
    rows: &[(usize, &str)],
    cells: &[Vec<String>],
) -> Result<Inspection, InspectError> {
    let find = |name: &str| {
        names
            .iter()
            .position(|known| known.eq_ignore_ascii_case(name))
    };
    let mut records = Vec::new();
    for ((number, _), values) in rows.iter().zip(cells) {
        let fail = |place: &str, problem: String| InspectError::new(*number, place, problem);
        // `squeue -o` may end in a column that itself contains bars; sacct may not.
        let of_sacct = command == Command::Sacct;
        if values.len() < names.len() || (of_sacct && values.len() != names.len()) {
            let problem = format!(
                "{} columns, and {} names in the first line",
                values.len(),
                names.len()
            );
            return Err(fail("", problem));
        }
        let get = |name: &str| find(name).map_or("", |at| values[at].as_str());
        records.push(match command {
            Command::Sacct => accounting(&get).map_err(|problem| fail("JobID", problem))?,
            Command::Squeue => {
                queue(names, values).map_err(|(place, problem)| fail(&place, problem))?
            }
            Command::Sinfo => {
                nodes(names, values).map_err(|(place, problem)| fail(&place, problem))?
            }
        });
    }
    Ok(Inspection {
        source: command.as_str(),
        records,
    })
}

/// A row of sacct; steps are marked as such.
fn accounting<'a>(get: &impl Fn(&str) -> &'a str) -> Result<InspectedRecord, String> {
    let printed = match get("JobIDRaw") {
        "" => get("JobID"),
        raw => raw,
    };
    let (job, step) = printed.split_once('.').unwrap_or((printed, ""));
    // Without JobIDRaw, the raw id of an array task is unknown.
    let raw: &str = job.split(['_', '+']).next().unwrap_or(job);
    let row: Vec<&str> = parse::ACCOUNTING_FIELDS
        .iter()
        .map(|field| match *field {
            "JobIDRaw" => raw,
            "JobID" if get("JobID").is_empty() => job,
            "JobID" => get("JobID").split('.').next().unwrap_or_default(),
            field => get(field),
        })
        .collect();
    let row = parse::accounting_row(&row).ok_or_else(|| {
        format!("{printed:?} is not a job id; expected 123, 123_4, 123+1 or 123.batch")
    })?;
    if step.is_empty() {
        return Ok(record("accounting", &row));
    }
    let of_step = json!({ "step": step, "of": row });
    Ok(record("step", &of_step))
}

/// A row of squeue with column names, parsed as far as the names are known.
fn queue(names: &[String], values: &[String]) -> Result<InspectedRecord, (String, String)> {
    let mut row = Map::new();
    for (name, value) in names.iter().zip(values) {
        let upper = name.to_ascii_uppercase();
        let read = match upper.as_str() {
            "JOBID" => {
                let job: JobRef = value.parse().map_err(|_| {
                    let problem = format!(
                        "{value:?} is not a job id; expected 123, 123_4, 123_[1-5] or 123+1"
                    );
                    (name.clone(), problem)
                })?;
                json!(job.to_string())
            }
            "ST" | "STATE" => json!(JobState::parse(value)),
            _ if upper.ends_with("_TIME") && upper != "TIME_LIMIT" => {
                match UnixTime::parse(value) {
                    Some(time) => json!(time),
                    None => Value::Null,
                }
            }
            "REASON" => json!({ "text": value, "class": Reason::lookup(value).class().as_str() }),
            _ => json!(parse::text(value)),
        };
        row.insert(name.to_ascii_lowercase(), read);
    }
    Ok(record("queue", &row))
}

/// A row of sinfo with column names.
fn nodes(names: &[String], values: &[String]) -> Result<InspectedRecord, (String, String)> {
    let mut row = Map::new();
    for (name, value) in names.iter().zip(values) {
        let read = match name.to_ascii_uppercase().as_str() {
            "STATE" | "STATELONG" | "STATECOMPACT" => node_state(value)
                .ok_or_else(|| (name.clone(), format!("{value:?} is not a node state")))?,
            _ => json!(parse::text(value)),
        };
        row.insert(name.to_ascii_lowercase(), read);
    }
    Ok(record("nodes", &row))
}

fn node_state(text: &str) -> Option<Value> {
    // sinfo prints "n/a" for a partition without nodes.
    let state = NodeState::parse(text);
    match text {
        "n/a" => Some(Value::Null),
        _ => (state != NodeState::default() && state.unknown.is_empty()).then(|| json!(state)),
    }
}

/// Rows with bars and without names. The job or node is first; its state is in the only column that contains a state in every row.
fn unnamed(lines: &[(usize, &str)]) -> Option<Result<Inspection, InspectError>> {
    let job_state = |value: &str| {
        let state = JobState::parse(value);
        (state != JobState::default() && state.unknown.is_empty()).then(|| json!(state))
    };
    let rows: Vec<Vec<&str>> = lines
        .iter()
        .map(|(_, line)| line.split('|').collect())
        .collect();
    let columns = rows.iter().map(Vec::len).min().unwrap_or_default();
    let in_every_row = |is_state: &dyn Fn(&str) -> bool| -> Vec<usize> {
        (1..columns)
            .filter(|at| rows.iter().all(|row| is_state(row[*at])))
            .collect()
    };
    let of_jobs = job_and_step(rows[0][0]).is_some();
    let states = match of_jobs {
        true => in_every_row(&|value| job_state(value).is_some()),
        false => in_every_row(&|value| {
            // sinfo also prints these words for the author of a reason, and for features.
            !["Unknown", "cloud"].contains(&value)
                && node_state(value).is_some_and(|state| !state.is_null())
        }),
    };
    let state = *states.first()?;
    let read = |value: &str| match of_jobs {
        true => job_state(value),
        false => node_state(value),
    };
    // `%T|%t`: the same state in two forms, as `drained` and `drain`.
    let same = |other: &usize| {
        rows.iter().all(|row| {
            let (one, other) = (row[state], row[*other]);
            read(one) == read(other) || one.starts_with(other)
        })
    };
    if !states.iter().all(same) {
        let columns: Vec<usize> = states.iter().map(|at| at + 1).collect();
        let problem =
            format!("columns {columns:?} contain different states; the header line is required");
        return Some(Err(InspectError::new(lines[0].0, "", problem)));
    }
    let mut records = Vec::new();
    for ((number, _), values) in lines.iter().zip(&rows) {
        let first = values[0];
        let (kind, row) = match (of_jobs, job_and_step(first)) {
            (true, Some((job, None))) => (
                "queue",
                json!({ "job": job, "state": read(values[state]), "columns": values }),
            ),
            (true, Some((job, Some(step)))) => (
                "step",
                json!({ "job": job, "step": step, "state": read(values[state]), "columns": values }),
            ),
            (false, None) if !first.is_empty() => (
                "nodes",
                json!({ "node": first, "state": read(values[state]), "columns": values }),
            ),
            _ => {
                let what = if of_jobs { "a job id" } else { "a node" };
                let problem = format!("expected {what} in the first column, as in the first line");
                return Some(Err(InspectError::new(*number, "", problem)));
            }
        };
        records.push(record(kind, &row));
    }
    Some(Ok(Inspection {
        source: if of_jobs {
            "squeue or sacct, without a header"
        } else {
            "sinfo, without a header"
        },
        records,
    }))
}

/// `123_4` or `123_4.batch`.
fn job_and_step(text: &str) -> Option<(String, Option<&str>)> {
    let (job, step) = match text.split_once('.') {
        Some((job, step)) => (job, Some(step)),
        None => (text, None),
    };
    Some((job.parse::<JobRef>().ok()?.to_string(), step))
}
