//! Archives or erases the content of old entries. Their hashes remain, so the ledger can always be
//! verified.
//!
//! The steps, each durable before the next:
//!
//! 1. Write the archive file, read it back and verify it.
//! 2. Record the range with the file's hash, signed by the key that signs checkpoints.
//! 3. Rename the file to its final name.
//! 4. Delete the payloads, the oldest first.
//!
//! After a crash at any point, the next run continues where this one stopped. The running ledger
//! creates the audit entry from the recorded range (`retention_schedule.rs`).
//!
//! Before all of it the ledger is compared with the newest checkpoint signed on this host and the one on the bus. Of a ledger that was
//! restored to an earlier state nothing is signed, and nothing is deleted.
//!
//! A recorded range without that signature was written by another party. Nothing is deleted for it,
//! and archiving stops.
//!
//! The audit entries about archives and keys keep their payload: they prove who archived what, and
//! who replaced a key.
//!
//! No range is signed unless each of its entries is present, unchanged and old by the time of
//! observation in its body, so the ledger never signs for content that others destroyed, altered or
//! back-dated. A time of observation more than a day in the future does not count: of such an entry
//! only the time of recording decides, which nothing proves. If that is in the future, too, the
//! clock of the ledger was ahead: the entry counts as recorded when the next one was.

mod archive_files;

use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use ledger_format::chain::Hash;
use mesh_db::Location;
use tokio::sync::watch::Sender;

use self::archive_files::{io, is, lock, remove, unfit};
use crate::adapters::archive_file::PartialArchive;
use crate::adapters::{KeyFile, PayloadEraser, Store};
use crate::checkpointer::Checkpointer;
use crate::domain::archive::{StoredArchive, StoredFile, file_name, name, young};
use crate::domain::checkpoint::{Checkpoint, StoredCheckpoint};
use crate::domain::note::{PrivateKey, PublicKey};
use crate::error::Error;

/// Maximum number of entries per file, unless the next checkpoint is further away.
const MAX_ARCHIVE_ENTRIES: u64 = 1_000_000;

/// A retention request.
#[derive(Clone, Debug)]
pub struct RetentionRequest {
    /// Only entries recorded before this time.
    pub before: DateTime<Utc>,
    /// Folder for the archive files, `None` to erase.
    pub folder: Option<PathBuf>,
    /// Requesting user; empty for the configured schedule.
    pub made_by: String,
}

/// A preview of a retention run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionPlan {
    /// Last entry whose payload is already archived or erased.
    pub archived_to: u64,
    /// Last entry of this run, at a signed checkpoint.
    pub to: u64,
}

/// Result of a retention run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetentionResult {
    /// Recorded ranges.
    pub archives: Vec<StoredArchive>,
    /// Number of deleted payloads.
    pub dropped: u64,
}

/// Progress of a retention run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionProgress {
    /// Last entry written to the file.
    pub written: u64,
    /// Last entry verified in the file.
    pub checked: u64,
    /// Number of deleted payloads.
    pub dropped: u64,
}

/// Archives or erases the content of old entries.
#[derive(Clone)]
pub struct Retention {
    store: Store,
    eraser: PayloadEraser,
    key: KeyFile,
    published: Option<Checkpointer>,
}

impl Retention {
    /// Creates the retention of an open ledger. It needs a role that may delete payloads, and the
    /// key that signs the ledger's checkpoints.
    pub fn new(store: Store, location: &Location, key: KeyFile) -> Self {
        let eraser = PayloadEraser::connect(location);
        Self {
            store,
            eraser,
            key,
            published: None,
        }
    }

    /// Compares the ledger with its published checkpoints as well, which this checkpointer reads.
    #[must_use]
    pub fn compared_by(mut self, checkpointer: Checkpointer) -> Self {
        self.published = Some(checkpointer);
        self
    }

