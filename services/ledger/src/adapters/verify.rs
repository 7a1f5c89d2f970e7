//! Verifies a database page by page, so memory does not grow with the ledger. Pages are read and
//! compared in parallel; only chain and tree are computed in order.

mod archives;
mod checkpoints;
mod data_class;
mod database;
mod indexes;
mod outcome;
mod pages;
mod partial_indexes;
mod records;
mod rows;
pub mod schema;
mod shadows;

use mesh_db::Location;
use mesh_db::pool::{Connection, Pool};
use mesh_db::sql::Sql;

use self::archives::{ArchiveVerifier, ArchivedIdVerifier};
use self::checkpoints::CheckpointVerifier;
pub use self::data_class::{EXPORTED, PUBLISHED};
pub use self::database::INTEGRITY_CACHE_KIB;
use self::database::IntegrityCheck;
use self::outcome::Integrity;
pub use self::outcome::{
    Class, Elsewhere, RemovedAudit, TrustAnchors, VerifyError, VerifyProgress, VerifyReport,
};
use self::pages::{PageReader, pages_ahead};
pub(super) use self::rows::payload;
use self::rows::{stored_archives, stored_keys, stray};
use super::archive_file::ArchivedPayloads;
use super::tables::TABLES;
use super::{postgres, sqlite};
use crate::domain::verify::{
    ExpectedCheckpoint, Fault, FirstFault, LeafContent, VerifiedLedger, Verifier,
};
use crate::error::Error;

/// Recomputes chain and tree of a ledger from its bodies. The ledger is only read, and may be in
/// use.
///
/// # Errors
/// The first fault, or why the ledger cannot be read.
pub async fn verify_database(
    location: &Location,
    progress: impl FnMut(VerifyProgress),
) -> Result<VerifiedLedger, VerifyError> {
    verify_database_with(location, &TrustAnchors::default(), progress).await
}

/// Same as [`verify_database`], and compares with trust anchors from outside the ledger.
///
/// # Errors
/// The first fault, or why the ledger cannot be read.
pub async fn verify_database_with(
    location: &Location,
    trust: &TrustAnchors,
    progress: impl FnMut(VerifyProgress),
) -> Result<VerifiedLedger, VerifyError> {
    let report = verify_everything(location, trust, progress).await?;
    Ok(report.verified)
}

/// Same as [`verify_database_with`], and reports the classes of compared data.
///
/// # Errors
/// The first fault, or why the ledger cannot be read.
pub async fn verify_everything(
    location: &Location,
    trust: &TrustAnchors,
    progress: impl FnMut(VerifyProgress),
) -> Result<VerifyReport, VerifyError> {
    let ledger = UnverifiedLedger::open(location)?;
    let report = verify(&ledger.pool, location, trust, progress).await;
    ledger.close().await;
    report
}

/// A ledger that can be verified several times.
pub struct UnverifiedLedger {
    pool: Pool,
    location: Location,
}

impl UnverifiedLedger {
    /// Opens a ledger. Nothing is read yet.
    ///
    /// # Errors
    /// If the file does not exist.
    pub fn open(location: &Location) -> Result<Self, VerifyError> {
        // For the pages, the integrity check, the indexes that it compares, and everything else.
        let connections = pages_ahead() + indexes::AT_ONCE + 2;
        let connections = u32::try_from(connections).unwrap_or(u32::MAX);
        let pool = match location {
            Location::Sqlite(path) => sqlite::only_reading(path, connections)?,
            Location::Postgres(options) => postgres::only_reading(options, connections),
        };
        let location = location.clone();
        Ok(Self { pool, location })
    }

    /// Same as [`verify_database_with`].
    ///
    /// # Errors
    /// The first fault, or why the ledger cannot be read.
    pub async fn verify(
        &self,
        trust: &TrustAnchors,
        progress: impl FnMut(VerifyProgress),
    ) -> Result<VerifiedLedger, VerifyError> {
        let report = self.verify_everything(trust, progress).await?;
        Ok(report.verified)
    }

