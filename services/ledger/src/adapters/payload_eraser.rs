//! Records archived ranges, and deletes their payloads.

use mesh_db::Location;
use mesh_db::pool::{Access, Pool, Transaction};
use mesh_db::sql::Sql;
use sqlx::Executor as _;

use super::archives::archived_payloads;
use super::{postgres, sqlite};
use crate::domain::archive::StoredArchive;
use crate::error::Error;

/// Maximum number of payloads deleted in one transaction.
const PAGE_ENTRIES: u32 = 2000;

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
