//! `smesh node NODE`: the state of a node and its events. `smesh node history NODE`: its stays in each state, and its boots.

use std::process::ExitCode;

use serde_json::Value;

use crate::cli::{self, Global, NodeCommand};
use crate::client::{Query, segment};
use crate::error::Error;
use crate::{settings, show};

pub(super) async fn run(global: &Global, args: &cli::Node) -> Result<ExitCode, Error> {
    let (args, steps_only) = match (&args.command, &args.selected) {
        (Some(NodeCommand::History(selected)), _) => (selected, true),
        (None, Some(selected)) => (selected, false),
        (None, None) => return Err(Error::Usage("name a node: smesh node NODE".to_owned())),
    };
    let client = settings::client(global)?;
    let cluster = settings::cluster(global)?;
    let path = format!("/v1/nodes/{}/{}", segment(&cluster), segment(&args.node));
    let query: Query = args.at.map(|at| ("at", at.into())).into_iter().collect();
    let history = client.get(&path, &query).await?;
    if global.json {
        show::line(&history)?;
        return Ok(ExitCode::SUCCESS);
    }
    let state = &history["state"];
    let text = |key: &str| show::clean(state[key].as_str().unwrap_or_default());
    let flags: String = state["flags"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|flag| flag.as_str())
        .map(|flag| format!("+{}", show::clean(flag)))
        .collect();
    let reason = match text("reason") {
        none if none.is_empty() => String::new(),
        reason => format!(" · {reason}"),
    };
    let title = show::bold(&format!("Node {}", show::clean(&args.node)));
    show::line(format!(
        "{title}  {}{flags} ({}){reason} · since {}",
        text("state"),
        text("lifecycle"),
        text("since")
    ))?;
    if steps_only {
        return steps(&history);
    }
    for entry in history["timeline"].as_array().into_iter().flatten() {
        show::line(format!("  {}", show::entry(entry)))?;
    }
    if history["truncated"] == true {
        show::line(format!("… more events: smesh events --node {}", args.node))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn steps(history: &Value) -> Result<ExitCode, Error> {
    let time = |value: &Value| {
        let time = value.as_str().and_then(|time| time.parse().ok());
        show::clock(time)
    };
    for step in history["steps"].as_array().into_iter().flatten() {
        let text = |key: &str| show::clean(step[key].as_str().unwrap_or_default());
        let lasted = step["seconds"].as_i64().map_or_else(
            || "until now".to_owned(),
            |seconds| format!("for {}", show::duration(seconds)),
        );
        let by = match text("actor") {
            none if none.is_empty() || text("cause").is_empty() => String::new(),
            actor => format!("by {actor}"),
        };
        let instance = format!("{} {}", text("instance_id"), text("instance_type"));
        let details = [
            text("cause"),
            by,
            text("reason"),
            instance.trim().to_owned(),
        ];
        let details: Vec<String> = details
            .into_iter()
            .filter(|detail| !detail.is_empty())
            .collect();
        show::line(format!(
            "  {}  {:<12}  {lasted:<14}  {}",
            time(&step["from"]),
            text("lifecycle"),
            details.join(" · ")
        ))?;
    }
    let boots = &history["boots"];
    if let (Some(p50), Some(p90)) = (boots["p50_seconds"].as_i64(), boots["p90_seconds"].as_i64()) {
        show::line(format!(
            "Boots: half of them within {}, 9 of 10 within {} (the last {})",
            show::duration(p50),
            show::duration(p90),
            boots["boots"]
        ))?;
    }
    if boots["failed"].as_u64().is_some_and(|failed| failed > 0) {
        show::line(format!(
            "Launches: {} of the last {} failed: {}",
            boots["failed"],
            boots["launches"],
            show::clean(boots["last_failure"].as_str().unwrap_or_default())
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}
