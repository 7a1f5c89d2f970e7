//! `smesh hooks flush`: delivers the backlog, once or continuously.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use mesh_hook::flush::Flushed;
use mesh_hook::sender;
use rand::RngExt as _;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{FlushHooks, Global};
use crate::error::Error;
use crate::show;

/// How long one flush may take.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest pause while NATS is unavailable.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

pub(super) async fn run(global: &Global, args: FlushHooks) -> Result<ExitCode, Error> {
    let path = super::hook_config(global, args.hook_config.as_deref());
    if args.watch {
        return watch(&path, args.interval).await;
    }
    let flushed = once(path, true).await?;
    if global.json {
        show::line(json!({
            "delivered": flushed.delivered,
            "stay": flushed.remaining,
            "refused": flushed.refused,
            "reason": flushed.reason,
            "lines": flushed.lines,
        }))?;
    } else {
        show::line(show::clean(&flushed.to_string()))?;
    }
    Ok(if flushed.is_all() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Reads the configuration each time, because `smesh up` writes a new password at every start.
async fn once(path: PathBuf, with_refused: bool) -> Result<Flushed, Error> {
    tokio::task::spawn_blocking(move || {
        let config = mesh_hook::Config::load(&path).map_err(Error::Hooks)?;
        sender::flush(&config, FLUSH_TIMEOUT, with_refused)
            .map_err(|error| Error::Failed(error.to_string()))
    })
    .await
    .map_err(|error| Error::Failed(error.to_string()))?
}

async fn watch(path: &Path, interval: Duration) -> Result<ExitCode, Error> {
    let stop = |kind| signal(kind).map_err(|source| Error::io("wait for signals of", path, source));
    let (mut term, mut int) = (
        stop(SignalKind::terminate())?,
        stop(SignalKind::interrupt())?,
    );
    let mut pause = interval;
    // Prints one line per change of state.
    let mut failing = false;
    let mut lines = None;
    // Refused doorbells are retried from time to time, because the missing permission may have been granted.
    let mut retried_at = None;
    loop {
        let with_refused = retried_at.is_none_or(|at: Instant| at.elapsed() >= LONGEST_PAUSE);
        if with_refused {
            retried_at = Some(Instant::now());
        }
        match once(path.to_owned(), with_refused).await {
            Ok(flushed) => {
                if failing {
                    anstream::eprintln!(
                        "NATS accepts doorbells again; {} spooled ones delivered",
                        flushed.delivered
                    );
                }
                if flushed.lines != lines
                    && let Some(problem) = &flushed.lines
                {
                    anstream::eprintln!("lines of Lua plugins not read: {problem}");
                }
                lines = flushed.lines;
                (failing, pause) = (false, interval);
            }
            Err(error) => {
                if !failing {
                    anstream::eprintln!(
                        "doorbells not delivered: {}; retrying",
                        mesh_runtime::error_chain(&error)
                    );
                }
                failing = true;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
        let jittered = pause.mul_f64(rand::rng().random_range(0.8..1.2));
        tokio::select! {
            () = tokio::time::sleep(jittered) => {}
            _ = term.recv() => return Ok(ExitCode::SUCCESS),
            _ = int.recv() => return Ok(ExitCode::SUCCESS),
        }
    }
}
