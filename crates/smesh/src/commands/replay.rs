//! `smesh replay`: publishes recorded events once more.

use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use ledger::domain::replay::ReplayRequest;
use reqwest::Method;
use serde_json::{Value, json};

use super::events::filter;
use crate::cli::{Global, Replay, ReplayStart};
use crate::client::{Client, Query, segment};
use crate::error::Error;
use crate::{settings, show};

const PATH: &str = "/v1/replays";
/// Interval between two polls of a replay's progress.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

pub(super) async fn run(global: &Global, args: Replay) -> Result<ExitCode, Error> {
    let client = settings::client(global)?;
    match args {
        Replay::Start(args) => return start(global, &client, *args).await,
        Replay::List { state, limit } => {
            let mut query: Query = vec![("limit", limit.to_string())];
            query.extend(state.map(|state| ("state", state)));
            let answer = client.get(PATH, &query).await?;
            match global.json {
                true => show::line(&answer)?,
                false => show::line(table(&answer))?,
            }
        }
        Replay::Show { id, wait: true } => {
            let replay = client.get(&path(&id), &Query::new()).await?;
            return wait(global, &client, replay).await;
        }
        Replay::Show { id, wait: false } => {
            let replay = client.get(&path(&id), &Query::new()).await?;
            print(global, &replay)?;
        }
        Replay::Cancel { id } => {
            let path = path(&id);
            let cancel = client.send_json(Method::DELETE, &path, None, &[]);
            print(global, &cancel.await?)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn path(id: &str) -> String {
    format!("{PATH}/{}", segment(id))
}

async fn start(global: &Global, client: &Client, args: ReplayStart) -> Result<ExitCode, Error> {
    let request = ReplayRequest {
        filter: ledger::domain::filter::Filter {
            from_seq: args.from,
            to_seq: args.to,
            ..filter(global, &args.filter)
        },
        endpoint: args.to_endpoint,
        rate: args.rate,
    };
    let body = json!(request);
    let key: Vec<_> = args
        .key
        .into_iter()
        .map(|key| ("idempotency-key", key))
        .collect();
    let begun = client.send_json(Method::POST, PATH, Some(&body), &key);
    let replay = begun.await?;
    if args.wait {
        return wait(global, client, replay).await;
    }
    print(global, &replay)?;
    Ok(ExitCode::SUCCESS)
}

/// Shows the progress until the replay has ended.
async fn wait(global: &Global, client: &Client, mut replay: Value) -> Result<ExitCode, Error> {
    let path = path(replay["id"].as_str().unwrap_or_default());
    // Shown on a terminal only, on standard error.
    let bar = ProgressBar::new(1000).with_style(
        ProgressStyle::with_template("{bar:40} {percent}% {msg}").expect("a valid template"),
    );
    while replay["state"] == "running" {
        let progress = replay["progress"].as_f64().unwrap_or_default();
        bar.set_position((progress * 1000.0) as u64);
        let problem = replay["problem"].as_str().map(show::clean);
        bar.set_message(match problem {
            Some(problem) => format!("{} events; {problem}", replay["sent"]),
            None => format!("{} events", replay["sent"]),
        });
        tokio::time::sleep(POLL_INTERVAL).await;
        match client.get(&path, &Query::new()).await {
            Ok(now) => replay = now,
            // The replay continues without this client, and resumes with its services.
            Err(Error::Unreachable { address, .. }) => {
                bar.set_message(format!("waiting for slurm-mesh at {address}"));
            }
            Err(error) => return Err(error),
        }
    }
    bar.finish_and_clear();
    print(global, &replay)?;
    Ok(ExitCode::from(u8::from(replay["state"] != "done")))
}

fn print(global: &Global, replay: &Value) -> Result<(), Error> {
    if global.json {
        return show::line(replay);
    }
    let text = |name: &str| show::clean(replay[name].as_str().unwrap_or_default());
    let receiver = match replay["endpoint"].as_str() {
        Some(endpoint) => format!("webhook endpoint {}", show::clean(endpoint)),
        None => format!("NATS, {}", text("subject")),
    };
    let mut rows = vec![
        ("replay", text("id")),
        ("state", text("state")),
        ("requested by", text("made_by")),
        ("events", replay["filter"].to_string()),
        ("to", receiver),
        (
            "published",
            format!(
                "{} events, up to entry {} of {}",
                replay["sent"], replay["cursor"], replay["to_seq"]
            ),
        ),
    ];
    if let Some(by) = replay["cancelled_by"].as_str() {
        rows.push(("cancelled by", show::clean(by)));
    }
    if let Some(problem) = replay["problem"].as_str() {
        rows.push(("problem", show::clean(problem)));
    }
    for (name, value) in rows {
        show::line(format!("{name:<13} {value}"))?;
    }
    Ok(())
}

fn table(answer: &Value) -> String {
    let heading = ["ID", "STATE", "BY", "TO", "PUBLISHED", "DONE", "STARTED"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for replay in answer["replays"].as_array().into_iter().flatten() {
        let text = |name: &str| show::clean(replay[name].as_str().unwrap_or_default());
        let progress = replay["progress"].as_f64().unwrap_or_default();
        rows.push(vec![
            text("id"),
            text("state"),
            text("made_by"),
            show::clean(replay["endpoint"].as_str().unwrap_or("bus")),
            replay["sent"].to_string(),
            format!("{:.0}%", progress * 100.0),
            text("made_at"),
        ]);
    }
    match rows.len() {
        1 => "no replays".into(),
        _ => show::table(&rows),
    }
}