    /// Checks that the ledger has all entries that were signed.
    async fn check_not_set_back(&self) -> Result<(), Error> {
        if let Some(note) = self.key.last_note()? {
            let signed = Checkpoint::unverified(&note).map_err(|error| Error::KeyUnfit {
                path: self.key.path().to_owned(),
                fault: format!("the newest note beside it: {error}"),
            })?;
            let (entries, signed) = (self.store.head().await?.seq, signed.size);
            if entries < signed {
                return Err(Error::NotRetained { entries, signed });
            }
        }
        let Some(checkpointer) = &self.published else {
            return Ok(());
        };
        let compared = checkpointer.check_published_checkpoints().await;
        compared.map_err(|error| match error {
            Error::SetBack { entries, signed } => Error::NotRetained { entries, signed },
            other => other,
        })
    }

    /// Computes what a run would do.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn plan(&self, before: DateTime<Utc>) -> Result<RetentionPlan, Error> {
        let archived_to = self.store.archived_to().await?;
        let last = self.store.last_before(&young(before, Utc::now())).await?;
        let end = self.store.checkpoint_to_end_with(archived_to, last, last);
        let to = end
            .await?
            .map_or(archived_to, |end| end.size.unsigned_abs());
        Ok(RetentionPlan { archived_to, to })
    }

    /// Archives or erases, after completing an interrupted run.
    ///
    /// # Errors
    /// [`Error::NotRetained`] if more entries were signed than the ledger has. If an entry or file
    /// cannot be read, written or deleted: completed ranges remain, and the next run continues.
    pub async fn run(
        &self,
        request: &RetentionRequest,
        progress: &Sender<RetentionProgress>,
    ) -> Result<RetentionResult, Error> {
        self.check_not_set_back().await?;
        let mut done = RetentionResult::default();
        // Once, so that what is selected is what the checks accept.
        let young = young(request.before, Utc::now());
        let last = self.store.last_before(&young).await?;
        loop {
            let partial = match &request.folder {
                Some(folder) => Some(lock(folder)?),
                None => None,
            };
            let checked = self.store.checked_archives(0).await?;
            let archives = checked
                .iter()
                .map(|one| one.authentic().cloned())
                .collect::<Result<Vec<_>, _>>()?;
            let partial = self.settle(&archives, partial).await?;
            let archived_to = archives.last().map_or(0, |last| last.last_seq);
            done.dropped += self.drop_all(archived_to, progress).await?;
            let number = archives.last().map_or(1, |last| last.number + 1);
            let from = archives.last().map_or(1, |last| last.last_seq + 1);
            let end = self
                .store
                .checkpoint_to_end_with((from - 1).unsigned_abs(), MAX_ARCHIVE_ENTRIES, last)
                .await?;
            let Some(end) = end else {
                if let Some(partial) = partial {
                    remove(&partial);
                }
                return Ok(done);
            };
            let mut archive = StoredArchive {
                number,
                first_seq: from,
                last_seq: end.size,
                file: None,
                signed_by: String::new(),
                made_at: Utc::now().timestamp_micros(),
                made_by: request.made_by.clone(),
                ids: self.store.ids_of(from, end.size).await?,
                note: None,
            };
            let keys = self.keys().await?;
            // Checked before anything is written.
            let key = self.signing_key(&keys)?;
            let root;
            (archive.signed_by, root) = signer(&end, &keys)?;
            if let Some(partial) = &partial {
                let path = partial.path().with_file_name(name(from, end.size));
                if path.exists() {
                    return Err(unfit(
                        &path,
                        "it exists already, but this ledger has no record of it; move it elsewhere",
                    ));
                }
                let written = self.write_archive(&archive, &end, &keys, partial, &young, progress);
                let checked = match written.await {
                    Ok(checked) => checked,
                    Err(error) => {
                        // Delete the partial file, to free the disk space.
                        remove(partial);
                        return Err(error);
                    }
                };
                let path = std::path::absolute(&path).unwrap_or(path);
                archive.file = Some(StoredFile {
                    path: path.to_string_lossy().into_owned(),
                    sha256: checked.sha256,
                    bytes: checked.bytes,
                });
            } else {
                self.check_due(&archive, &young).await?;
            }
            let note = archive.range(root).sign(&key);
            archive.note = Some(note.map_err(|error| Error::Unsigned(error.to_string()))?);
            let vkey = key.public().to_string();
            self.eraser.note(&archive, &vkey).await?;
            tracing::info!(
                first_seq = archive.first_seq,
                last_seq = archive.last_seq,
                file = archive.file.as_ref().map(|file| file.path.as_str()),
                "old payloads archived or erased"
            );
            if let (Some(partial), Some(file)) = (partial, &archive.file) {
                let path = Path::new(&file.path);
                partial.rename(path).map_err(io(path))?;
            }
            done.archives.push(archive);
        }
    }

    /// Completes an interrupted run: every file whose range still has payloads must exist with the
    /// recorded hash.
    async fn settle(
        &self,
        archives: &[StoredArchive],
        partial: Option<PartialArchive>,
    ) -> Result<Option<PartialArchive>, Error> {
        let Some(first) = self.store.first_undropped().await? else {
            return Ok(partial);
        };
        let mut partial = partial;
        for archive in archives {
            let Some(file) = &archive.file else { continue };
            if archive.last_seq < first {
                continue;
            }
            let noted = PathBuf::from(&file.path);
            let mut places = vec![noted.clone()];
            if let Some(partial) = &partial {
                places.push(partial.path().with_file_name(file_name(&file.path)));
            }
            let mut found = false;
            for place in &places {
                found = found || is(place, file).await?;
            }
            if found {
                continue;
            }
            // The process was killed before it renamed the file.
            match partial.take() {
                Some(left) if is(&left.path(), file).await? => {
                    let path = left.path().with_file_name(file_name(&file.path));
                    let folder = path.parent().unwrap_or(Path::new(".")).to_owned();
                    left.rename(&path).map_err(io(&path))?;
                    partial = Some(lock(&folder)?);
                }
                _ => {
                    return Err(unfit(
                        &noted,
                        "the recorded archive is missing or changed; its payloads stay in the database until it is restored",
                    ));
                }
            }
        }
        Ok(partial)
    }

    async fn drop_all(
        &self,
        archived_to: i64,
        progress: &Sender<RetentionProgress>,
    ) -> Result<u64, Error> {
        let mut dropped = 0;
        if self.store.first_undropped().await?.is_none() {
            return Ok(dropped);
        }
        let permanent = self.store.permanent_entries().await?;
        loop {
            let some = self.eraser.drop_some(archived_to, &permanent).await?;
            if some == 0 {
                break;
            }
            dropped += some;
            progress.send_modify(|progress| progress.dropped += some);
        }
        self.eraser.purge_copies().await?;
        Ok(dropped)
    }

    async fn keys(&self) -> Result<Vec<PublicKey>, Error> {
        let keys = self.store.checkpoint_keys().await?;
        Ok(keys
            .iter()
            .filter_map(|key| key.vkey.parse().ok())
            .collect())
    }

    /// Returns the key that currently signs the ledger's checkpoints.
    fn signing_key(&self, keys: &[PublicKey]) -> Result<PrivateKey, Error> {
        let file = self.key.path().display();
        let newest = keys.last().map(PublicKey::label).unwrap_or_default();
        match self.key.read()? {
            Some(key) if keys.last() == Some(&key.public()) => Ok(key),
            Some(key) => Err(Error::Unsigned(format!(
                "the current signing key is {newest}, but {file} has {}",
                key.public().label()
            ))),
            None => Err(Error::Unsigned(format!(
                "the signing key {newest} is not in {file}: run the command on the host that has it"
            ))),
        }
    }

    /// Closes its connections.
    pub async fn close(&self) {
        self.eraser.close().await;
    }
}

/// Returns the key that signed a checkpoint, and its root.
fn signer(end: &StoredCheckpoint, keys: &[PublicKey]) -> Result<(String, Hash), Error> {
    let inconsistent = |why: String| {
        Error::Inconsistent(format!(
            "the checkpoint of {} entries differs from the signed one: {why}",
            end.size
        ))
    };
    let (checkpoint, signed_by) =
        Checkpoint::open(&end.note, keys).map_err(|error| inconsistent(error.to_string()))?;
    if checkpoint.size.cast_signed() != end.size {
        return Err(inconsistent("it counts other entries".to_owned()));
    }
    let key = signed_by.first().map(|key| key.to_string());
    Ok((key.unwrap_or_default(), checkpoint.root))
}
