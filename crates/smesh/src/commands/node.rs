//! `smesh node NODE`: the state of a node and its events.

use std::process::ExitCode;

use crate::cli::{self, Global};
use crate::client::{Query, segment};
use crate::error::Error;
use crate::{settings, show};

pub(super) async fn run(global: &Global, args: &cli::Node) -> Result<ExitCode, Error> {
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
    for entry in history["timeline"].as_array().into_iter().flatten() {
        show::line(format!("  {}", show::entry(entry)))?;
    }
    if history["truncated"] == true {
        show::line(format!("… more events: smesh events --node {}", args.node))?;
    }
    Ok(ExitCode::SUCCESS)
}
