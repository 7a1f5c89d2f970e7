//! The table of archives, and taking out what it names.

use chrono::{DateTime, Utc};
use mesh_db::Location;
use mesh_db::pool::{Access, Pool};
use mesh_db::sql::{Row, Sql};

use super::store::Store;
use super::{postgres, sqlite};
use crate::domain::archive::{StoredArchive, StoredFile};
use crate::domain::checkpoint::StoredCheckpoint;
use crate::error::Error;

/// Payloads of one transaction while they are taken out.
const PAGE: u32 = 2000;
/// Payloads that one query looks at for their age.
const STEP: u64 = 20_000;

impl Store {
    /// Up to which entry payloads are archived or erased; 0 if none is.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn archived_to(&self) -> Result<u64, Error> {
        let row = self.readers.first(&archived_to()).await;
        let row = row.map_err(Error::Read)?.ok_or(Error::CorruptHead)?;
        let to = row.get::<i64>("archived_to").map_err(Error::Read)?;
        Ok(to.unsigned_abs())
    }

    /// Every range whose payloads are archived or erased, after some number, in order.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn archives(&self, after: i64) -> Result<Vec<StoredArchive>, Error> {
        let rows = self.readers.rows(&archives(after)).await;
        rows.map_err(Error::Read)?
            .iter()
            .map(archive)
            .collect::<Result<_, _>>()
            .map_err(Error::Read)
    }

    /// The last entry before the first that was recorded at or after a time.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn last_before(&self, time: DateTime<Utc>) -> Result<u64, Error> {
        // Looked at first: what is appended meanwhile is later.
        let head = self.head().await?.seq;
        let mut looked_at = self.archived_to().await?;
        // In steps, so that no query grows with the ledger.
        while looked_at < head {
            let end = looked_at.saturating_add(STEP).min(head);
            let sql = Sql::new("SELECT MIN(seq) AS seq FROM payloads WHERE seq > ")
                .bind(looked_at.cast_signed())
                .push(" AND seq <= ")
                .bind(end.cast_signed())
                .push(" AND recorded_at >= ")
                .bind(time.timestamp_micros());
            let row = self.readers.first(&sql).await.map_err(Error::Read)?;
            let first = row.map_or(Ok(None), |row| row.get::<Option<i64>>("seq"));
            if let Some(first) = first.map_err(Error::Read)? {
                return Ok(first.unsigned_abs() - 1);
            }
            looked_at = end;
        }
        Ok(head)
    }

    /// A checkpoint to end a range with: the largest of at most `most` entries behind some entry, else the first one behind those; none that
    /// counts more than `last`.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn checkpoint_to_end_with(
        &self,
        after: u64,
        most: u64,
        last: u64,
    ) -> Result<Option<StoredCheckpoint>, Error> {
        let enough = after.saturating_add(most).min(last);
        for (from, to, order) in [
            (after, enough, " ORDER BY size DESC, number DESC LIMIT 1"),
            (enough, last, " ORDER BY size, number LIMIT 1"),
        ] {
            let sql = super::proof::checkpoints()
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

    /// The first payload of an archived range that is still there.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn first_undropped(&self) -> Result<Option<i64>, Error> {
        let sql = Sql::new("SELECT seq FROM payloads WHERE seq <= ")
            .bind(self.archived_to().await?.cast_signed())
            .push(" ORDER BY seq LIMIT 1");
        let row = self.readers.first(&sql).await.map_err(Error::Read)?;
        let seq = row.map(|row| row.get("seq")).transpose();
        seq.map_err(Error::Read)
    }
}

/// Notes ranges and takes their payloads out, with the rights that this needs.
#[derive(Clone, Debug)]
pub struct Dropper {
    pool: Pool,
}

impl Dropper {
    /// Nothing is opened yet.
    pub fn connect(location: &Location) -> Self {
        let pool = match location {
            Location::Sqlite(path) => sqlite::dropping(path),
            Location::Postgres(options) => postgres::dropping(options),
        };
        Self { pool }
    }

