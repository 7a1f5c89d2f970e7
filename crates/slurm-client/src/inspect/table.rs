//! Tables of sacct, squeue and sinfo: with bars or in columns, with names of columns or without.
//!
//! Names of columns say what a column is. Without them, the job, its state and a node's state are found by their form, and the other
//! columns are shown as they are.

use serde_json::{Map, Value, json};
use slurm_types::{JobRef, JobState, NodeState, Reason, UnixTime};

use super::{InspectError, Inspected, Inspection, record};
use crate::parse;

/// What our own sweep asks squeue for.
const UNIT: char = '\x1f';

/// `None` if the text is no table we know.
pub(super) fn read(text: &str) -> Option<Result<Inspection, InspectError>> {
    let mut lines: Vec<(usize, &str)> = text
        .lines()
        .enumerate()
        .map(|(number, line)| (number + 1, line))
        .filter(|(_, line)| !line.trim().is_empty())
        .collect();
    if lines[0].1.contains(UNIT) {
        return Some(sweep(&lines));
    }
    // `squeue -l` begins with the date.
    if lines.len() > 1 && is_date(lines[0].1) && is_header(lines[1].1) {
        lines.remove(0);
    }
    let (_, header) = lines[0];
    if !is_header(header) {
        return header.contains('|').then(|| unnamed(&lines))?;
    }
    let dashes = lines.get(1).filter(|(_, line)| is_ruler(line)).copied();
    let rows = lines.split_off(if dashes.is_some() { 2 } else { 1 });
    let names: Vec<String> = match (header.contains('|'), dashes) {
        (true, _) => header
            .split('|')
            .map(|name| name.trim().to_owned())
            .collect(),
        (false, _) => header.split_whitespace().map(str::to_owned).collect(),
    };
    let cut: Box<Cut<'_>> = match (header.contains('|'), dashes) {
        (true, _) => Box::new(|line| Some(line.split('|').map(str::to_owned).collect())),
        (false, Some((_, ruler))) => {
            let ends = word_ends(ruler);
            Box::new(move |line| columns(line, &ends))
        }
        (false, None) => {
            let ends = word_ends(header);
            Box::new(move |line| columns(line, &ends))
        }
    };
    Some(named(&names, &rows, &*cut))
}

fn sweep(lines: &[(usize, &str)]) -> Result<Inspection, InspectError> {
    let mut records = Vec::new();
    for (number, line) in lines {
        let (rows, _) = parse::sweep(line);
        let row = rows.first().ok_or_else(|| {
            let problem = "not the columns a sweep asks squeue for, with a job id in the first";
            InspectError::new(*number, "", problem)
        })?;
        records.push(record("queue", row));
    }
    Ok(Inspection {
        source: "squeue, as a sweep asks",
        records,
    })
}

/// `Fri Nov 20 20:35:33 2026`
fn is_date(line: &str) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    words.len() == 5 && words[3].split(':').count() == 3
}

/// Whether the words are names of columns.
fn is_header(line: &str) -> bool {
    const NAMES: [&str; 7] = [
        "JOBID",
        "JOBIDRAW",
        "NODELIST",
        "PARTITION",
        "STATE",
        "ST",
        "AVAIL",
    ];
    let words = line.split(|c: char| c == '|' || c.is_whitespace());
    let known = words.filter(|word| NAMES.contains(&word.to_ascii_uppercase().as_str()));
    known.count() >= 2
        || line
            .split('|')
            .any(|word| word.eq_ignore_ascii_case("JobIDRaw"))
}

fn is_ruler(line: &str) -> bool {
    line.contains("--") && line.chars().all(|c| c == '-' || c == ' ')
}

/// Where each word of the line ends.
fn word_ends(line: &str) -> Vec<usize> {
    let base = line.as_ptr() as usize;
    line.split_whitespace()
        .map(|word| word.as_ptr() as usize - base + word.len())
        .collect()
}

/// Cuts a line at these ends; the last column takes the rest.
fn columns(line: &str, ends: &[usize]) -> Option<Vec<String>> {
    let mut values = Vec::with_capacity(ends.len());
    let mut start = 0;
    for (index, end) in ends.iter().enumerate() {
        let end = match index + 1 == ends.len() {
            true => line.len(),
            false => (*end).min(line.len()),
        };
        values.push(line.get(start..end)?.trim().to_owned());
        start = end;
    }
    Some(values)
}

type Cut<'a> = dyn Fn(&str) -> Option<Vec<String>> + 'a;

