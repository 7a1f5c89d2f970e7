//! `smesh verify`: recomputes chain and tree of the ledger, and compares them with signed checkpoints.

mod cosignatures;
mod export;
mod published;
mod report;

use std::path::Path;
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use ledger::adapters::KeyFile;
use ledger::domain::checkpoint::Checkpoint;
use ledger::domain::keys;
use ledger::domain::note::PublicKey;
use ledger::{
    Class, Elsewhere, Fault, Location, PUBLISHED, RemovedAudit, Store, TrustAnchors,
    UnverifiedLedger, VerifyError, VerifyProgress, VerifyReport,
};
use tokio_util::sync::CancellationToken;

use self::report::{FailedComparison, VerificationResult};
use crate::cli::{self, Global};
use crate::error::Error;
use crate::{settings, show};

pub(super) async fn run(global: &Global, args: cli::Verify) -> Result<ExitCode, Error> {
    let result = verify(global, &args).await?;
    let uncosigned = match (&result, args.cosignatures) {
        (Ok(_), Some(required)) => cosignatures::missing(global, &args, required).await?,
        _ => None,
    };
    let outcome = match (result, uncosigned) {
        (Err(lie), _) => VerificationResult::FailedComparison(lie),
        (Ok(report), Some(reason)) => VerificationResult::Uncosigned { report, reason },
        (Ok(report), None) => VerificationResult::of(report, !args.key.is_empty()),
    };
    outcome.show(global.json)
}

/// Location of the database to verify.
fn location(global: &Global, file: Option<&Path>) -> Result<Location, Error> {
    if let Some(path) = file {
        return Ok(Location::Sqlite(path.to_owned()));
    }
    let context = settings::load(global, CancellationToken::new())?;
    let config: ledger::Config = context.section("ledger")?;
    let failed = |error: ledger::Error| Error::Failed(mesh_runtime::error_chain(&error));
    match config.reader().map_err(failed)? {
        Some(reader) => Ok(reader),
        None => config.database(&context.mesh.data_dir).map_err(failed),
    }
}

async fn verify(
    global: &Global,
    args: &cli::Verify,
) -> Result<Result<VerifyReport, FailedComparison>, Error> {
    let trust = trust(args)?;
    let bar = ProgressBar::new(0).with_style(bar_style());
    let result = if args.remote {
        export::remote(global, &trust, &bar).await
    } else if let Some(path) = &args.export {
        export::file(path, &trust, &bar)
    } else {
        database(global, args, trust, &bar).await
    };
    bar.finish_and_clear();
    result
}

