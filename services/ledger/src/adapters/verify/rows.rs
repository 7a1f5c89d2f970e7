//! Rows that belong to the entries. Nothing in them is trusted.

use mesh_db::pool::{Access, Connection};
use mesh_db::sql::{Row, Sql};

use crate::adapters::archives::{self, AuthenticatedArchive};
use crate::adapters::checkpoint_rows;
use crate::domain::checkpoint::StoredCheckpoint;
use crate::domain::keys::StoredKey;
use crate::domain::verify::StoredPayload;
use crate::error::Error;

/// Reads a checkpoint. A tampered note may not be valid UTF-8.
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

/// Returns the keys stored in the ledger and the number of its newest checkpoint, from one
/// snapshot.
pub(super) async fn stored_keys(
    connection: &mut Connection,
) -> Result<(Vec<StoredKey>, i64), sqlx::Error> {
    let mut snapshot = connection.begin(Access::Snapshot).await?;
    let rows = snapshot.conn().rows(&checkpoint_rows::keys()).await?;
    let newest = Sql::new("SELECT COALESCE(MAX(number), 0) AS number FROM checkpoints");
    let newest = snapshot.conn().first(&newest).await?;
    snapshot.commit().await?;
    // A key that is not valid text matches no signature: checkpoints signed with it count as
    // forged.
    let keys: Result<Vec<_>, sqlx::Error> = rows.iter().map(checkpoint_rows::key).collect();
    Ok((keys?, newest.map_or(Ok(0), |row| row.get("number"))?))
}

pub(in crate::adapters) fn payload(row: &Row) -> Result<StoredPayload, sqlx::Error> {
    Ok(StoredPayload {
        cluster: row.get("cluster")?,
        subject: row.get("subject")?,
        body: row.get("body")?,
    })
}

/// Returns the recorded archives, in order.
pub(super) async fn stored_archives(
    connection: &mut Connection,
) -> Result<Vec<AuthenticatedArchive>, Error> {
    let checked = async {
        let mut snapshot = connection.begin(Access::Snapshot).await?;
        let checked = archives::checked(&mut snapshot, 0).await?;
        snapshot.commit().await?;
        Ok(checked)
    };
    checked.await.map_err(Error::Read)
}

/// Returns a row that belongs to no entry. No other check would find it.
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
    let row = connection.conn().first(&sql).await.map_err(Error::Read)?;
    row.map(|row| row.get("seq"))
        .transpose()
        .map_err(Error::Read)
}
