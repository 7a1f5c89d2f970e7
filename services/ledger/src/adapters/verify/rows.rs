//! Rows beside the entries; nothing in them is trusted.

use mesh_db::pool::{Access, Connection};
use mesh_db::sql::{Row, Sql};

use crate::adapters::archives::{self, archive};
use crate::domain::archive::StoredArchive;
use crate::domain::checkpoint::StoredCheckpoint;
use crate::domain::keys::StoredKey;
use crate::domain::verify::Payload;
use crate::error::Error;

/// Nothing about it is trusted: its note may be no text any more.
pub(super) fn checkpoint(row: &Row) -> Result<StoredCheckpoint, sqlx::Error> {
    let note: Vec<u8> = row.get("note")?;
    Ok(StoredCheckpoint {
        number: row.get("number")?,
        size: row.get("size")?,
        root: row.get("root")?,
        note: String::from_utf8_lossy(&note).into_owned(),
        made_at: row.get("made_at")?,
    })
}

/// The keys that the ledger names as its own, and the number of its newest checkpoint at the same moment.
pub(super) async fn stored_keys(
    connection: &mut Connection,
) -> Result<(Vec<StoredKey>, i64), sqlx::Error> {
    let mut snapshot = connection.begin(Access::Snapshot).await?;
    let keys = Sql::new("SELECT number, from_size, ")
        .bytes("vkey")
        .push(" FROM checkpoint_keys ORDER BY number");
    let rows = snapshot.link().rows(&keys).await?;
    let newest = Sql::new("SELECT COALESCE(MAX(number), 0) AS number FROM checkpoints");
    let newest = snapshot.link().first(&newest).await?;
    snapshot.commit().await?;
    let key = |row: &Row| {
        let vkey: Vec<u8> = row.get("vkey")?;
        Ok(StoredKey {
            number: row.get("number")?,
            // One that is none is nobody's: what it signed counts as forged.
            vkey: String::from_utf8_lossy(&vkey).into_owned(),
            from_size: row.get("from_size")?,
            made_at: 0,
            made_by: String::new(),
        })
    };
    let keys: Result<Vec<_>, sqlx::Error> = rows.iter().map(key).collect();
    Ok((keys?, newest.map_or(Ok(0), |row| row.get("number"))?))
}

pub(in crate::adapters) fn payload(row: &Row) -> Result<Payload, sqlx::Error> {
    Ok(Payload {
        cluster: row.get("cluster")?,
        subject: row.get("subject")?,
        body: row.get("body")?,
    })
}

pub(super) fn archived_to(archives: &[StoredArchive]) -> i64 {
    archives.last().map_or(0, |archive| archive.last_seq)
}

pub(super) async fn stored_archives(
    connection: &mut Connection,
) -> Result<Vec<StoredArchive>, Error> {
    let rows = connection.link().rows(&archives::archives(0)).await;
    let rows = rows.map_err(Error::Read)?;
    let rows: Result<Vec<_>, _> = rows.iter().map(archive).collect();
    rows.map_err(Error::Read)
}

/// How many of them have no entry in the audit.
pub(super) async fn unaudited(
    connection: &mut Connection,
    archives: &[StoredArchive],
) -> Result<u64, Error> {
    let ids: Vec<String> = archives.iter().map(StoredArchive::audit_id).collect();
    let count = ids.len() as u64;
    let known = Sql::new("SELECT COUNT(*) AS known FROM entries WHERE id").any_of(ids);
    let row = connection.link().first(&known).await.map_err(Error::Read)?;
    let known = row.map_or(Ok(0), |row| row.get::<i64>("known"));
    Ok(count.saturating_sub(known.map_err(Error::Read)?.unsigned_abs()))
}

/// A row that no entry has would be shown by nothing else.
pub(super) async fn stray(
    connection: &mut Connection,
    table: &'static str,
    end: i64,
) -> Result<Option<i64>, Error> {
    let sql = Sql::new("SELECT t.seq FROM ")
        .push(table)
        .push(" t WHERE (t.seq > ")
        .bind(end)
        .push(
            " OR t.seq < 1) AND NOT EXISTS (SELECT 1 FROM entries e WHERE e.seq = t.seq)
             ORDER BY t.seq LIMIT 1",
        );
    let row = connection.link().first(&sql).await.map_err(Error::Read)?;
    row.map(|row| row.get("seq"))
        .transpose()
        .map_err(Error::Read)
}
