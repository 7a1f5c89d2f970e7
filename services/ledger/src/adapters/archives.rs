//! The table of archives, and which entries are due.

use std::ops::RangeInclusive;

use chrono::{DateTime, Utc};
use ledger_format::archive::IdHasher;
use mesh_db::pool::{Access, Transaction};
use mesh_db::sql::{Row, Sql};

use super::checkpoint_rows;
use super::store::Store;
use crate::domain::archive::{Evidence, StoredArchive, StoredFile};
use crate::domain::audited::Audited;
use crate::domain::checkpoint::StoredCheckpoint;
use crate::domain::keys::audit_id;
use crate::error::Error;

/// Maximum number of payloads that one query checks for their age.
const ERASE_STEP_ENTRIES: u64 = 20_000;

/// An archived range with the result of its checks.
#[derive(Clone, Debug)]
pub struct AuthenticatedArchive {
    /// The row of the range.
    pub archive: StoredArchive,
    /// True if the ledger signed it. Otherwise the row was written by another party.
    pub authentic: bool,
    /// True if an audit entry records it.
    pub audited: bool,
    /// Sequence of the audit entry if its content was removed.
    pub removed_audit: Option<i64>,
}

impl AuthenticatedArchive {
    /// Returns the range if the ledger signed it.
    ///
    /// # Errors
    /// If the ledger did not sign it: it must not be used.
    pub const fn authentic(&self) -> Result<&StoredArchive, Error> {
        match self.authentic {
            true => Ok(&self.archive),
            false => Err(Error::ForgedArchive {
                first_seq: self.archive.first_seq,
                last_seq: self.archive.last_seq,
            }),
        }
    }
}

