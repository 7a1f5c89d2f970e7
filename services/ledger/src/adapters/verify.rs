//! Verifying a database file: reads page by page, so memory does not grow with the ledger.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Row as _};

use super::index::{self, COLUMNS};
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
    let mut index_differs = None;
    let mut after = None;
    loop {
        let (head, page) = read(&mut connection, after).await.map_err(Error::Read)?;
        let head = head.ok_or(VerifyError::NoHead)?;
        for read in &page {
            verifier.next(&read.entry).map_err(VerifyError::Bad)?;
            if !read.index_fits && index_differs.is_none() {
                index_differs = Some(read.entry.seq);
            }
        }
        progress(Progress {
            verified: verifier.last().unsigned_abs(),
            of: head.seq.unsigned_abs(),
        });
        match page.last() {
            Some(last) if page.len() == PAGE as usize => after = Some(last.entry.seq),
            _ => {
                let end = verifier.last();
                let verified = verifier.finish(&head).map_err(VerifyError::Bad)?;
                stray(&mut connection, "payloads", end, Fault::Extra).await?;
                // Named last: what is searched matters less than what is proved.
                if let Some(seq) = index_differs {
                    return Err(VerifyError::Bad(FirstBad {
                        seq,
                        what: Fault::IndexDiffers,
                    }));
                }
                stray(&mut connection, "event_index", end, Fault::IndexDiffers).await?;
                return Ok(verified);
            }
        }
    }
}

struct Read {
    entry: Stored,
    index_fits: bool,
}

/// A page and the head at the same moment: entries may be appended meanwhile.
async fn read(
    connection: &mut SqliteConnection,
    after: Option<i64>,
) -> Result<(Option<StoredHead>, Vec<Read>), sqlx::Error> {
    let mut snapshot = connection.begin().await?;
    let head: Option<(i64, Vec<u8>)> = sqlx::query_as("SELECT seq, chain FROM head")
        .fetch_optional(&mut *snapshot)
        .await?;
    // The first page has no lower bound: somebody may have put a row before the first. Text is read as bytes, as it may be none any more.
    let bound = if after.is_some() {
        "e.seq > $1"
    } else {
        "TRUE"
    };
    let sql = format!(
        "SELECT e.seq, CAST(e.id AS BLOB) AS id, e.leaf, e.chain, p.seq AS p_seq, CAST(p.cluster AS BLOB) AS cluster,
             CAST(p.subject AS BLOB) AS subject, p.body, {COLUMNS}
         FROM entries e LEFT JOIN payloads p ON p.seq = e.seq LEFT JOIN event_index i ON i.seq = e.seq
         WHERE {bound} ORDER BY e.seq LIMIT $2"
    );
    let rows = sqlx::query(AssertSqlSafe(sql))
        .bind(after)
        .bind(PAGE)
        .fetch_all(&mut *snapshot)
        .await?;
    snapshot.commit().await?;
    let entries = rows.iter().map(|row| {
        let payload = match row.try_get::<Option<i64>, _>("p_seq")? {
            Some(_) => Some(Payload {
                cluster: row.try_get("cluster")?,
                subject: row.try_get("subject")?,
                body: row.try_get("body")?,
            }),
            None => None,
        };
        let index_fits = payload
            .as_ref()
            .is_some_and(|payload| index::fits(row, &payload.subject, &payload.body));
        let entry = Stored {
            seq: row.try_get("seq")?,
            id: row.try_get("id")?,
            leaf: row.try_get("leaf")?,
            chain: row.try_get("chain")?,
            payload,
        };
        Ok(Read { entry, index_fits })
    });
    let head = head.map(|(seq, chain)| StoredHead { seq, chain });
    Ok((head, entries.collect::<Result<_, sqlx::Error>>()?))
}

/// A row that no entry has would be shown by nothing else.
async fn stray(
    connection: &mut SqliteConnection,
    table: &'static str,
    end: i64,
    what: Fault,
) -> Result<(), VerifyError> {
    let sql = format!(
        "SELECT t.seq FROM {table} t WHERE (t.seq > $1 OR t.seq < 1)
         AND NOT EXISTS (SELECT 1 FROM entries e WHERE e.seq = t.seq) ORDER BY t.seq LIMIT 1"
    );
    let stray: Option<i64> = sqlx::query_scalar(AssertSqlSafe(sql))
        .bind(end)
        .fetch_optional(connection)
        .await
        .map_err(Error::Read)?;
    match stray {
        Some(seq) => Err(VerifyError::Bad(FirstBad { seq, what })),
        None => Ok(()),
    }
}
