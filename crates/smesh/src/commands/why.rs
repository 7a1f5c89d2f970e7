//! `smesh why ID`: why a job is pending.

use std::process::ExitCode;

use crate::cli::{self, Global};
use crate::client::{Query, segment};
use crate::error::Error;
use crate::{settings, show};

pub(super) async fn run(global: &Global, args: &cli::Job) -> Result<ExitCode, Error> {
    let client = settings::client(global)?;
    let cluster = settings::cluster(global)?;
    let path = format!(
        "/v1/queue/{}/{}",
        segment(&cluster),
        segment(&args.job.to_string())
    );
    let answer = client.get(&path, &Query::new()).await?;
    if global.json {
        show::line(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    let explanation = &answer["explanation"];
    let text = |key: &str| show::clean(explanation[key].as_str().unwrap_or_default());
    let waiting = answer["waiting"] == true;
    let verb = if waiting {
        "waits"
    } else {
        "is no longer pending; this was the last explanation"
    };
    show::line(show::bold(&format!(
        "Job {} {verb}",
        show::clean(answer["job"].as_str().unwrap_or_default())
    )))?;
    show::line(text("summary"))?;
    let mut facts = vec![
        ("Who can act", text("actor")),
        ("What to do", text("advice")),
        ("Limit", text("limit")),
        ("Set in", text("limitSource")),
    ];
    let start = explanation["expectedStart"]
        .as_str()
        .and_then(|time| time.parse().ok());
    facts.push(match start {
        Some(start) => (
            "Expected start",
            format!("{} (planned by Slurm)", show::clock(Some(start))),
        ),
        None => ("No expected start", text("noEstimateBecause")),
    });
    if let Some(ahead) = answer["jobs_ahead"].as_u64() {
        facts.push(("Jobs ahead", ahead.to_string()));
    }
    facts.push(("Slurm's reason", text("reason")));
    for (name, value) in facts.iter().filter(|(_, value)| !value.is_empty()) {
        show::line(format!("  {name}: {value}"))?;
    }
    Ok(ExitCode::SUCCESS)
}
