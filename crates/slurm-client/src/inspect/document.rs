//! JSON: a response of slurmrestd, or output of a command with `--json`.

use serde_json::Value;

use super::{InspectError, InspectedRecord, Inspection, record};
use crate::json::{self, ExitCodes};

/// How to ask for any of the known documents.
const ASK_JSON: &str = "scontrol show job ID --json, sacct -j ID --json, squeue --json or sinfo --json, and keep the whole output";

/// How to ask for the records of a list.
fn ask(list: &str) -> &'static str {
    match list {
        "jobs" => "scontrol show job ID --json or sacct -j ID --json",
        "nodes" => "scontrol show nodes --json",
        "partitions" => "scontrol show partitions --json",
        "associations" => "curl of slurmrestd's /slurmdb/v0.0.NN/associations/",
        "users" => "curl of slurmrestd's /slurmdb/v0.0.NN/users/",
        _ => ASK_JSON,
    }
}

/// Keys of every document.
const AROUND: [&str; 5] = ["meta", "errors", "warnings", "last_update", "last_backfill"];

pub(super) fn read(bytes: &[u8]) -> Result<Inspection, InspectError> {
    let document: Value = serde_json::from_slice(bytes).map_err(|error| {
        let problem = match error.is_eof() {
            true => "the document is incomplete: the answer was truncated".to_owned(),
            false => format!("not JSON: {error}"),
        };
        let place = format!("column {}", error.column());
        InspectError::new(error.line(), place, problem, ASK_JSON)
    })?;
    let envelope = json::envelope(bytes).unwrap_or_default();
    let mut records = Vec::new();
    for (key, value) in document.as_object().into_iter().flatten() {
        match (key.as_str(), value) {
            (key, _) if AROUND.contains(&key) => {}
            (key, Value::Array(items)) => {
                for (index, item) in items.iter().enumerate() {
                    records.push(one(key, index, item, &envelope.release)?);
                }
            }
            ("paths", Value::Object(paths)) => {
                let paths: Vec<&String> = paths.keys().collect();
                records.push(record("openapi", &serde_json::json!({ "paths": paths })));
            }
            (key, Value::Object(_)) => records.push(other(key, value)),
            _ => {}
        }
    }
    let lists = document.as_object().is_some_and(|document| {
        document.iter().any(|(key, value)| {
            !AROUND.contains(&key.as_str()) && (value.is_array() || value.is_object())
        })
    });
    // 22.05's accounting reports an empty result as an error; the collectors do not.
    let nothing_found = envelope.has_error(json::NOTHING_FOUND);
    if records.is_empty() && !envelope.errors.is_empty() && !nothing_found {
        let problem = format!(
            "Slurm reports: {}; it contains nothing about jobs or nodes",
            envelope.error_text()
        );
        return Err(InspectError::new(0, "errors", problem, ASK_JSON));
    }
    if !lists {
        let problem =
            "it has no list of jobs, nodes or partitions: not a document of slurmrestd or --json";
        return Err(InspectError::new(0, "", problem, ASK_JSON));
    }
    Ok(Inspection::of("slurmrestd or --json", records))
}

fn one(
    list: &str,
    index: usize,
    item: &Value,
    release: &str,
) -> Result<InspectedRecord, InspectError> {
    let place = format!("{list}[{index}]");
    let ask = ask(list);
    let needs = |what: &str| InspectError::new(0, place.clone(), format!("it needs {what}"), ask);
    match list {
        "jobs" if item.get("job_state").is_some() => match json::job(item) {
            Ok(job) => Ok(record("job", &job)),
            Err((_, rejected)) => Err(InspectError::new(0, place, rejected.problem, ask)),
        },
        "jobs" if item.get("time").is_some() => {
            // As for every 22.05: only the release identifies the version in `sacct --json`.
            let codes = match release.starts_with("22.") || release.starts_with("21.") {
                true => ExitCodes::Lost,
                false => ExitCodes::Reported,
            };
            let row = json::accounting(item, codes, |user| user.parse().ok());
            row.map(|row| named_canceller(record("accounting", &row)))
                .ok_or_else(|| needs("a job_id"))
        }
        "jobs" => Err(needs(
            "job_state (a job of slurmctld) or time (a row of slurmdbd)",
        )),
        "nodes" => json::node(item)
            .map(|node| record("node", &node))
            .ok_or_else(|| needs("name, state and cpus")),
        "partitions" => json::partition(item)
            .map(|partition| record("partition", &partition))
            .ok_or_else(|| needs("a name")),
        "associations" => json::association(item)
            .map(|one| record("association", &one.record))
            .ok_or_else(|| needs("account, qos, shares_raw and max, as v0.0.38 and later have it")),
        "users" => json::user(item)
            .map(|user| record("user", &user))
            .ok_or_else(|| needs("name, administrator_level and coordinators")),
        _ => Ok(other(list.strip_suffix('s').unwrap_or(list), item)),
    }
}

/// Accounting names the canceller by user name; the collectors look up the uid, which only the cluster's hosts know.
fn named_canceller(mut row: InspectedRecord) -> InspectedRecord {
    let name = row
        .record
        .as_object_mut()
        .and_then(|row| row.remove("canceller"));
    if let Some(name) = name {
        row.record["cancelled_by"] = name;
    }
    row
}

/// A record that no collector reads, unchanged.
fn other(kind: &str, value: &Value) -> InspectedRecord {
    record(
        kind,
        &serde_json::json!({ "value": value, "collected": false }),
    )
}
