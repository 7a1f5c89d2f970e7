//! Verifying a database: reads page by page, so memory does not grow with the ledger.

mod archives;
mod checkpoints;
mod classes;
mod database;
mod pages;
mod records;
mod rows;
pub mod schema;

use std::path::PathBuf;

use mesh_db::Location;
use mesh_db::pool::{Connection, Pool};
use mesh_db::sql::Sql;

use self::archives::{ArchivedIds, Archives};
use self::checkpoints::Checkpoints;
pub use self::classes::{Class, PUBLISHED};
use self::database::Integrity;
use self::pages::{PAGE, Pages};
pub(super) use self::rows::payload;
use self::rows::{stored_archives, stored_keys, stray};
use super::archive_file::{ArchivedPayloads, Unread};
use super::{NAME, postgres, sqlite};
use crate::domain::checkpoint::Checkpoint;
use crate::domain::note::PublicKey;
use crate::domain::verify::{
    ExpectedCheckpoint, Fault, FirstFault, LeafContent, VerifiedLedger, Verifier,
};
use crate::error::Error;

/// How far the verification is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Entries that fit so far.
    pub verified: u64,
    /// Entries that the head counts.
    pub of: u64,
}

/// Why a ledger is not verified.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// It does not fit together.
    #[error("{0}")]
    Bad(FirstFault),
    /// The file of an archive cannot be read.
    #[error("read archive {}", path.display())]
    Archive {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The head is missing, or there are several.
    #[error("the ledger has no head, or more than one: it was deleted or added to")]
    NoHead,
    /// The tables, indexes, triggers or rules are not those that the ledger makes.
    #[error("the tables are not as the ledger makes them: {0}")]
    Schema(String),
    /// The database finds itself damaged.
    #[error("the database is damaged: {0}")]
    Damaged(String),
    /// It could not be read to its end.
    #[error(transparent)]
    Read(#[from] Error),
}

/// What a ledger is compared with, besides itself.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// Keys that may have signed its checkpoints. None: those that the ledger itself names.
    pub keys: Vec<PublicKey>,
    /// Checkpoints that were kept elsewhere.
    pub kept: Vec<Checkpoint>,
    /// The newest one that was signed on this host: it or a later one must be stored.
    pub newest: Option<Checkpoint>,
    /// Folder with the files of archives, whose content is verified too. None: those that are where they were written are compared with
    /// their SHA-256.
    pub archives: Option<PathBuf>,
}

/// A ledger that fits together, and what that means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Its entries.
    pub verified: VerifiedLedger,
    /// Everything that was compared.
    pub classes: Vec<Class>,
}

/// Computes chain and tree of a ledger again from its bodies. It is only read, and may be in use.
///
/// # Errors
/// The first entry that does not fit, or why the ledger cannot be read.
pub async fn verify_database(
    location: &Location,
    progress: impl FnMut(Progress),
) -> Result<VerifiedLedger, VerifyError> {
    verify_database_with(location, &Trust::default(), progress).await
}

/// As [`verify_database`], and compares with what is known from elsewhere.
///
/// # Errors
/// The first entry that does not fit, or why the ledger cannot be read.
pub async fn verify_database_with(
    location: &Location,
    trust: &Trust,
    progress: impl FnMut(Progress),
) -> Result<VerifiedLedger, VerifyError> {
    let report = verify_everything(location, trust, progress).await?;
    Ok(report.verified)
}

/// As [`verify_database_with`], and says what was compared.
///
/// # Errors
/// The first entry that does not fit, or why the ledger cannot be read.
pub async fn verify_everything(
    location: &Location,
    trust: &Trust,
    progress: impl FnMut(Progress),
) -> Result<Report, VerifyError> {
    let ledger = Unverified::open(location)?;
    let report = verify(&ledger.pool, location, trust, progress).await;
    ledger.close().await;
    report
}

/// A ledger that is verified more than once, over the same connection.
pub struct Unverified {
    pool: Pool,
    location: Location,
}

impl Unverified {
    /// A ledger; nothing is read yet.
    ///
    /// # Errors
    /// If there is no such file.
    pub fn open(location: &Location) -> Result<Self, VerifyError> {
        let pool = match location {
            Location::Sqlite(path) => sqlite::only_reading(path)?,
            Location::Postgres(options) => postgres::only_reading(options),
        };
        let location = location.clone();
        Ok(Self { pool, location })
    }

    /// As [`verify_database_with`].
    ///
    /// # Errors
    /// The first entry that does not fit, or why the ledger cannot be read.
    pub async fn verify(
        &self,
        trust: &Trust,
        progress: impl FnMut(Progress),
    ) -> Result<VerifiedLedger, VerifyError> {
        let report = self.verify_everything(trust, progress).await?;
        Ok(report.verified)
    }

    /// As [`Self::verify`], and says what was compared.
    ///
    /// # Errors
    /// The first entry that does not fit, or why the ledger cannot be read.
    pub async fn verify_everything(
        &self,
        trust: &Trust,
        progress: impl FnMut(Progress),
    ) -> Result<Report, VerifyError> {
        verify(&self.pool, &self.location, trust, progress).await
    }