async fn database(
    global: &Global,
    args: &cli::Verify,
    mut trust: TrustAnchors,
    bar: &ProgressBar,
) -> Result<Result<VerifyReport, FailedComparison>, Error> {
    let failed = |error: ledger::Error| Error::Failed(mesh_runtime::error_chain(&error));
    let (location, writable, configured) = match &args.database {
        Some(path) => {
            let location = Location::Sqlite(path.clone());
            (location.clone(), location, None)
        }
        None => {
            let context = settings::load(global, CancellationToken::new())?;
            let config: ledger::Config = context.section("ledger")?;
            // Anyone who can write to the database may delete checkpoints from it, but not the last one signed on this host.
            let key = KeyFile::new(config.checkpoint.key_file(&context.mesh.data_dir));
            if let Some(note) = key.last_note().map_err(failed)? {
                let last = Checkpoint::unverified(&note).map_err(|error| {
                    let (file, error) = (key.path().display(), mesh_runtime::error_chain(&error));
                    Error::Failed(format!("{file}.last: {error}"))
                })?;
                trust.newest = Some(last);
            }
            let database = config.database(&context.mesh.data_dir).map_err(failed)?;
            let reader = config.reader().map_err(failed)?;
            let origin = config.checkpoint.origin(&context.mesh.cluster);
            (
                reader.unwrap_or_else(|| database.clone()),
                database,
                Some((context, origin)),
            )
        }
    };
    let unread = |error: VerifyError| Error::unverified(&format!("verify {location}"), error);
    let lie_or = |error: VerifyError| match FailedComparison::of(&error) {
        Some(lie) => Ok(Err(lie)),
        None => Err(unread(error)),
    };
    let ledger = UnverifiedLedger::open(&location).map_err(unread)?;
    let progress = |progress: VerifyProgress| {
        bar.set_length(progress.of);
        bar.set_position(progress.verified);
    };
    let mut result = ledger.verify_everything(&trust, progress).await;
    if args.repair
        && matches!(&result, Err(VerifyError::Invalid(bad)) if bad.what == Fault::SubtreeDiffers)
    {
        repair_subtrees(&writable).await?;
        if !global.json {
            show::line("stored subtrees were not those of the entries: they were rebuilt")?;
        }
        result = ledger.verify_everything(&trust, progress).await;
    }
    let mut report = match result {
        Ok(report) => report,
        Err(error) => return lie_or(error),
    };
    if configured.is_none() {
        report.classes.push(Class {
            name: PUBLISHED,
            unchecked: Some(
                "a file alone is not compared with NATS: verify without --database".to_owned(),
            ),
        });
    }
    if let Some((context, configured)) = &configured {
        let store = Store::connect(&location, None, 1).map_err(failed)?;
        let keys = store.checkpoint_keys().await;
        store.close().await;
        // A ledger that continues under another origin lacks some checkpoints of the former one. The report says so.
        let origin = keys::origin(&keys.map_err(failed)?, configured);
        if let Err(error) = published::compare(context, &origin, &ledger, &mut report).await {
            return lie_or(error);
        }
    }
    ledger.close().await;
    Ok(Ok(report))
}

/// Needs write access, which verifying does not use.
async fn repair_subtrees(location: &Location) -> Result<(), Error> {
    let failed = |error: ledger::Error| Error::Failed(mesh_runtime::error_chain(&error));
    let store = Store::connect(location, None, 1).map_err(failed)?;
    let repaired = ledger::checkpointer::repair_subtrees(&store).await;
    store.close().await;
    repaired.map_err(failed)
}

/// Keys and checkpoints from the command line.
fn trust(args: &cli::Verify) -> Result<TrustAnchors, Error> {
    let mut keys: Vec<PublicKey> = Vec::new();
    for key in &args.key {
        let text = match std::fs::read_to_string(key) {
            Ok(text) => text,
            Err(_) => key.clone(),
        };
        keys.extend(PublicKey::parse_all(&text).map_err(|error| {
            Error::Usage(format!(
                "--key {key}: neither a file of public keys nor one: {error}"
            ))
        })?);
    }
    let mut checkpoints = Vec::new();
    for path in &args.checkpoint {
        let note = std::fs::read_to_string(path)
            .map_err(|source| Error::io("read checkpoint", path, source))?;
        // Without a key, the checkpoint is trusted because the user stored it.
        let checkpoint = match keys.as_slice() {
            [] => Checkpoint::unverified(&note),
            keys => Checkpoint::open(&note, keys).map(|(checkpoint, _)| checkpoint),
        };
        checkpoints.push(checkpoint.map_err(|error| {
            Error::Failed(format!(
                "--checkpoint {}: {}",
                path.display(),
                mesh_runtime::error_chain(&error)
            ))
        })?);
    }
    Ok(TrustAnchors {
        keys,
        checkpoints,
        archives: args.archive.clone(),
        elsewhere: Elsewhere::Names(args.elsewhere.clone()),
        removed_audit: RemovedAudit::Named(args.removed.clone()),
        ..TrustAnchors::default()
    })
}

/// Shown on a terminal only, as indicatif does by default.
fn bar_style() -> ProgressStyle {
    ProgressStyle::with_template("{bar:40} {percent}% {pos}/{len} entries, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}