impl Store {
    /// Returns the ranges after a number, and whether the ledger signed each of them.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn checked_archives(&self, after: i64) -> Result<Vec<AuthenticatedArchive>, Error> {
        let checked = async {
            let mut connection = self.database.readers.acquire().await?;
            let mut snapshot = connection.begin(Access::Snapshot).await?;
            let checked = checked(&mut snapshot, after).await?;
            snapshot.commit().await?;
            Ok(checked)
        };
        checked.await.map_err(Error::Read)
    }

    /// Computes the hash over the ids of a range of entries, as an archive record contains it.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn ids_of(&self, first: i64, last: i64) -> Result<Vec<u8>, Error> {
        let (mut ids, mut after) = (IdHasher::default(), first - 1);
        while after < last {
            let sql = Sql::new("SELECT seq, ")
                .bytes("id")
                .push(" FROM entries WHERE seq > ")
                .bind(after)
                .push(" AND seq <= ")
                .bind(last)
                .push(" ORDER BY seq LIMIT ")
                .bind(ERASE_STEP_ENTRIES.cast_signed());
            let rows = self.rows(&sql).await?;
            for row in &rows {
                after = row.get("seq").map_err(Error::Read)?;
                ids.push(&row.get::<Vec<u8>>("id").map_err(Error::Read)?);
            }
            if rows.is_empty() {
                return Err(Error::Corrupt { seq: after + 1 });
            }
        }
        Ok(ids.finish().to_vec())
    }

    /// Returns the last entry whose payload is archived or erased, or 0.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn archived_to(&self) -> Result<u64, Error> {
        let row = self.database.readers.first(&archived_to()).await;
        let row = row.map_err(Error::Read)?.ok_or(Error::CorruptHead)?;
        let to = row.get::<i64>("archived_to").map_err(Error::Read)?;
        Ok(to.unsigned_abs())
    }

    /// Returns the archived and erased ranges after a number, in order.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn archives(&self, after: i64) -> Result<Vec<StoredArchive>, Error> {
        let rows = self.database.readers.rows(&archives(after)).await;
        rows.map_err(Error::Read)?
            .iter()
            .map(archive)
            .collect::<Result<_, _>>()
            .map_err(Error::Read)
    }

    /// Returns the last entry before the first young one: recorded or observed in this time range.
    /// An entry recorded after the range was recorded by a clock that was ahead. It counts as
    /// recorded when the next one was.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn last_before(&self, young: &RangeInclusive<DateTime<Utc>>) -> Result<u64, Error> {
        // Read first: entries appended meanwhile are later.
        let head = self.head().await?.seq;
        let archived_to = self.archived_to().await?;
        let (mut scanned_to, mut last) = (archived_to, head);
        // In steps, so that the cost of a query does not grow with the ledger.
        while scanned_to < head {
            let end = scanned_to.saturating_add(ERASE_STEP_ENTRIES).min(head);
            let within = |sql: Sql, column: &'static str| {
                sql.push(" WHERE seq > ")
                    .bind(scanned_to.cast_signed())
                    .push(" AND seq <= ")
                    .bind(end.cast_signed())
                    .push(" AND ")
                    .push(column)
                    .push(" >= ")
                    .bind(young.start().timestamp_micros())
                    .push(" AND ")
                    .push(column)
                    .push(" <= ")
                    .bind(young.end().timestamp_micros())
            };
            let recorded = Sql::new("SELECT MIN(seq) AS seq FROM (SELECT seq FROM payloads");
            let observed =
                within(recorded, "recorded_at").push(" UNION ALL SELECT seq FROM event_index");
            let sql = within(observed, "observed_at").push(") AS young");
            let row = self.first(&sql).await?;
            let first = row.map_or(Ok(None), |row| row.get::<Option<i64>>("seq"));
            if let Some(first) = first.map_err(Error::Read)? {
                last = first.unsigned_abs() - 1;
                break;
            }
            scanned_to = end;
        }
        let old = Sql::new(
            "SELECT e.seq FROM entries e LEFT JOIN payloads p ON p.seq = e.seq WHERE e.seq > ",
        )
        .bind(archived_to.cast_signed())
        .push(" AND e.seq <= ")
        .bind(last.cast_signed())
        .push(" AND (p.recorded_at IS NULL OR p.recorded_at < ")
        .bind(young.start().timestamp_micros())
        .push(") ORDER BY e.seq DESC LIMIT 1");
        let row = self.first(&old).await?;
        let seq = row.map(|row| row.get::<i64>("seq")).transpose();
        let seq = seq.map_err(Error::Read)?;
        Ok(seq.map_or(archived_to, i64::unsigned_abs))
    }

    /// Returns the checkpoint at which a range after the entry `after` ends. It is the largest one
    /// within `max` entries, or else the first one beyond them. No checkpoint is larger than
    /// `last`.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn checkpoint_to_end_with(
        &self,
        after: u64,
        max: u64,
        last: u64,
    ) -> Result<Option<StoredCheckpoint>, Error> {
        let limit = after.saturating_add(max).min(last);
        for (from, to, order) in [
            (after, limit, " ORDER BY size DESC, number DESC LIMIT 1"),
            (limit, last, " ORDER BY size, number LIMIT 1"),
        ] {
            let sql = checkpoint_rows::checkpoints()
                .push(" WHERE size > ")
                .bind(from.cast_signed())
                .push(" AND size <= ")
                .bind(to.cast_signed())
                .push(order);
            if let Some(found) = self.read_checkpoints(&sql).await?.pop() {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Returns the entries whose payload is never deleted: those that prove who archived what and
    /// who replaced a key.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn permanent_entries(&self) -> Result<Vec<i64>, Error> {
        let keys = self.checkpoint_keys().await?;
        let keys = keys.iter().map(|key| audit_id(&key.vkey));
        let archives = self.archives(0).await?;
        let archives = archives.iter().map(StoredArchive::audit_id);
        let sql = Sql::new("SELECT seq FROM entries WHERE id")
            .any_of(keys.chain(archives).collect::<Vec<_>>())
            .push(" ORDER BY seq");
        let rows = self.rows(&sql).await?;
        let seqs = rows.iter().map(|row| row.get("seq"));
        seqs.collect::<Result<_, _>>().map_err(Error::Read)
    }

    /// Returns the first payload of an archived range that is not deleted yet.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn first_undropped(&self) -> Result<Option<i64>, Error> {
        let permanent = self.permanent_entries().await?;
        let sql = archived_payloads(self.archived_to().await?.cast_signed(), &permanent)
            .push(" ORDER BY seq LIMIT 1");
        let row = self.first(&sql).await?;
        let seq = row.map(|row| row.get("seq")).transpose();
        seq.map_err(Error::Read)
    }
}

pub(super) fn archived_payloads(end: i64, except: &[i64]) -> Sql {
    Sql::new("SELECT seq FROM payloads WHERE seq <= ")
        .bind(end)
        .push(" AND NOT seq")
        .any_of(except.to_vec())
}

pub(super) fn archived_to() -> Sql {
    Sql::new("SELECT COALESCE(MAX(last_seq), 0) AS archived_to FROM archives")
}

pub(super) fn archives(after: i64) -> Sql {
    // Text columns as bytes, because tampered text may not be valid UTF-8.
    let mut sql = Sql::new("SELECT number, first_seq, last_seq, sha256, bytes, made_at, ids");
    for column in ["path", "signed_by", "made_by", "note"] {
        sql = sql.push(", ").bytes(column);
    }
    sql.push(" FROM archives WHERE number > ")
        .bind(after)
        .push(" ORDER BY number")
}

