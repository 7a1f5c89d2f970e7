//! `smesh why ID`: why a job is pending, and what became of it if it is not.

mod history;

use std::process::ExitCode;

use serde_json::Value;

use super::what_if;
use crate::cli::{self, Global};
use crate::client::{Query, segment};
use crate::error::Error;
use crate::{settings, show};

pub(super) async fn run(global: &Global, args: &cli::Why) -> Result<ExitCode, Error> {
    if !args.requests.variants.is_empty() || !args.requests.base.is_empty() || args.verify {
        return what_if::why(global, args).await;
    }
    let client = settings::client(global)?;
    let cluster = settings::cluster(global)?;
    let (cluster, job) = (segment(&cluster), segment(&args.job.to_string()));
    let path = format!("/v1/queue/{cluster}/{job}");
    let answer = match client.get(&path, &Query::new()).await {
        Ok(answer) => answer,
        // Not in the queue, and not for the last day: the ledger may have its end.
        Err(refused @ Error::Refused { status: 404, .. }) => {
            let path = format!("/v1/jobs/{cluster}/{job}");
            let history = match client.get(&path, &Query::new()).await {
                Ok(history) => history,
                Err(Error::Refused { .. }) => return Err(refused),
                Err(error) => return Err(error),
            };
            if global.json {
                show::line(&history)?;
                return Ok(ExitCode::SUCCESS);
            }
            let runs = history["runs"].as_array();
            let last = runs.and_then(|runs| runs.last()).unwrap_or(&Value::Null);
            let state = show::clean(last["summary"]["state"].as_str().unwrap_or_default());
            show::line(show::bold(&format!("Job {} does not wait", args.job)))?;
            show::line(format!(
                "Its last known state is {state}. Its events: smesh job {}",
                args.job
            ))?;
            return Ok(ExitCode::SUCCESS);
        }
        Err(error) => return Err(error),
    };
    if global.json {
        show::line(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.history {
        return history::show(&answer);
    }
    let explanation = &answer["explanation"];
    let text = |key: &str| show::clean(explanation[key].as_str().unwrap_or_default());
    show::line(show::bold(&format!(
        "Job {} {}",
        show::clean(answer["job"].as_str().unwrap_or_default()),
        verb(&text("stage"))
    )))?;
    show::line(text("summary"))?;
    for (name, value) in facts(&answer).iter().filter(|(_, value)| !value.is_empty()) {
        show::line(format!("  {name}: {value}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn verb(stage: &str) -> &'static str {
    match stage {
        "provisioning" => "has its nodes, and they are booting",
        "configuring" => "has its nodes, and they are being prepared",
        "running" => "runs",
        "ended" => "has ended",
        _ => "waits",
    }
}

fn facts(answer: &Value) -> Vec<(&'static str, String)> {
    let explanation = &answer["explanation"];
    let text = |key: &str| show::clean(explanation[key].as_str().unwrap_or_default());
    let list = |key: &str| {
        let items = explanation[key].as_array().into_iter().flatten();
        let items: Vec<String> = items.filter_map(Value::as_str).map(show::clean).collect();
        items.join("; ")
    };
    let time = |value: &Value| {
        let time = value.as_str().and_then(|time| time.parse().ok());
        time.map(|time| show::clock(Some(time)))
    };
    let waits = ["", "waiting"].contains(&text("stage").as_str());
    let mut facts = Vec::new();
    if waits {
        facts.push(("Who can act", text("actor")));
    }
    facts.extend([
        ("What to do", text("advice")),
        ("Limit", text("limit")),
        ("Set in", text("limitSource")),
    ]);
    if waits {
        facts.push(match time(&explanation["expectedStart"]) {
            Some(start) => ("Expected start", format!("{start} (planned by Slurm)")),
            None => ("No expected start", text("noEstimateBecause")),
        });
        facts.extend(what_if::estimate(&answer["estimate"]));
        if let Some(ahead) = answer["jobs_ahead"].as_u64() {
            facts.push(("Jobs ahead", ahead.to_string()));
        }
    }
    let parts = explanation["priorityParts"]
        .as_array()
        .into_iter()
        .flatten();
    let parts: Vec<String> = parts
        .map(|part| {
            let points = part["points"].as_str().unwrap_or_default();
            format!(
                "{} {points}",
                show::clean(part["name"].as_str().unwrap_or_default())
            )
        })
        .collect();
    facts.extend([
        ("Priority", parts.join(", ")),
        ("Changed", list("changed")),
        (
            "Slurm's reason",
            if waits { text("reason") } else { String::new() },
        ),
        ("As of", time(&answer["queue_as_of"]).unwrap_or_default()),
        ("Note", text("confidenceNote")),
    ]);
    facts
}
