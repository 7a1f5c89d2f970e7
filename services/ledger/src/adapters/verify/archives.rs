//! The ranges of entries whose content is not in the database: only those that the ledger has signed count.

use std::collections::VecDeque;
use std::path::Path;

use ledger_format::archive::IdHasher;

use super::outcome::{TrustAnchors, VerifyError};
use crate::adapters::archive_file;
use crate::adapters::archives::AuthenticatedArchive;
use crate::domain::archive::{StoredArchive, misplaced};
use crate::domain::verify::{Fault, FirstFault};

/// The noted ranges.
#[derive(Default)]
pub(super) struct ArchiveVerifier {
    /// Those before the first that is forged.
    pub authentic: Vec<StoredArchive>,
    /// Those from there on.
    forged: Vec<StoredArchive>,
    /// How many have no entry in the audit yet.
    pub unaudited: u64,
}

/// The ids of the ranges that were noted when the verification began: later ones have entries that it had passed by then.
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

    /// Takes the next entry.
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
            if one.authentic && archives.forged.is_empty() {
                archives.unaudited += u64::from(!one.audited);
                archives.authentic.push(one.archive);
            } else {
                archives.forged.push(one.archive);
            }
        }
        archives
    }

    /// Up to which entry content may be missing.
    pub fn to(&self) -> i64 {
        self.authentic.last().map_or(0, |archive| archive.last_seq)
    }

    /// Whether they follow each other up to this end at most, and the ledger has signed each.
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

    /// Compares the files with the SHA-256 that was signed, and says how many could not be: they are elsewhere, or were deleted to erase them.
    pub fn unread_files(&self, trust: &TrustAnchors) -> Result<usize, VerifyError> {
        let mut unread = 0;
        for archive in &self.authentic {
            let Some(file) = &archive.file else { continue };
            let noted = Path::new(&file.path);
            let path = match &trust.archives {
                Some(folder) => folder.join(noted.file_name().unwrap_or_default()),
                None => noted.to_owned(),
            };
            if trust.archives.is_none() && !path.exists() {
                unread += 1;
                continue;
            }
            let same = archive_file::is(&path, file)
                .map_err(|source| VerifyError::Archive { path, source })?;
            if !same {
                return Err(VerifyError::Invalid(FirstFault {
                    seq: archive.last_seq,
                    what: Fault::ArchiveFileDiffers,
                }));
            }
        }
        Ok(unread)
    }
}
