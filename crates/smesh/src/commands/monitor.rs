//! `smesh ledger monitor` and `accept`: check repeatedly that a ledger continues the history it showed before.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use chrono::Utc;
use ledger::domain::checkpoint::Checkpoint;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{Global, LedgerMonitor};
use crate::client::Client;
use crate::error::Error;
use crate::known::{self, KnownLedger, KnownLedgers, Seen};
use crate::{settings, show};

pub(super) async fn run(global: &Global, args: &LedgerMonitor) -> Result<ExitCode, Error> {
    let stop =
        |kind| signal(kind).map_err(|source| Error::io("wait for signals of", "monitor", source));
    let (mut interrupt, mut terminate) = (
        stop(SignalKind::interrupt())?,
        stop(SignalKind::terminate())?,
    );
    tokio::select! {
        ended = follow(global, args) => ended,
        _ = interrupt.recv() => Ok(ExitCode::SUCCESS),
        _ = terminate.recv() => Ok(ExitCode::SUCCESS),
    }
}

async fn follow(global: &Global, args: &LedgerMonitor) -> Result<ExitCode, Error> {
    let client = settings::client(global)?;
    let file = file()?;
    loop {
        match known::check_latest(&client, &file).await {
            Ok(Seen::Contradiction {
                reason,
                known,
                latest,
            }) => {
                write_metrics(args.metrics.as_deref(), Some(&known), true)?;
                let reported = report(&client, &known).await;
                let alert = json!({
                    "contradicted": true, "reason": reason, "seen": known.checkpoint, "shown": latest,
                    "reported": reported.is_ok(),
                });
                if global.json {
                    show::line(alert)?;
                } else {
                    show::line(format!("earlier:\n{}", show::clean(&known.checkpoint)))?;
                    show::line(format!("current:\n{}", show::clean(&latest)))?;
                    if let Err(error) = reported {
                        let error = mesh_runtime::error_chain(&error);
                        show::line(format!("not reported to the ledger: {error}"))?;
                    }
                }
                return Err(known::refusal(&client, &file, &reason, &known));
            }
            Ok(Seen::Known(known)) => {
                write_metrics(args.metrics.as_deref(), Some(&known), false)?;
                print_state(global, &known.checkpoint)?;
            }
            Ok(Seen::Nothing) if args.once => show::line("there is no checkpoint yet")?,
            Err(error) if args.once => return Err(error),
            Ok(Seen::Nothing) => {}
            // The ledger may recover. Meanwhile the metric of the last success grows old.
            Err(error) => show::line(format!("retrying: {}", mesh_runtime::error_chain(&error)))?,
        }
        if args.once {
            return Ok(ExitCode::SUCCESS);
        }
        tokio::time::sleep(args.interval).await;
    }
}

fn print_state(global: &Global, note: &str) -> Result<(), Error> {
    let Ok(Checkpoint { origin, size, root }) = Checkpoint::unverified(note) else {
        return Ok(());
    };
    let root = hex::encode(root);
    if global.json {
        return show::line(
            json!({ "contradicted": false, "origin": origin, "size": size, "root": root }),
        );
    }
    show::line(format!(
        "{} {size} entries, root {root}",
        show::clean(&origin)
    ))
}

/// Reports a contradiction to the service. The service records it in the audit if one of its keys signed it and it is a real
/// contradiction.
async fn report(client: &Client, known: &KnownLedger) -> Result<Value, Error> {
    let seen = json!({ "checkpoint": known.checkpoint });
    let path = "/v1/ledger/contradictions";
    client.send_json(Method::POST, path, Some(&seen), &[]).await
}

/// Writes a file for node_exporter's textfile collector.
fn write_metrics(
    path: Option<&Path>,
    known: Option<&KnownLedger>,
    contradicted: bool,
) -> Result<(), Error> {
    let Some(path) = path else { return Ok(()) };
    let checkpoint = known.and_then(|known| Checkpoint::unverified(&known.checkpoint).ok());
    let (origin, size) = checkpoint.map_or_else(Default::default, |one| (one.origin, one.size));
    let origin = origin.replace('\\', "\\\\").replace('"', "\\\"");
    let mut text = String::new();
    for (name, help, value) in [
        (
            "smesh_ledger_monitor_contradicted",
            "1 if the ledger contradicts an earlier checkpoint: act.",
            i64::from(contradicted),
        ),
        (
            "smesh_ledger_monitor_checkpoint_size",
            "Number of entries of the newest checkpoint seen.",
            size.cast_signed(),
        ),
        (
            "smesh_ledger_monitor_compared_seconds",
            "Time of the last comparison, in seconds since 1970.",
            Utc::now().timestamp(),
        ),
    ] {
        let labels = format!("{{origin=\"{origin}\"}}");
        let written = writeln!(
            text,
            "# HELP {name} {help}\n# TYPE {name} gauge\n{name}{labels} {value}"
        );
        written.map_err(|error| Error::Failed(error.to_string()))?;
    }
    let new = path.with_extension("new");
    std::fs::write(&new, text)
        .and_then(|()| std::fs::rename(&new, path))
        .map_err(|source| Error::io("write", path, source))
}

/// Trusts the present state of the ledger instead of the known one.
pub(super) async fn accept(global: &Global, origin: &str) -> Result<(), Error> {
    let client = settings::client(global)?;
    let file = file()?;
    let address = client.address().to_string();
    let Seen::Known(latest) = known::latest_unchecked(&client).await? else {
        return Err(Error::Failed("there is no checkpoint yet".to_owned()));
    };
    let checkpoint = Checkpoint::unverified(&latest.checkpoint)
        .map_err(|error| Error::Answer(error.to_string()))?;
    if checkpoint.origin != origin {
        return Err(Error::Failed(format!(
            "the ledger at {address} is {}, not {origin}",
            checkpoint.origin
        )));
    }
    if let Some(known) = file.read()?.at(&address) {
        show::line(format!("no more:\n{}", show::clean(&known.checkpoint)))?;
    }
    file.store(&address, &latest, true)?;
    show::line(format!("from now on:\n{}", show::clean(&latest.checkpoint)))
}

fn file() -> Result<KnownLedgers, Error> {
    KnownLedgers::of_user().ok_or_else(|| {
        let variable = known::FILE_VARIABLE;
        Error::Failed(format!(
            "$HOME is not set: set {variable} to the file for the checkpoints that were seen"
        ))
    })
}