    /// Whether the ledger still has checkpoints that it published, to the byte.
    ///
    /// # Errors
    /// The smallest that it does not have, or why the ledger cannot be read.
    pub async fn has_published(&self, notes: Vec<String>) -> Result<(), VerifyError> {
        let missing = records::unknown_note(&self.pool, notes).await?;
        missing.map_or(Ok(()), |size| {
            Err(bad(size.cast_signed(), Fault::CheckpointMissing(size)))
        })
    }

    /// Ends its connection.
    pub async fn close(self) {
        self.pool.close().await;
    }
}

async fn verify(
    pool: &Pool,
    location: &Location,
    trust: &Trust,
    progress: impl FnMut(Progress),
) -> Result<Report, VerifyError> {
    let open = |source| mesh_db::Error::Open {
        name: NAME,
        location: location.clone(),
        source,
    };
    let acquired = pool.acquire().await.map_err(open);
    let mut connection = acquired.map_err(Error::Database)?;
    is_a_ledger(&mut connection, location).await?;
    let verified = verify_rows(&mut connection, trust, progress).await;
    if let Err(VerifyError::Read(Error::Read(_))) = &verified {
        // A column of another type cannot even be read.
        let difference = schema::difference(&mut connection).await;
        if let Ok(Some(difference)) = difference {
            return Err(VerifyError::Schema(difference));
        }
    }
    verified
}

async fn verify_rows(
    connection: &mut Connection,
    trust: &Trust,
    mut progress: impl FnMut(Progress),
) -> Result<Report, VerifyError> {
    let (stored_keys, known_checkpoints) = stored_keys(connection).await.map_err(Error::Read)?;
    let mut signed = Checkpoints::new(stored_keys, known_checkpoints, trust);
    let mut verifier = Verifier::default();
    for kept in trust.kept.iter().chain(&trust.newest) {
        verifier.expect(ExpectedCheckpoint::trusted(kept));
    }
    let mut subtrees = Vec::new();
    let mut files = trust.archives.clone().map(ArchivedPayloads::new);
    let mut archives = Archives::default();
    let mut archived_ids = ArchivedIds::default();
    let mut index_differs = None;
    let mut pages = Pages::default();
    loop {
        let page = pages.next(connection).await.map_err(Error::Read)?;
        if page.archived_to > archives.to() {
            archives = Archives::of(stored_archives(connection).await?);
            if verifier.last() == 0 {
                archived_ids = ArchivedIds::of(&archives);
            }
            if let Some(files) = &mut files {
                files.know(archives.authentic.clone());
            }
        }
        let head = page.head.ok_or(VerifyError::NoHead)?;
        let full = page.entries.len() == PAGE as usize;
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
            .map_err(VerifyError::Bad)?;
            if let Some(id) = &read.archived_id {
                archived_ids.next(seq, id).map_err(VerifyError::Bad)?;
            }
            if read.payload_twice {
                return Err(bad(seq, Fault::Extra));
            }
            if !read.index_fits && index_differs.is_none() {
                index_differs = Some(seq);
            }
        }
        subtrees.extend(verifier.take_subtrees());
        progress(Progress {
            verified: verifier.last().unsigned_abs(),
            of: head.seq.unsigned_abs(),
        });
        if full {
            continue;
        }
        let end = verifier.last();
        let mut verified = verifier.finish(&head).map_err(VerifyError::Bad)?;
        signed.finish().map_err(VerifyError::Bad)?;
        archives.check(end).map_err(VerifyError::Bad)?;
        if let Some(bad) = records::keys(connection).await? {
            return Err(VerifyError::Bad(bad));
        }
        verified.unaudited = archives.unaudited;
        if let Some(seq) = stray(connection, "payloads", end).await? {
            return Err(bad(seq, Fault::Extra));
        }
        // Named last: what is searched matters less than what is proved.
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
            return Err(VerifyError::Bad(bad));
        }
        if let Some(difference) = schema::difference(connection).await? {
            return Err(VerifyError::Schema(difference));
        }
        let unasked = match database::integrity(connection).await? {
            Integrity::Whole => None,
            Integrity::Damaged(what) => return Err(VerifyError::Damaged(what)),
            Integrity::Unasked(why) => Some(why),
        };
        return Ok(Report {
            verified,
            classes: classes::checked(trust, archives.unread_files(trust)?, unasked),
        });
    }
}

const fn bad(seq: i64, what: Fault) -> VerifyError {
    VerifyError::Bad(FirstFault { seq, what })
}

/// Tables of something else would read as if somebody had tampered with them.
async fn is_a_ledger(connection: &mut Connection, location: &Location) -> Result<(), Error> {
    let newest = match location {
        Location::Sqlite(_) => sqlite::newest_migration(),
        Location::Postgres(_) => postgres::newest_migration(),
    };
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

impl From<Unread> for VerifyError {
    fn from(unread: Unread) -> Self {
        match unread {
            Unread::Missing(path, source) => Self::Archive { path, source },
            Unread::Bad(bad) => Self::Bad(bad),
        }
    }
}
