//! Verifies the ranges of entries whose content is not in the database. Only ranges signed by the
//! ledger count.

use std::collections::VecDeque;
use std::path::Path;

use ledger_format::archive::IdHasher;

use super::outcome::{TrustAnchors, VerifyError};
use crate::adapters::archive_file;
use crate::adapters::archives::AuthenticatedArchive;
use crate::domain::archive::{StoredArchive, file_name, misplaced};
use crate::domain::verify::{Fault, FirstFault};

#[derive(Default)]
pub(super) struct ArchiveVerifier {
    /// Ranges before the first forged one.
    pub authentic: Vec<StoredArchive>,
    /// Ranges from the first forged one on.
    forged: Vec<StoredArchive>,
    /// Number of ranges without an audit entry.
    pub unaudited: u64,
    /// Audit entries whose content was removed.
    pub removed_audit: Vec<i64>,
}

/// Verifies the ids of the ranges recorded when the verification began. Ranges recorded later
/// contain entries that it has already passed.
#[derive(Default)]
pub(super) struct ArchivedIdVerifier {
    ranges: VecDeque<StoredArchive>,
    ids: IdHasher,
}

impl ArchivedIdVerifier {
    pub fn of(archives: &ArchiveVerifier) -> Self {
        Self {
            ranges: archives.authentic.iter().cloned().collect(),
            ids: IdHasher::default(),
        }
    }

    /// Adds the next entry.
    pub fn next(&mut self, seq: i64, id: &[u8]) -> Result<(), FirstFault> {
        let Some(range) = self.ranges.front() else {
            return Ok(());
        };
        self.ids.push(id);
        if seq < range.last_seq {
            return Ok(());
        }
        let ids = std::mem::take(&mut self.ids).finish();
        let fits = range.note.is_none() || range.ids == ids;
        self.ranges.pop_front();
        match fits {
            true => Ok(()),
            false => Err(FirstFault {
                seq,
                what: Fault::ArchivedIdsDiffer,
            }),
        }
    }
}

impl ArchiveVerifier {
    pub fn of(checked: Vec<AuthenticatedArchive>) -> Self {
        let mut archives = Self::default();
        for one in checked {
            archives.removed_audit.extend(one.removed_audit);
            if one.authentic && archives.forged.is_empty() {
                archives.unaudited += u64::from(!one.audited);
                archives.authentic.push(one.archive);
            } else {
                archives.forged.push(one.archive);
            }
        }
        archives
    }

    /// Returns the last entry whose content may be missing.
    pub fn to(&self) -> i64 {
        self.authentic.last().map_or(0, |archive| archive.last_seq)
    }

    /// Checks that the ranges follow each other, end at `end` at the latest, and are signed by the
    /// ledger.
    pub fn check(&self, end: i64) -> Result<(), FirstFault> {
        let all: Vec<StoredArchive> = self.authentic.iter().chain(&self.forged).cloned().collect();
        let misplaced = misplaced(&all, end).map(|archive| (archive, Fault::ArchiveMisplaced));
        let forged = self.forged.first();
        let forged = forged.map(|archive| (archive, Fault::ArchiveUnsigned));
        match misplaced.or(forged) {
            Some((archive, what)) => Err(FirstFault {
                seq: archive.first_seq,
                what,
            }),
            None => Ok(()),
        }
    }

    /// Compares the files with the signed SHA-256. A missing file is a fault unless the caller said
    /// that it may be missing. Returns the number of those.
    pub fn unread_files(&self, trust: &TrustAnchors) -> Result<usize, VerifyError> {
        let mut unread = 0;
        let mut missing: Option<(FirstFault, Vec<String>)> = None;
        for archive in &self.authentic {
            let Some(file) = &archive.file else { continue };
            let noted = Path::new(&file.path);
            let path = match &trust.archives {
                Some(folder) => folder.join(noted.file_name().unwrap_or_default()),
                None => noted.to_owned(),
            };
            let is = |path: &Path| {
                archive_file::is(path, file).map_err(|source| VerifyError::Archive {
                    path: path.to_owned(),
                    source,
                })
            };
            if is(&path)? {
                continue;
            }
            let fault = |what| FirstFault {
                seq: archive.last_seq,
                what,
            };
            if path.exists() {
                return Err(VerifyError::Invalid(fault(Fault::ArchiveFileDiffers)));
            }
            if is(&archive_file::partial(&path))? || is(&path)? {
                // The retention that wrote it renames it now, or was killed before.
                continue;
            }
            let name = file_name(&file.path);
            if trust.elsewhere.has(&name) {
                unread += 1;
                continue;
            }
            let first = || (fault(Fault::ArchiveFileMissing), Vec::new());
            missing.get_or_insert_with(first).1.push(name);
        }
        match missing {
            Some((first, names)) => Err(VerifyError::FilesMissing { first, names }),
            None => Ok(unread),
        }
    }
}
