//! Rows beside the entries; nothing in them is trusted.

use mesh_db::pool::{Access, Connection};
use mesh_db::sql::{Row, Sql};

use crate::adapters::archives::{self, AuthenticatedArchive};
use crate::adapters::checkpoint_rows;
use crate::domain::checkpoint::StoredCheckpoint;
use crate::domain::keys::StoredKey;
use crate::domain::verify::StoredPayload;
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
    let rows = snapshot.conn().rows(&checkpoint_rows::keys()).await?;
    let newest = Sql::new("SELECT COALESCE(MAX(number), 0) AS number FROM checkpoints");
    let newest = snapshot.conn().first(&newest).await?;
    snapshot.commit().await?;
    // One that is no text is nobody's: what it signed counts as forged.
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

/// The ranges that are noted, in order.
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
    let row = connection.conn().first(&sql).await.map_err(Error::Read)?;
    row.map(|row| row.get("seq"))
        .transpose()
        .map_err(Error::Read)
}