fn named(
    names: &[String],
    rows: &[(usize, &str)],
    cut: &Cut<'_>,
) -> Result<Inspection, InspectError> {
    let find = |name: &str| {
        names
            .iter()
            .position(|known| known.eq_ignore_ascii_case(name))
    };
    let of_sacct = ["JobIDRaw", "ExitCode", "ElapsedRaw", "AllocCPUS", "Submit"]
        .into_iter()
        .any(|name| find(name).is_some());
    let of_squeue = find("JOBID").is_some() || find("JOBIDRAW").is_some();
    let mut records = Vec::new();
    for (number, line) in rows {
        let fail = |place: &str, problem: String| InspectError::new(*number, place, problem);
        let values = cut(line)
            .ok_or_else(|| fail("", "it has other columns than the first line".to_owned()))?;
        // `squeue -o` may end in a column that itself holds bars; sacct may not.
        if values.len() < names.len() || (of_sacct && values.len() != names.len()) {
            let problem = format!(
                "{} columns, and {} names in the first line",
                values.len(),
                names.len()
            );
            return Err(fail("", problem));
        }
        let get = |name: &str| find(name).map_or("", |at| values[at].as_str());
        let entry = if of_sacct {
            accounting(&get).map_err(|problem| fail("JobID", problem))?
        } else if of_squeue {
            queue(names, &values).map_err(|(place, problem)| fail(&place, problem))?
        } else {
            nodes(names, &values).map_err(|(place, problem)| fail(&place, problem))?
        };
        records.push(entry);
    }
    let source = match (of_sacct, of_squeue) {
        (true, _) => "sacct",
        (false, true) => "squeue",
        (false, false) => "sinfo",
    };
    Ok(Inspection { source, records })
}

/// A row of sacct; a step is told as one.
fn accounting<'a>(get: &impl Fn(&str) -> &'a str) -> Result<Inspected, String> {
    let printed = match get("JobIDRaw") {
        "" => get("JobID"),
        raw => raw,
    };
    let (job, step) = printed.split_once('.').unwrap_or((printed, ""));
    // Without JobIDRaw, the raw id of an array's task is not told.
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
        format!("{printed:?} is no job id; expected 123, 123_4, 123+1 or 123.batch")
    })?;
    if step.is_empty() {
        return Ok(record("accounting", &row));
    }
    let of_step = json!({ "step": step, "of": row });
    Ok(record("step", &of_step))
}

/// A row of squeue with names of columns, read as far as they say what they are.
fn queue(names: &[String], values: &[String]) -> Result<Inspected, (String, String)> {
    let mut row = Map::new();
    for (name, value) in names.iter().zip(values) {
        let upper = name.to_ascii_uppercase();
        let read = match upper.as_str() {
            "JOBID" => {
                let job: JobRef = value.parse().map_err(|_| {
                    let problem =
                        format!("{value:?} is no job id; expected 123, 123_4, 123_[1-5] or 123+1");
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

/// A row of sinfo with names of columns.
fn nodes(names: &[String], values: &[String]) -> Result<Inspected, (String, String)> {
    let mut row = Map::new();
    for (name, value) in names.iter().zip(values) {
        let read = match name.to_ascii_uppercase().as_str() {
            "STATE" | "STATELONG" | "STATECOMPACT" => node_state(value)
                .ok_or_else(|| (name.clone(), format!("{value:?} is no state of a node")))?,
            _ => json!(parse::text(value)),
        };
        row.insert(name.to_ascii_lowercase(), read);
    }
    Ok(record("nodes", &row))
}

fn node_state(text: &str) -> Option<Value> {
    // sinfo shows what has no nodes as "n/a".
    let state = NodeState::parse(text);
    match text {
        "n/a" => Some(Value::Null),
        _ => (state != NodeState::default() && state.unknown.is_empty()).then(|| json!(state)),
    }
}

/// Rows with bars and without names.
fn unnamed(lines: &[(usize, &str)]) -> Option<Result<Inspection, InspectError>> {
    let job_state = |value: &str| {
        let state = JobState::parse(value);
        state != JobState::default() && state.unknown.is_empty()
    };
    let first: Vec<&str> = lines[0].1.split('|').collect();
    let of_jobs =
        first[0].parse::<JobRef>().is_ok() && first.iter().skip(1).any(|value| job_state(value));
    let of_nodes = !of_jobs
        && first
            .iter()
            .skip(1)
            .any(|value| node_state(value).is_some());
    if !of_jobs && !of_nodes {
        return None;
    }
    let mut records = Vec::new();
    for (number, line) in lines {
        let values: Vec<&str> = line.split('|').collect();
        let state = values.iter().skip(1).find_map(|value| match of_jobs {
            true => Some(json!(JobState::parse(value))).filter(|_| job_state(value)),
            false => node_state(value),
        });
        let (what, entry) = match of_jobs {
            true => (
                "a job id first",
                values[0]
                    .parse::<JobRef>()
                    .ok()
                    .map(|job| ("job", job.to_string())),
            ),
            false => (
                "a node first",
                Some(("node", values[0].to_owned())).filter(|(_, node)| !node.is_empty()),
            ),
        };
        let (Some((key, entry)), Some(state)) = (entry, state) else {
            let problem =
                format!("expected {what} and a state in one of the columns, as in the first line");
            return Some(Err(InspectError::new(*number, "", problem)));
        };
        let kind = if of_jobs { "queue" } else { "nodes" };
        let row = json!({ key: entry, "state": state, "columns": values });
        records.push(record(kind, &row));
    }
    Some(Ok(Inspection {
        source: if of_jobs {
            "squeue, without names of columns"
        } else {
            "sinfo, without names of columns"
        },
        records,
    }))
}
