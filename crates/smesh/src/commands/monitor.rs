//! `smesh ledger monitor` and `accept`: check repeatedly that a ledger continues the history it showed before, and the one that it
//! published.

mod metrics;
mod published;

use std::process::ExitCode;

use ledger::domain::checkpoint::Checkpoint;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use self::published::Follower;
use crate::cli::{Global, LedgerMonitor};
use crate::client::UnguardedClient;
use crate::error::Error;
use crate::known_ledgers::published::Compared;
use crate::known_ledgers::{self, KnownLedger, KnownLedgers, LedgerComparison};
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
    let mut monitor = Monitor {
        global,
        args,
        client: settings::client(global)?.unguarded(),
        file: file()?,
        published: match args.api_only {
            true => None,
            false => Some(Follower::new(global)?),
        },
    };
    loop {
        match monitor.check().await {
            Ok(Check::Done) => {}
            Ok(Check::Contradicted(alert)) => return Err(alert),
            Err(error) if args.once => return Err(error),
            // The ledger may recover. Meanwhile the metric of the last success grows old.
            Err(error) => show::line(format!("retrying: {}", mesh_runtime::error_chain(&error)))?,
        }
        if args.once {
            return Ok(ExitCode::SUCCESS);
        }
        tokio::time::sleep(args.interval).await;
    }
}

struct Monitor<'a> {
    global: &'a Global,
    args: &'a LedgerMonitor,
    client: UnguardedClient,
    file: KnownLedgers,
    /// `None` if only the API is compared.
    published: Option<Follower>,
}

/// Result of a check.
enum Check {
    Done,
    /// Reported; the error names the contradiction.
    Contradicted(Error),
}

/// A checkpoint that the ledger contradicts.
struct Contradiction<'a> {
    source: &'static str,
    reason: &'a str,
    /// The contradicted note.
    seen: &'a str,
    /// The ledger's present note.
    shown: &'a str,
}

impl Monitor<'_> {
    /// Compares the ledger with its stored state, then with what it published.
    async fn check(&mut self) -> Result<Check, Error> {
        match known_ledgers::check_latest(&self.client, &self.file).await? {
            LedgerComparison::Contradiction {
                reason,
                known,
                latest,
            } => {
                let found = Contradiction {
                    source: "api",
                    reason: &reason,
                    seen: &known.checkpoint,
                    shown: &latest,
                };
                self.alert(&known, &found).await?;
                let alert = known_ledgers::refusal(&self.client, &self.file, &reason, &known);
                Ok(Check::Contradicted(alert))
            }
            LedgerComparison::Known(known) => self.check_published(known).await,
            LedgerComparison::Nothing => {
                if self.args.once {
                    show::line("there is no checkpoint yet")?;
                }
                Ok(Check::Done)
            }
        }
    }

    async fn check_published(&mut self, known: KnownLedger) -> Result<Check, Error> {
        let compared = match &mut self.published {
            None => None,
            Some(published) => Some(published.compare(&self.client, &self.file).await),
        };
        match compared.transpose() {
            Ok(Some(Compared::Contradiction {
                reason,
                known,
                published,
            })) => {
                let found = Contradiction {
                    source: "published",
                    reason: &reason,
                    seen: &published,
                    shown: &known.checkpoint,
                };
                self.alert(&known, &found).await?;
                let (client, file) = (&self.client, &self.file);
                let alert = known_ledgers::published::refusal(client, file, &reason, &known);
                return Ok(Check::Contradicted(alert));
            }
            Ok(Some(Compared::Consistent { ignored, .. })) => {
                for ignored in ignored {
                    anstream::eprintln!("{}", show::clean(&ignored));
                }
            }
            Ok(None) => {}
            // What the API says was compared.
            Err(error) => {
                self.write_metrics(&known, false)?;
                return Err(error);
            }
        }
        self.write_metrics(&known, false)?;
        self.print_state(&known.checkpoint)?;
        Ok(Check::Done)
    }

    fn write_metrics(&self, known: &KnownLedger, contradicted: bool) -> Result<(), Error> {
        let progress = self.published.as_ref().map(|published| &published.progress);
        let path = self.args.metrics.as_deref();
        metrics::write(path, Some(known), progress, contradicted)
    }

    /// Sets the metric, reports the contradiction to the ledger, and prints both checkpoints.
    async fn alert(&self, known: &KnownLedger, found: &Contradiction<'_>) -> Result<(), Error> {
        self.write_metrics(known, true)?;
        let reported = report(&self.client, found.seen).await;
        if self.global.json {
            return show::line(json!({
                "contradicted": true, "source": found.source, "reason": found.reason, "seen": found.seen, "shown": found.shown,
                "reported": reported.is_ok(),
            }));
        }
        show::line(format!("earlier:\n{}", show::clean(found.seen)))?;
        show::line(format!("current:\n{}", show::clean(found.shown)))?;
        if let Err(error) = reported {
            let error = mesh_runtime::error_chain(&error);
            show::line(format!("not reported to the ledger: {error}"))?;
        }
        Ok(())
    }

    fn print_state(&self, note: &str) -> Result<(), Error> {
        let Ok(Checkpoint { origin, size, root }) = Checkpoint::unverified(note) else {
            return Ok(());
        };
        let root = hex::encode(root);
        let published = self
            .published
            .as_ref()
            .and_then(|followed| followed.progress.size);
        if self.global.json {
            return show::line(json!({
                "contradicted": false, "origin": origin, "size": size, "root": root, "published_size": published,
            }));
        }
        let published = match published {
            None => String::new(),
            Some(size) => format!(", published up to {size} entries"),
        };
        show::line(format!(
            "{} {size} entries, root {root}{published}",
            show::clean(&origin)
        ))
    }
}

/// Reports a contradicted checkpoint to the service. The service records it in the audit if one of its keys signed it and it is a real
/// contradiction.
async fn report(client: &UnguardedClient, note: &str) -> Result<Value, Error> {
    let seen = json!({ "checkpoint": note });
    let path = "/v1/ledger/contradictions";
    client.send_json(Method::POST, path, Some(&seen), &[]).await
}

/// Trusts the present state of the ledger instead of the known one.
pub(super) async fn accept(global: &Global, origin: &str) -> Result<(), Error> {
    let client = settings::client(global)?.unguarded();
    let file = file()?;
    let address = client.address().to_string();
    let LedgerComparison::Known(latest) = known_ledgers::latest_unchecked(&client).await? else {
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
    file.accept_published(&latest)?;
    show::line(format!("from now on:\n{}", show::clean(&latest.checkpoint)))
}

fn file() -> Result<KnownLedgers, Error> {
    KnownLedgers::of_user().ok_or_else(|| {
        let variable = known_ledgers::FILE_VARIABLE;
        Error::Failed(format!(
            "$HOME is not set: set {variable} to the file for the checkpoints that were seen"
        ))
    })
}
