//! `smesh why ID --history`: what was said about a wait, and what became of the estimates.

use std::process::ExitCode;

use chrono::{DateTime, Utc};
use serde_json::Value;

use crate::error::Error;
use crate::show;

pub(super) fn show(answer: &Value) -> Result<ExitCode, Error> {
    let text = |value: &Value| show::clean(value.as_str().unwrap_or_default());
    show::line(show::bold(&format!(
        "What was said about job {}",
        text(&answer["job"])
    )))?;
    let timeline = answer["timeline"].as_array();
    let entries = timeline.into_iter().flatten();
    let mut is_empty = true;
    for entry in entries {
        is_empty = false;
        show::line(format!(
            "{}  {}",
            show::clock(time(&entry["at"])),
            text(&entry["summary"])
        ))?;
        let changed = entry["changed"].as_array().into_iter().flatten();
        let changed: Vec<String> = changed.map(text).collect();
        if !changed.is_empty() {
            show::line(format!("    changed: {}", changed.join("; ")))?;
        }
        if let Some(outcome) = outcome(entry, answer) {
            show::line(format!("    {outcome}"))?;
        }
    }
    if is_empty {
        show::line("Nothing was published: it did not wait, or only for a moment.")?;
    }
    let last = match (time(&answer["started_at"]), time(&answer["left_at"])) {
        (Some(start), _) => format!("It started at {}.", show::clock(Some(start))),
        (None, Some(left)) => format!("It left the queue at {}.", show::clock(Some(left))),
        (None, None) => "It still waits.".to_owned(),
    };
    show::line(last)?;
    Ok(ExitCode::SUCCESS)
}

fn time(value: &Value) -> Option<DateTime<Utc>> {
    value.as_str()?.parse().ok()
}

/// What became of an entry's estimates. `None` if it had none.
fn outcome(entry: &Value, answer: &Value) -> Option<String> {
    let start = time(&answer["started_at"]);
    let judged = |by: DateTime<Utc>| match start {
        Some(start) if start <= by => "right",
        Some(_) => "too early",
        None if answer["waiting"] == true && Utc::now() > by => "passed",
        None if answer["waiting"] == true => "open",
        None => "did not start",
    };
    let estimates = [
        ("planned by Slurm", "expected_start"),
        ("likely", "start_p50"),
        ("9 of 10 by", "start_p90"),
    ];
    let estimates: Vec<String> = estimates
        .into_iter()
        .filter_map(|(name, key)| {
            let by = time(&entry[key])?;
            Some(format!("{name} {}: {}", show::clock(Some(by)), judged(by)))
        })
        .collect();
    (!estimates.is_empty()).then(|| format!("estimates: {}", estimates.join("; ")))
}