    /// Same as [`Self::verify`], and reports the classes of compared data.
    ///
    /// # Errors
    /// The first fault, or why the ledger cannot be read.
    pub async fn verify_everything(
        &self,
        trust: &TrustAnchors,
        progress: impl FnMut(VerifyProgress),
    ) -> Result<VerifyReport, VerifyError> {
        verify(&self.pool, &self.location, trust, progress).await
    }

    /// Checks that the ledger still has the given published checkpoints, byte for byte.
    ///
    /// # Errors
    /// The smallest missing checkpoint, or why the ledger cannot be read.
    pub async fn check_published(&self, notes: Vec<String>) -> Result<(), VerifyError> {
        let missing = records::unknown_note(&self.pool, notes).await?;
        missing.map_or(Ok(()), |size| {
            Err(bad(size.cast_signed(), Fault::CheckpointMissing(size)))
        })
    }

    /// Closes the connections.
    pub async fn close(self) {
        self.pool.close().await;
    }
}

async fn verify(
    pool: &Pool,
    location: &Location,
    trust: &TrustAnchors,
    progress: impl FnMut(VerifyProgress),
) -> Result<VerifyReport, VerifyError> {
    let open = |source| mesh_db::Error::Open {
        name: TABLES.name,
        location: location.clone(),
        source,
    };
    let acquired = pool.acquire().await.map_err(open);
    let mut connection = acquired.map_err(Error::Database)?;
    is_a_ledger(&mut connection, location).await?;
    let mut integrity = IntegrityCheck::start(pool.clone());
    let verified = verify_rows(pool, &mut connection, &mut integrity, trust, progress).await;
    integrity.end().await;
    if let Err(VerifyError::Read(Error::Read(_))) = &verified {
        // A column of another type cannot be read at all, so the schema is compared first.
        let difference = schema::difference(&mut connection).await;
        if let Ok(Some(difference)) = difference {
            return Err(VerifyError::Schema(difference));
        }
    }
    verified
}

