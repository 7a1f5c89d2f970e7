//! Verifying a database file: reads page by page, so memory does not grow with the ledger.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions as _, Connection as _, Row as _};

use crate::domain::verify::{Fault, FirstBad, Payload, Stored, StoredHead, Verified, Verifier};
use crate::error::Error;

/// Entries of one page.
const PAGE: i64 = 1000;

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
    Bad(FirstBad),
    /// The head is missing.
    #[error("the ledger has no head: it was deleted")]
    NoHead,
    /// It could not be read to its end.
    #[error(transparent)]
    Read(#[from] Error),
}

/// Computes the chain of a ledger again from its bodies. The file is opened read-only, and may be in use.
///
/// # Errors
/// The first entry that does not fit, or why the file cannot be read.
pub async fn verify_database(
    path: &Path,
    mut progress: impl FnMut(Progress),
) -> Result<Verified, VerifyError> {
    if !path.exists() {
        return Err(Error::NotThere(PathBuf::from(path)).into());
    }
    let mut connection = SqliteConnectOptions::new()
        .filename(path)
        .read_only(true)
        .busy_timeout(Duration::from_secs(10))
        .connect()
        .await
        .map_err(|source| Error::Open {
            path: path.to_owned(),
            source,
        })?;
    let mut verifier = Verifier::default();
    let mut after = None;
    loop {
        let (head, page) = read(&mut connection, after).await.map_err(Error::Read)?;
        let head = head.ok_or(VerifyError::NoHead)?;
        for entry in &page {
            verifier.next(entry).map_err(VerifyError::Bad)?;
        }
        progress(Progress {
            verified: verifier.last().unsigned_abs(),
            of: head.seq.unsigned_abs(),
        });
        match page.last() {
            Some(last) if page.len() == PAGE as usize => after = Some(last.seq),
            _ => {
                let end = verifier.last();
                let verified = verifier.finish(&head).map_err(VerifyError::Bad)?;
                stray_payload(&mut connection, end).await?;
                return Ok(verified);
            }
        }
    }
}

/// A page and the head at the same moment: entries may be appended meanwhile.
async fn read(
    connection: &mut SqliteConnection,
    after: Option<i64>,
) -> Result<(Option<StoredHead>, Vec<Stored>), sqlx::Error> {
    let mut snapshot = connection.begin().await?;
    let head: Option<(i64, Vec<u8>)> = sqlx::query_as("SELECT seq, chain FROM head")
        .fetch_optional(&mut *snapshot)
        .await?;
    let rows = sqlx::query(
        "SELECT e.seq, e.id, e.leaf, e.chain, p.cluster, p.subject, p.body
         FROM entries e LEFT JOIN payloads p ON p.seq = e.seq
         WHERE $1 IS NULL OR e.seq > $1 ORDER BY e.seq LIMIT $2",
    )
    .bind(after)
    .bind(PAGE)
    .fetch_all(&mut *snapshot)
    .await?;
    snapshot.commit().await?;
    let entries = rows.iter().map(|row| {
        let payload = match row.try_get::<Option<String>, _>("cluster")? {
            Some(cluster) => Some(Payload {
                cluster,
                subject: row.try_get("subject")?,
                body: row.try_get("body")?,
            }),
            None => None,
        };
        Ok(Stored {
            seq: row.try_get("seq")?,
            id: row.try_get("id")?,
            leaf: row.try_get("leaf")?,
            chain: row.try_get("chain")?,
            payload,
        })
    });
    let head = head.map(|(seq, chain)| StoredHead { seq, chain });
    Ok((head, entries.collect::<Result<_, sqlx::Error>>()?))
}

/// A payload that no entry chains would be shown by nothing else.
async fn stray_payload(connection: &mut SqliteConnection, end: i64) -> Result<(), VerifyError> {
    let stray: Option<i64> = sqlx::query_scalar(
        "SELECT p.seq FROM payloads p WHERE (p.seq > $1 OR p.seq < 1)
         AND NOT EXISTS (SELECT 1 FROM entries e WHERE e.seq = p.seq) ORDER BY p.seq LIMIT 1",
    )
    .bind(end)
    .fetch_optional(connection)
    .await
    .map_err(Error::Read)?;
    match stray {
        Some(seq) => Err(VerifyError::Bad(FirstBad {
            seq,
            what: Fault::Extra,
        })),
        None => Ok(()),
    }
}
