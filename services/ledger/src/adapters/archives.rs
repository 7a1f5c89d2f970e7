//! The table of archives, and the deletion of archived payloads.

use std::ops::RangeInclusive;

use chrono::{DateTime, Utc};
use ledger_format::archive::IdHasher;
use mesh_db::Location;
use mesh_db::pool::{Access, Pool, Transaction};
use mesh_db::sql::{Row, Sql};
use sqlx::Executor as _;

use super::store::Store;
use super::{checkpoint_rows, postgres, sqlite};
use crate::domain::archive::{Evidence, StoredArchive, StoredFile};
use crate::domain::audited::Audited;
use crate::domain::checkpoint::StoredCheckpoint;
use crate::domain::keys::audit_id;
use crate::error::Error;

/// Maximum number of payloads deleted in one transaction.
const PAGE_ENTRIES: u32 = 2000;
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

    /// Returns the last entry before the first young one: recorded since the start of this time
    /// range, or observed in it.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn last_before(&self, young: &RangeInclusive<DateTime<Utc>>) -> Result<u64, Error> {
        // Read first: entries appended meanwhile are later.
        let head = self.head().await?.seq;
        let mut scanned_to = self.archived_to().await?;
        // In steps, so that the cost of a query does not grow with the ledger.
        while scanned_to < head {
            let end = scanned_to.saturating_add(ERASE_STEP_ENTRIES).min(head);
            let since = |sql: Sql, column: &'static str| {
                sql.push(" WHERE seq > ")
                    .bind(scanned_to.cast_signed())
                    .push(" AND seq <= ")
                    .bind(end.cast_signed())
                    .push(" AND ")
                    .push(column)
                    .push(" >= ")
                    .bind(young.start().timestamp_micros())
            };
            let recorded = Sql::new("SELECT MIN(seq) AS seq FROM (SELECT seq FROM payloads");
            let observed =
                since(recorded, "recorded_at").push(" UNION ALL SELECT seq FROM event_index");
            let sql = since(observed, "observed_at")
                .push(" AND observed_at <= ")
                .bind(young.end().timestamp_micros())
                .push(") AS since");
            let row = self.first(&sql).await?;
            let first = row.map_or(Ok(None), |row| row.get::<Option<i64>>("seq"));
            if let Some(first) = first.map_err(Error::Read)? {
                return Ok(first.unsigned_abs() - 1);
            }
            scanned_to = end;
        }
        Ok(head)
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

/// Records ranges and deletes their payloads. Uses a database role with these rights.
#[derive(Clone, Debug)]
pub struct PayloadEraser {
    pool: Pool,
}

impl PayloadEraser {
    /// Creates the pool. Opens no connection yet.
    pub fn connect(location: &Location) -> Self {
        let pool = match location {
            Location::Sqlite(path) => sqlite::dropping(path),
            Location::Postgres(options) => postgres::dropping(options),
        };
        Self { pool }
    }

    /// Records a range signed by this key. From then on its payloads may be deleted.
    ///
    /// # Errors
    /// If the database refuses: the range does not follow the last one, the role lacks the right,
    /// or the key was replaced meanwhile.
    pub async fn note(&self, archive: &StoredArchive, vkey: &str) -> Result<(), Error> {
        let insert = insert(archive);
        let mut connection = self.pool.acquire().await.map_err(Error::Retain)?;
        let noted = async {
            let mut transaction = connection.begin(Access::Write).await?;
            one_at_a_time(&mut transaction).await?;
            let newest = Sql::new("SELECT vkey FROM checkpoint_keys ORDER BY number DESC LIMIT 1");
            let newest = transaction.conn().first(&newest).await?;
            let newest = newest.map(|row| row.get::<String>("vkey")).transpose()?;
            if newest.as_deref() != Some(vkey) {
                return Ok(false);
            }
            transaction.conn().execute(&insert).await?;
            transaction.commit().await?;
            Ok(true)
        };
        match noted.await.map_err(Error::Retain)? {
            true => Ok(()),
            false => Err(Error::Unsigned(
                "the signing key was replaced in the meantime; run the command again".to_owned(),
            )),
        }
    }

    /// Deletes a batch of payloads up to an entry, the oldest first, with their index rows, except
    /// those of the entries in `except`. Returns their number, 0 if none are left.
    ///
    /// # Errors
    /// If the database refuses because no recorded range contains them. Nothing is deleted then.
    pub async fn drop_some(&self, end: i64, except: &[i64]) -> Result<u64, Error> {
        self.try_drop_some(end, except).await.map_err(Error::Retain)
    }

    async fn try_drop_some(&self, end: i64, except: &[i64]) -> Result<u64, sqlx::Error> {
        let mut connection = self.pool.acquire().await?;
        let mut transaction = connection.begin(Access::Write).await?;
        let oldest = archived_payloads(end, except)
            .push(" ORDER BY seq LIMIT ")
            .bind(PAGE_ENTRIES);
        let rows = transaction.conn().rows(&oldest).await?;
        let last = match rows.last() {
            Some(row) if rows.len() == PAGE_ENTRIES as usize => row.get::<i64>("seq")?,
            // In a tampered database, index rows may exist without a payload.
            _ => end,
        };
        let mut dropped = 0;
        for table in [
            "DELETE FROM event_nodes",
            "DELETE FROM event_index",
            "DELETE FROM payloads",
        ] {
            let sql = Sql::new(table).push(" WHERE seq <= ").bind(last);
            let sql = sql.push(" AND NOT seq").any_of(except.to_vec());
            dropped = transaction.conn().execute(&sql).await?;
        }
        transaction.commit().await?;
        Ok(dropped)
    }

    /// Removes deleted content from where the database has copies of it: SQLite's write-ahead log,
    /// and PostgreSQL's statistics, which have the most frequent values of a column. What vacuum
    /// removes, it removes later.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn purge_copies(&self) -> Result<(), Error> {
        match &self.pool {
            Pool::Sqlite(pool) => sqlite::empty_log(pool).await.map_err(Error::Retain),
            Pool::Postgres(pool) => {
                let analyze = "ANALYZE event_nodes, event_index, payloads";
                pool.execute(analyze).await.map(drop).map_err(Error::Retain)
            }
        }
    }

    /// Closes all connections.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

fn archived_payloads(end: i64, except: &[i64]) -> Sql {
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

fn insert(archive: &StoredArchive) -> Sql {
    let file = archive.file.as_ref();
    Sql::new(
        "INSERT INTO archives (number, first_seq, last_seq, signed_by, made_at, made_by, ids, note, path, sha256, bytes) VALUES (",
    )
    .list([
        archive.number.into(),
        archive.first_seq.into(),
        archive.last_seq.into(),
        (&archive.signed_by).into(),
        archive.made_at.into(),
        (&archive.made_by).into(),
        archive.ids.as_slice().into(),
        archive.note.as_deref().into(),
        file.map(|file| file.path.as_str()).into(),
        file.map(|file| file.sha256.as_slice()).into(),
        file.map(|file| file.bytes).into(),
    ])
    .push(")")
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

/// Until the transaction ends, no other process can record a range or replace the key. So each
/// range is signed by the key that is active at its time.
pub(super) async fn one_at_a_time(transaction: &mut Transaction<'_>) -> Result<(), sqlx::Error> {
    // SQLite allows only one write transaction anyway.
    let lock = Sql::default().either(
        "SELECT 1",
        "SELECT pg_advisory_xact_lock(hashtext('ledger_archives'))",
    );
    transaction.conn().rows(&lock).await.map(drop)
}
