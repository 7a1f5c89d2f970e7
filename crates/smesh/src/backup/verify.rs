//! Verifies a backup without a running mesh.

use std::path::Path;

use ledger::domain::checkpoint::Checkpoint;
use ledger::{Elsewhere, Location, RemovedAudit, TrustAnchors, VerifyReport, verify_everything};
use mesh_runtime::{Service as _, error_chain};

use super::archive::ExtractedBackup;
use super::manifest::{BackupPart, Manifest, PartContent};
use crate::error::Error;

/// What was verified.
#[derive(Debug, Default)]
pub struct Verified {
    /// The ledger; `None` if the backup has none on SQLite.
    pub ledger: Option<VerifyReport>,
    /// Parts of which only the checksum was compared.
    pub checksum_only: Vec<String>,
}

/// Verifies the extracted databases.
///
/// # Errors
/// If one is damaged, or the ledger was changed.
pub async fn databases(extracted: &ExtractedBackup) -> Result<Verified, Error> {
    let mut verified = Verified::default();
    for part in &extracted.manifest.parts {
        let path = extracted.path(part);
        match &part.content {
            PartContent::Sqlite { service } if service == ledger::LedgerService::NAME => {
                let location = Location::Sqlite(path);
                verified.ledger = Some(ledger(&location, &extracted.manifest, &[]).await?);
            }
            PartContent::Sqlite { .. } => intact(part, &path).await?,
            PartContent::Postgres { .. } => match mesh_db::backup::check_dump(&path).await {
                Err(error @ mesh_db::backup::BackupError::Start { .. }) => {
                    let reason = error_chain(&error);
                    verified
                        .checksum_only
                        .push(format!("{}: {reason}", part.path));
                }
                result => result.map_err(|error| {
                    Error::Failed(format!("{}: {}", part.path, error_chain(&error)))
                })?,
            },
            PartContent::Stream(_) | PartContent::Configuration | PartContent::Secret => {}
        }
    }
    Ok(verified)
}

/// Verifies chain, tree and checkpoints of a ledger, and that it has the newest checkpoint of the backup and others.
/// A backup has no archive files, so they may be missing. Content that an earlier version removed is reported.
///
/// # Errors
/// If it was changed, or cannot be read.
pub async fn ledger(
    location: &Location,
    manifest: &Manifest,
    others: &[Checkpoint],
) -> Result<VerifyReport, Error> {
    let mut trust = TrustAnchors {
        elsewhere: Elsewhere::All,
        removed_audit: RemovedAudit::All,
        ..TrustAnchors::default()
    };
    if let Some(note) = &manifest.checkpoint {
        let checkpoint = Checkpoint::unverified(note)
            .map_err(|error| Error::Failed(format!("manifest.json: checkpoint: {error}")))?;
        trust.checkpoints.push(checkpoint);
    }
    trust.checkpoints.extend_from_slice(others);
    let verified = verify_everything(location, &trust, |_| ()).await;
    verified.map_err(|error| Error::unverified("the ledger", error))
}

async fn intact(part: &BackupPart, path: &Path) -> Result<(), Error> {
    let found = mesh_db::damage::damage(path).await;
    match found {
        Ok(None) => Ok(()),
        Ok(Some(what)) => Err(Error::Failed(format!("{} is damaged: {what}", part.path))),
        Err(error) => Err(Error::Failed(format!(
            "{}: {}",
            part.path,
            error_chain(&error)
        ))),
    }
}