pub(super) fn archive(row: &Row) -> Result<StoredArchive, sqlx::Error> {
    let text = |column| {
        let bytes: Option<Vec<u8>> = row.get(column)?;
        Ok::<_, sqlx::Error>(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    };
    let file = match (text("path")?, row.get("sha256")?, row.get("bytes")?) {
        (None, None, None) => None,
        // If one of them is missing, it is not the signed file.
        (path, sha256, bytes) => Some(StoredFile {
            path: path.unwrap_or_default(),
            sha256: sha256.unwrap_or_default(),
            bytes: bytes.unwrap_or_default(),
        }),
    };
    Ok(StoredArchive {
        number: row.get("number")?,
        first_seq: row.get("first_seq")?,
        last_seq: row.get("last_seq")?,
        file,
        signed_by: text("signed_by")?.unwrap_or_default(),
        made_at: row.get("made_at")?,
        made_by: text("made_by")?.unwrap_or_default(),
        ids: row.get::<Option<Vec<u8>>>("ids")?.unwrap_or_default(),
        note: text("note")?,
    })
}

/// Returns the ranges after a number and whether the ledger signed each of them, from one snapshot.
pub(super) async fn checked(
    snapshot: &mut Transaction<'_>,
    after: i64,
) -> Result<Vec<AuthenticatedArchive>, sqlx::Error> {
    let rows = snapshot.conn().rows(&archives(after)).await?;
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let keys = snapshot.conn().rows(&checkpoint_rows::keys()).await?;
    let keys = keys
        .iter()
        .map(checkpoint_rows::key)
        .collect::<Result<Vec<_>, _>>()?;
    let signed = Sql::new("SELECT COALESCE(MAX(size), 0) AS size FROM checkpoints");
    let signed = snapshot.conn().first(&signed).await?;
    let signed = signed.map_or(Ok(0), |row| row.get("size"))?;
    let (mut checked, mut is_signed) = (Vec::new(), false);
    for row in &rows {
        let archive = archive(row)?;
        // Versions that did not sign came before those that do.
        let is_stripped = is_signed && archive.note.is_none();
        is_signed |= archive.note.is_some();
        let notes = Sql::new("SELECT ")
            .bytes("note")
            .push(" FROM checkpoints WHERE size = ")
            .bind(archive.last_seq);
        let notes = snapshot.conn().rows(&notes).await?;
        let note = |row: &Row| {
            let note: Vec<u8> = row.get("note")?;
            Ok(String::from_utf8_lossy(&note).into_owned())
        };
        let evidence = Evidence {
            keys: keys.clone(),
            checkpoints: notes.iter().map(note).collect::<Result<_, sqlx::Error>>()?,
            signed,
            audited: audited(snapshot, &archive.audit_id()).await?,
        };
        checked.push(AuthenticatedArchive {
            authentic: !is_stripped && archive.is_authentic(&evidence),
            audited: evidence.audited.is_some(),
            removed_audit: evidence.audited.as_ref().and_then(Audited::removed),
            archive,
        });
    }
    Ok(checked)
}

/// Returns the audit entry with an id, and its body.
pub(super) async fn audited(
    snapshot: &mut Transaction<'_>,
    id: &str,
) -> Result<Option<Audited>, sqlx::Error> {
    let sql = Sql::new(
        "SELECT e.seq, e.leaf, p.body FROM entries e LEFT JOIN payloads p ON p.seq = e.seq WHERE e.id = ",
    )
    .bind(id);
    let Some(row) = snapshot.conn().first(&sql).await? else {
        return Ok(None);
    };
    let body: Option<Vec<u8>> = row.get("body")?;
    let clusters = match &body {
        Some(_) => Vec::new(),
        None => own_clusters(snapshot).await?,
    };
    Ok(Some(Audited {
        seq: row.get("seq")?,
        leaf: row.get("leaf")?,
        body,
        clusters,
    }))
}

/// Returns the names that the cluster of the ledger's own audit entries may have: the newest audit
/// entry's and the newest entry's. A wrong one proves nothing.
async fn own_clusters(snapshot: &mut Transaction<'_>) -> Result<Vec<String>, sqlx::Error> {
    let sql = Sql::new("SELECT ").bytes("cluster").push(
        " FROM payloads WHERE seq = (SELECT MAX(seq) FROM event_index WHERE category = 'audit')
             OR seq = (SELECT MAX(seq) FROM payloads)",
    );
    let rows = snapshot.conn().rows(&sql).await?;
    rows.iter()
        .map(|row| {
            let cluster: Vec<u8> = row.get("cluster")?;
            Ok(String::from_utf8_lossy(&cluster).into_owned())
        })
        .collect()
}
