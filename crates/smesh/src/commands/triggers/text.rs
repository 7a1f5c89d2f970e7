//! Rules and runs of triggers as text for people.

use serde_json::Value;

use crate::show;

pub(super) fn rules(answer: &Value) -> String {
    let heading = [
        "rule",
        "defined in",
        "action",
        "fired by",
        "per hour",
        "status",
    ];
    let mut rows = vec![heading.map(str::to_uppercase).to_vec()];
    for rule in answer["rules"].as_array().into_iter().flatten() {
        let users: Vec<String> = rule["users"]
            .as_array()
            .into_iter()
            .flatten()
            .map(show::value)
            .collect();
        let status = match (&rule["paused_at"], rule["dry_run"].as_bool()) {
            (Value::String(_), _) => format!("paused: {}", show::value(&rule["paused_because"])),
            (_, Some(true)) => "dry run".to_owned(),
            _ => "active".to_owned(),
        };
        rows.push(vec![
            show::value(&rule["rule"]),
            show::value(&rule["defined_in"]),
            show::value(&rule["action"]),
            match (rule["manual"].as_bool(), &rule["schedule"]) {
                _ if rule["source"].is_string() => {
                    format!("source {}", show::value(&rule["source"]))
                }
                (Some(true), _) => "people".to_owned(),
                (_, Value::Object(schedule)) => {
                    format!(
                        "{} {}",
                        show::value(&schedule["cron"]),
                        show::value(&schedule["zone"])
                    )
                }
                _ => format!("events of {}", users.join(",")),
            },
            show::value(&rule["per_hour"]),
            show::clean(&status),
        ]);
    }
    let unusable = answer["unusable"].as_array().into_iter().flatten();
    let unusable: String = unusable
        .map(|rule| {
            let value = |key: &str| show::clean(&show::value(&rule[key]));
            format!("\n{} is not used: {}", value("rule"), value("reason"))
        })
        .collect();
    let table = match rows.len() {
        1 => "no rules that you may see; they are [[workflow-trigger.rules]] in mesh.toml, or made by smesh triggers apply"
            .into(),
        _ => show::table(&rows),
    };
    table + &unusable
}

pub(super) fn runs(answer: &Value) -> String {
    let heading = [
        "created", "rule", "event", "state", "job", "ended", "key", "error",
    ];
    let mut rows = vec![heading.map(str::to_uppercase).to_vec()];
    for run in answer["runs"].as_array().into_iter().flatten() {
        let value = |key: &str| show::clean(&show::value(&run[key]));
        rows.push(vec![
            show::time(&run["created_at"]),
            value("rule"),
            value("event_type"),
            value("state"),
            job(run),
            ended(run),
            value("key"),
            value("error"),
        ]);
    }
    if rows.len() == 1 {
        return "no runs".into();
    }
    show::table(&rows)
}

/// The job of a run, or the tasks of an array: `4711_[2,5-7]`.
pub(in crate::commands) fn job(run: &Value) -> String {
    let job = show::clean(&show::value(&run["job_id"]));
    match run["tasks"].as_str() {
        Some(tasks) => {
            let more = match run["next_tasks_after"].is_null() {
                true => String::new(),
                false => format!(",… {} in all", show::value(&run["task_count"])),
            };
            format!("{job}_[{}{more}]", show::clean(tasks))
        }
        None => job,
    }
}

/// How the job of a run ended, the last time that it ran.
pub(in crate::commands) fn ended(run: &Value) -> String {
    let ended = show::clean(&show::value(&run["ended_as"]));
    match run["restarts"].as_u64() {
        Some(1) => format!("{ended} after 1 restart"),
        Some(restarts) => format!("{ended} after {restarts} restarts"),
        None => ended,
    }
}

pub(super) fn tested(answer: &Value) -> String {
    let mut lines = vec![match answer["matches"].as_bool() {
        Some(true) => "fires the rule".to_owned(),
        _ => "does not fire the rule".to_owned(),
    }];
    for refusal in answer["refusals"].as_array().into_iter().flatten() {
        lines.push(format!("refused: {}", show::clean(&show::value(refusal))));
    }
    for at in answer["schedule"]["next"].as_array().into_iter().flatten() {
        lines.push(format!("at {}", show::clean(&show::value(at))));
    }
    let approvers = answer["approvers"].as_array().into_iter().flatten();
    let approvers: Vec<String> = approvers.map(show::value).collect();
    if !approvers.is_empty() {
        lines.push(format!("waits for approval by {}", approvers.join(", ")));
    }
    if !answer["action"].is_null() {
        lines.push(document(&answer["action"], &[]));
    }
    lines.join("\n")
}

/// Keys and values, one per line. Texts from outside are cleaned.
pub(super) fn document(value: &Value, besides: &[&str]) -> String {
    let mut lines = Vec::new();
    add_lines(&mut lines, 0, value, besides);
    lines.join("\n")
}

fn add_lines(lines: &mut Vec<String>, depth: usize, value: &Value, besides: &[&str]) {
    let indent = "  ".repeat(depth);
    for (key, value) in value.as_object().into_iter().flatten() {
        match value {
            _ if besides.contains(&key.as_str()) => {}
            Value::Null => {}
            Value::Object(_) => {
                lines.push(format!("{indent}{key}"));
                add_lines(lines, depth + 1, value, &[]);
            }
            value => {
                let text = show::clean(&show::value(value));
                lines.push(format!("{indent}{key}: {text}"));
            }
        }
    }
}