async fn verify_rows(
    pool: &Pool,
    connection: &mut Connection,
    integrity: &mut IntegrityCheck,
    trust: &TrustAnchors,
    mut progress: impl FnMut(VerifyProgress),
) -> Result<VerifyReport, VerifyError> {
    let (stored_keys, known_checkpoints) = stored_keys(connection).await.map_err(Error::Read)?;
    let mut signed = CheckpointVerifier::new(stored_keys, known_checkpoints, trust);
    let mut verifier = Verifier::default();
    for checkpoint in trust.checkpoints.iter().chain(&trust.newest) {
        verifier.expect(ExpectedCheckpoint::trusted(checkpoint));
    }
    let mut subtrees = Vec::new();
    let mut files = trust.archives.clone().map(ArchivedPayloads::new);
    let mut archives = ArchiveVerifier::default();
    let mut archived_ids = ArchivedIdVerifier::default();
    let mut index_differs = None;
    let mut pages = PageReader::new(pool.clone());
    loop {
        let page = pages.next().await.map_err(Error::Read)?;
        if page.archived_to > archives.to() {
            archives = ArchiveVerifier::of(stored_archives(connection).await?);
            if verifier.last() == 0 {
                archived_ids = ArchivedIdVerifier::of(&archives);
            }
            if let Some(files) = &mut files {
                files.know(archives.authentic.clone());
            }
        }
        let full = page.is_full();
        let head = page.head.ok_or(VerifyError::NoHead)?;
        for row in &page.checkpoints {
            verifier.expect(signed.take(row));
        }
        for mut read in page.entries {
            let seq = read.hashed.seq;
            let archived = seq <= archives.to();
            if archived && let (Some(files), Some(entry)) = (&mut files, &mut read.without_payload)
            {
                entry.payload = files.payload(entry)?;
                read.hashed = entry.hashed();
            }
            match archived && read.hashed.content == LeafContent::Missing {
                true => verifier.next_archived_hashed(&read.hashed),
                false => verifier.next_hashed(&read.hashed),
            }
            .map_err(VerifyError::Invalid)?;
            if let Some(id) = &read.archived_id {
                archived_ids.next(seq, id).map_err(VerifyError::Invalid)?;
            }
            if read.has_duplicate_payload {
                return Err(bad(seq, Fault::Extra));
            }
            if !read.index_matches && index_differs.is_none() {
                index_differs = Some(seq);
            }
        }
        subtrees.extend(verifier.take_subtrees());
        progress(VerifyProgress {
            verified: verifier.last().unsigned_abs(),
            of: head.seq.unsigned_abs(),
        });
        if full {
            continue;
        }
        let end = verifier.last();
        let mut verified = verifier.finish(&head).map_err(VerifyError::Invalid)?;
        signed.finish().map_err(VerifyError::Invalid)?;
        archives.check(end).map_err(VerifyError::Invalid)?;
        let keys = records::keys(connection).await?;
        let mut removed = keys.map_err(VerifyError::Invalid)?;
        removed.append(&mut archives.removed_audit);
        removed.sort_unstable();
        verified.unaudited = archives.unaudited;
        if let Some(seq) = stray(connection, "payloads", end).await? {
            return Err(bad(seq, Fault::Extra));
        }
        // Reported last: index rows matter less than proofs.
        if let Some(seq) = index_differs {
            return Err(bad(seq, Fault::IndexDiffers));
        }
        for table in ["event_index", "event_nodes"] {
            if let Some(seq) = stray(connection, table, end).await? {
                return Err(bad(seq, Fault::IndexDiffers));
            }
        }
        let computed = std::mem::take(&mut subtrees);
        if let Some(bad) = records::subtrees(connection, computed, verified.count).await? {
            return Err(VerifyError::Invalid(bad));
        }
        if let Some(difference) = schema::difference(connection).await? {
            return Err(VerifyError::Schema(difference));
        }
        match integrity.result().await? {
            Integrity::Whole => {}
            Integrity::Damaged(what) => return Err(VerifyError::Damaged(what)),
            Integrity::Unasked(why) => return Err(VerifyError::NotCompared(why)),
        }
        let named = |seq: &i64| trust.removed_audit.has(*seq);
        if !removed.iter().all(named) {
            removed.retain(|seq| !named(seq));
            return Err(VerifyError::AuditRemoved(removed));
        }
        let unread = archives.unread_files(trust)?;
        return Ok(VerifyReport {
            verified,
            classes: data_class::checked(trust, unread, &removed),
        });
    }
}

const fn bad(seq: i64, what: Fault) -> VerifyError {
    VerifyError::Invalid(FirstFault { seq, what })
}

/// Other tables would look like a tampered ledger.
async fn is_a_ledger(connection: &mut Connection, location: &Location) -> Result<(), Error> {
    let newest = TABLES.version(location);
    let sql = Sql::new(
        "SELECT MAX(version) AS version, (SELECT COUNT(*) FROM head) AS heads FROM _sqlx_migrations",
    );
    let row = match connection.conn().first(&sql).await {
        Ok(row) => row,
        Err(sqlx::Error::Database(_)) => return Err(Error::NotALedger(location.clone())),
        Err(error) => return Err(Error::Read(error)),
    };
    let version = row.map(|row| row.get::<Option<i64>>("version")).transpose();
    let whose = match version.map_err(Error::Read)?.flatten() {
        Some(version) if version < newest => {
            "an earlier version; start this one's ledger on it, or run `smesh ledger migrate`"
        }
        Some(version) if version > newest => "a later version; verify it with that one",
        _ => return Ok(()),
    };
    Err(Error::OtherVersion {
        location: location.clone(),
        whose,
    })
}