    /// Notes a range. From then on its payloads may be taken out.
    ///
    /// # Errors
    /// If the database refuses: the range does not follow the last one, or the role may not.
    pub async fn note(&self, archive: &StoredArchive) -> Result<(), Error> {
        let file = archive.file.as_ref();
        let mut sql = Sql::new(
            "INSERT INTO archives (number, first_seq, last_seq, signed_by, made_at, made_by, path, sha256, bytes) VALUES (",
        );
        for number in [archive.number, archive.first_seq, archive.last_seq] {
            sql = sql.bind(number).push(", ");
        }
        sql = sql
            .bind(&archive.signed_by)
            .push(", ")
            .bind(archive.made_at)
            .push(", ")
            .bind(&archive.made_by);
        sql = match file {
            Some(file) => sql
                .push(", ")
                .bind(&file.path)
                .push(", ")
                .bind(file.sha256.as_slice())
                .push(", ")
                .bind(file.bytes),
            None => sql.push(", NULL, NULL, NULL"),
        };
        let mut connection = self.pool.acquire().await.map_err(Error::Retain)?;
        let inserted = connection.link().run(&sql.push(")")).await;
        inserted.map_err(Error::Retain).map(drop)
    }

    /// Takes some payloads of noted ranges out, the oldest first, with their columns for queries. Returns how many; 0 if there are no more.
    ///
    /// # Errors
    /// If the database refuses; then nothing is taken out.
    pub async fn drop_some(&self) -> Result<u64, Error> {
        self.try_drop_some().await.map_err(Error::Retain)
    }

    async fn try_drop_some(&self) -> Result<u64, sqlx::Error> {
        let mut connection = self.pool.acquire().await?;
        let mut transaction = connection.begin(Access::Write).await?;
        let end = transaction.link().first(&archived_to()).await?;
        let end = end.map_or(Ok(0), |row| row.get::<i64>("archived_to"))?;
        let oldest = Sql::new("SELECT seq FROM payloads WHERE seq <= ")
            .bind(end)
            .push(" ORDER BY seq LIMIT ")
            .bind(PAGE);
        let rows = transaction.link().rows(&oldest).await?;
        let last = match rows.last() {
            Some(row) if rows.len() == PAGE as usize => row.get::<i64>("seq")?,
            // What has no payload may have columns nevertheless, if it was tampered with.
            _ => end,
        };
        let mut dropped = 0;
        for table in [
            "DELETE FROM event_nodes",
            "DELETE FROM event_index",
            "DELETE FROM payloads",
        ] {
            let sql = Sql::new(table).push(" WHERE seq <= ").bind(last);
            dropped = transaction.link().run(&sql).await?;
        }
        transaction.commit().await?;
        Ok(dropped)
    }

    /// Leaves nothing of what was taken out in SQLite's write-ahead log. PostgreSQL's vacuum does its part by itself.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn forget(&self) -> Result<(), Error> {
        match &self.pool {
            Pool::Sqlite(pool) => sqlite::empty_log(pool).await.map_err(Error::Retain),
            Pool::Postgres(_) => Ok(()),
        }
    }

    /// Closes every connection.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

pub(super) fn archived_to() -> Sql {
    Sql::new("SELECT COALESCE(MAX(last_seq), 0) AS archived_to FROM archives")
}

pub(super) fn archives(after: i64) -> Sql {
    Sql::new(
        "SELECT number, first_seq, last_seq, path, sha256, bytes, signed_by, made_at, made_by FROM archives WHERE number > ",
    )
    .bind(after)
    .push(" ORDER BY number")
}

pub(super) fn archive(row: &Row) -> Result<StoredArchive, sqlx::Error> {
    let file = match (row.get("path")?, row.get("sha256")?, row.get("bytes")?) {
        (Some(path), Some(sha256), Some(bytes)) => Some(StoredFile {
            path,
            sha256,
            bytes,
        }),
        _ => None,
    };
    Ok(StoredArchive {
        number: row.get("number")?,
        first_seq: row.get("first_seq")?,
        last_seq: row.get("last_seq")?,
        file,
        signed_by: row.get("signed_by")?,
        made_at: row.get("made_at")?,
        made_by: row.get("made_by")?,
    })
}
