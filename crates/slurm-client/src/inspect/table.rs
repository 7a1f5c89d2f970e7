//! Tables of sacct, squeue and sinfo with column names: with bars or padded columns.
//!
//! The names alone identify the columns. A table without them is refused: a job may be named like a state, and other commands print the
//! same forms.

use serde_json::{Map, Value, json};
use slurm_types::{JobRef, JobState, NodeState, Reason, UnixTime};

use super::columns::{self, Ambiguous};
use super::names::{self, Command};
use super::times::{ASK_SECONDS, Times};
use super::{InspectError, InspectedRecord, Inspection, record};
use crate::parse;

/// Separator of our own polls by squeue.
const UNIT: char = '\x1f';
/// Columns with times, by command. A truncated name of a column of squeue is looked up first.
const OF_SACCT: [&str; 4] = ["SUBMIT", "ELIGIBLE", "START", "END"];
const OF_SQUEUE: [&str; 9] = [
    "ACCRUE_TIME",
    "DEADLINE",
    "ELIGIBLE_TIME",
    "END_TIME",
    "LAST_SCHED_EVAL",
    "PREEMPT_TIME",
    "RESIZE_TIME",
    "START_TIME",
    "SUBMIT_TIME",
];
const OF_SINFO: [&str; 1] = ["TIMESTAMP"];
const OF_POLLS: [&str; 3] = ["submit", "start", "end"];

/// `None` if the text does not begin with the column names of a known table.
pub(super) fn read(text: &str, times: &Times<'_>) -> Option<Result<Inspection, InspectError>> {
    let mut lines: Vec<(usize, &str)> = text
        .lines()
        .enumerate()
        .map(|(number, line)| (number + 1, line))
        .filter(|(_, line)| !line.trim().is_empty())
        .collect();
    if lines[0].1.contains(UNIT) {
        return Some(queue_rows(&lines, times));
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
        None => return None,
        Some(Err((command, problem))) => {
            let refused = InspectError::new(lines[0].0, "", problem, with_bars(command));
            return Some(Err(refused));
        }
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
                        format!("the boundary to {right} is ambiguous in these rows"),
                        with_bars(command),
                    )));
                }
            }
        }
    };
    Some(named(command, &names, &rows, cells, times))
}

/// How to request a table that can always be split.
const fn with_bars(command: Command) -> &'static str {
    match command {
        Command::Sacct => "sacct -P -o JobID,JobIDRaw,State,…",
        Command::Squeue => "squeue -o '%i|%T|%r|…' or squeue --json",
        Command::Sinfo => "sinfo -o '%P|%D|%T|%N|…' or sinfo --json",
    }
}

fn queue_rows(lines: &[(usize, &str)], times: &Times<'_>) -> Result<Inspection, InspectError> {
    let mut records = Vec::new();
    for (number, line) in lines {
        let row = parse::queue_columns(line).ok_or_else(|| {
            let problem =
                "not the columns that a poll requests from squeue, with a job id in the first";
            InspectError::new(*number, "", problem, with_bars(Command::Squeue))
        })?;
        let mut row: Map<String, Value> = row
            .into_iter()
            .map(|(name, value)| (name.to_owned(), json!(value)))
            .collect();
        for name in OF_POLLS {
            let printed = row[name].as_str().unwrap_or_default();
            let seconds = seconds(times, *number, name, printed)?;
            row.insert(name.to_owned(), json!(seconds));
        }
        records.push(record("queue", &row));
    }
    Ok(Inspection::of("squeue, as a poll requests", records))
}

fn seconds(
    times: &Times<'_>,
    line: usize,
    column: &str,
    printed: &str,
) -> Result<String, InspectError> {
    let refused = |problem| {
        let column = format!("column {column}");
        InspectError::new(line, column, problem, ASK_SECONDS)
    };
    times.seconds(printed).map_err(refused)
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
    cells: Vec<Vec<String>>,
    times: &Times<'_>,
) -> Result<Inspection, InspectError> {
    let find = |name: &str| {
        names
            .iter()
            .position(|known| known.eq_ignore_ascii_case(name))
    };
    let of_times: Vec<usize> = (0..names.len())
        .filter(|at| is_time(command, &names[*at]))
        .collect();
    let mut records = Vec::new();
    for ((number, _), mut values) in rows.iter().zip(cells) {
        let ask = with_bars(command);
        let fail = |place: &str, problem: String| InspectError::new(*number, place, problem, ask);
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
        for at in &of_times {
            values[*at] = seconds(times, *number, &names[*at], &values[*at])?;
        }
        let get = |name: &str| find(name).map_or("", |at| values[at].as_str());
        records.push(match command {
            Command::Sacct => accounting(&get).map_err(|problem| fail("JobID", problem))?,
            Command::Squeue => {
                queue(names, &values).map_err(|(place, problem)| fail(&place, problem))?
            }
            Command::Sinfo => {
                nodes(names, &values).map_err(|(place, problem)| fail(&place, problem))?
            }
        });
    }
    Ok(Inspection::of(command.as_str(), records))
}

fn is_time(command: Command, name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    match command {
        Command::Sacct => OF_SACCT.contains(&name.as_str()),
        Command::Squeue => OF_SQUEUE.contains(&names::of_squeue(&name)),
        Command::Sinfo => OF_SINFO.contains(&name.as_str()),
    }
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
            _ if is_time(Command::Squeue, name) => json!(UnixTime::parse(value)),
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
            _ if is_time(Command::Sinfo, name) => json!(UnixTime::parse(value)),
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
