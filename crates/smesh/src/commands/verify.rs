//! `smesh verify`: the chain of the ledger, computed again.

use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use ledger::{Location, VerifyError, verify_database};
use tokio_util::sync::CancellationToken;

use crate::cli::{self, Global};
use crate::error::Error;
use crate::{settings, show};

pub(super) async fn run(global: &Global, args: cli::Verify) -> Result<ExitCode, Error> {
    let location = match args.database {
        Some(path) => Location::Sqlite(path),
        None => {
            let context = settings::load(global, CancellationToken::new())?;
            let config: ledger::Config = context.section("ledger")?;
            let failed = |error: ledger::Error| Error::Failed(error.to_string());
            match config.reader().map_err(failed)? {
                Some(reader) => reader,
                None => config.database(&context.mesh.data_dir).map_err(failed)?,
            }
        }
    };
    let bar = ProgressBar::new(0).with_style(bar_style());
    let result = verify_database(&location, |progress| {
        bar.set_length(progress.of);
        bar.set_position(progress.verified);
    })
    .await;
    bar.finish_and_clear();
    match result {
        Ok(verified) => {
            let head = hex::encode(verified.head);
            if global.json {
                show::line(
                    serde_json::json!({ "verified": true, "entries": verified.count, "head": head }),
                )?;
            } else {
                show::line(format!(
                    "{} entries are as they were written; head {head}",
                    verified.count
                ))?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Err(VerifyError::Bad(bad)) => {
            if global.json {
                show::line(
                    serde_json::json!({ "verified": false, "first_bad_sequence": bad.seq, "reason": bad.what.to_string() }),
                )?;
            } else {
                show::line(format!(
                    "the ledger was changed: the first bad entry is {bad}"
                ))?;
            }
            Ok(ExitCode::FAILURE)
        }
        Err(error) => Err(Error::Failed(format!(
            "verify {location}: {}",
            mesh_runtime::chain(&error)
        ))),
    }
}

/// Shown on a terminal only; indicatif sees to that.
fn bar_style() -> ProgressStyle {
    ProgressStyle::with_template("{bar:40} {percent}% {pos}/{len} entries, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}
