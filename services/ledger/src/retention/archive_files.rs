//! Writes and reads archive files, and checks each entry that goes into one or is erased.

use std::ops::RangeInclusive;
use std::path::Path;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use tokio::sync::watch::Sender;

use super::{Retention, RetentionProgress};
use crate::adapters::ArchiveFileError;
use crate::adapters::archive_file::{self, ArchiveWriter, PartialArchive, VerifiedArchive};
use crate::domain::archive::{StoredArchive, StoredFile};
use crate::domain::checkpoint::StoredCheckpoint;
use crate::domain::export::ExportLine;
use crate::domain::note::PublicKey;
use crate::domain::record::Record;
use crate::domain::verify::{LeafContent, StoredEntry};
use crate::error::Error;

impl Retention {
    /// Writes an archive file and reads it back.
    pub(super) async fn write_archive(
        &self,
        archive: &StoredArchive,
        end: &StoredCheckpoint,
        keys: &[PublicKey],
        partial: &PartialArchive,
        young: &RangeInclusive<DateTime<Utc>>,
        progress: &Sender<RetentionProgress>,
    ) -> Result<VerifiedArchive, Error> {
        let path = partial.path();
        let from = archive.first_seq.unsigned_abs();
        let to = archive.last_seq.unsigned_abs();
        let header = self.store.export_header(from, end.note.clone()).await?;
        let mut writer = partial.write().map_err(io(&path))?;
        writer = write(writer, vec![header]).await.map_err(io(&path))?;
        let mut after = from - 1;
        while after < to {
            let mut lines = Vec::new();
            for entry in self.store.entries(after, to).await? {
                let seq = entry.seq;
                let corrupt = |_| Error::Corrupt { seq };
                check_due(&entry, young)?;
                lines.push(ExportLine::of(entry).map_err(corrupt)?);
                after = seq.unsigned_abs();
            }
            if lines.is_empty() {
                return Err(Error::Corrupt {
                    seq: (after + 1).cast_signed(),
                });
            }
            writer = write(writer, lines).await.map_err(io(&path))?;
            progress.send_modify(|progress| progress.written = after);
        }
        let finish = move || writer.finish();
        blocking(finish).await.map_err(io(&path))?;
        let (first, last, keys) = (archive.first_seq, archive.last_seq, keys.to_vec());
        let (read, progress) = (path.clone(), progress.clone());
        let check = move || {
            let seen = |seq: i64| {
                progress.send_modify(|progress| progress.checked = seq.unsigned_abs());
            };
            Ok(archive_file::check(&read, first, last, &keys, seen))
        };
        let checked = blocking(check).await.map_err(io(&path))?;
        checked.map_err(file_error(&path))
    }

    /// Checks all entries of a range to erase.
    pub(super) async fn check_due(
        &self,
        archive: &StoredArchive,
        young: &RangeInclusive<DateTime<Utc>>,
    ) -> Result<(), Error> {
        let mut after = archive.first_seq.unsigned_abs() - 1;
        let to = archive.last_seq.unsigned_abs();
        while after < to {
            let entries = self.store.entries(after, to).await?;
            let Some(last) = entries.last() else {
                return Err(Error::Corrupt {
                    seq: (after + 1).cast_signed(),
                });
            };
            after = last.seq.unsigned_abs();
            for entry in &entries {
                check_due(entry, young)?;
            }
        }
        Ok(())
    }
}

/// Checks that an entry is present, unchanged and not young. The leaf proves the body and the time
/// of observation in it, but not the column `recorded_at`.
fn check_due(entry: &StoredEntry, young: &RangeInclusive<DateTime<Utc>>) -> Result<(), Error> {
    let corrupt = || Error::Corrupt { seq: entry.seq };
    let payload = entry.payload.as_ref().ok_or_else(corrupt)?;
    let unchanged = matches!(entry.hashed().content, LeafContent::Leaf(leaf) if entry.leaf == leaf);
    let subject = String::from_utf8_lossy(&payload.subject);
    let record = Record::stored(&subject, Bytes::copy_from_slice(&payload.body));
    let is_young = record.is_ok_and(|record| young.contains(&record.index.observed_at));
    match unchanged && !is_young {
        true => Ok(()),
        false => Err(corrupt()),
    }
}

/// Writes values as lines on a blocking thread.
async fn write<T: serde::Serialize + Send + 'static>(
    mut writer: ArchiveWriter,
    lines: Vec<T>,
) -> std::io::Result<ArchiveWriter> {
    blocking(move || {
        for line in &lines {
            let mut text = serde_json::to_vec(line)?;
            text.push(b'\n');
            writer.write(&text)?;
        }
        Ok(writer)
    })
    .await
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(std::io::Error::other(error)))
}

pub(super) async fn is(path: &Path, file: &StoredFile) -> Result<bool, Error> {
    let (read, file) = (path.to_owned(), file.clone());
    blocking(move || archive_file::is(&read, &file))
        .await
        .map_err(io(path))
}

pub(super) fn lock(folder: &Path) -> Result<PartialArchive, Error> {
    PartialArchive::lock(folder).map_err(file_error(folder))
}

pub(super) fn remove(partial: &PartialArchive) {
    let path = partial.path();
    if let Err(error) = partial.clear().and_then(|()| std::fs::remove_file(&path)) {
        tracing::debug!(%error, path = %path.display(), "partial archive not removed");
    }
}

pub(super) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Archive {
        path,
        source: ArchiveFileError::Io(source),
    }
}

fn file_error(path: &Path) -> impl FnOnce(ArchiveFileError) -> Error {
    let path = path.to_owned();
    move |source| Error::Archive { path, source }
}

pub(super) fn unfit(path: &Path, fault: &'static str) -> Error {
    file_error(path)(ArchiveFileError::Other(fault))
}
