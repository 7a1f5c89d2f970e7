//! `smesh job ID`: the runs of a job and their events.

use std::process::ExitCode;

use serde_json::Value;

use crate::cli::{self, Global};
use crate::client::{Query, segment};
use crate::error::Error;
use crate::{settings, show};

pub(super) async fn run(global: &Global, args: &cli::JobHistory) -> Result<ExitCode, Error> {
    let client = settings::client(global)?;
    let cluster = settings::cluster(global)?;
    let path = format!(
        "/v1/jobs/{}/{}",
        segment(&cluster),
        segment(&args.job.to_string())
    );
    let query: Query = args.at.map(|at| ("at", at.into())).into_iter().collect();
    let history = client.get(&path, &query).await?;
    if global.json {
        show::line(&history)?;
        return Ok(ExitCode::SUCCESS);
    }
    for (n, run) in history["runs"].as_array().into_iter().flatten().enumerate() {
        if n > 0 {
            show::line("")?;
        }
        show::line(heading(&run["summary"]))?;
        for entry in run["timeline"].as_array().into_iter().flatten() {
            show::line(format!("  {}", show::entry(entry)))?;
        }
    }
    if history["truncated"] == true {
        show::line(format!("… more events: smesh events --job {}", args.job))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn heading(summary: &Value) -> String {
    let text = |key: &str| show::clean(summary[key].as_str().unwrap_or_default());
    let cost = &summary["cost"];
    let amount = cost["micros"]
        .as_str()
        .and_then(|micros| micros.parse().ok());
    let cost = amount.map_or_else(String::new, |amount| {
        let kind = cost["kind"].as_str().unwrap_or_default();
        format!(
            " · {} ({kind})",
            show::micros(amount, cost["currency"].as_str().unwrap_or_default())
        )
    });
    let title = show::bold(&format!("Job {}  {}", text("display_id"), text("name")));
    format!(
        "{title}  {} · {} · {} · {}{cost}",
        text("state"),
        text("user"),
        text("account"),
        text("partition")
    )
}
