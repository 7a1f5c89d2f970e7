//! Queries and rows of checkpoints and keys.

use mesh_db::sql::{Row, Sql};

use crate::domain::checkpoint::StoredCheckpoint;
use crate::domain::keys::StoredKey;

/// Selects all checkpoints. The caller appends condition and order.
pub(super) fn checkpoints() -> Sql {
    Sql::new("SELECT number, size, root, note, made_at FROM checkpoints")
}

/// Selects all keys. Text columns as bytes, because tampered text may not be valid UTF-8.
pub(super) fn keys() -> Sql {
    Sql::new("SELECT number, from_size, made_at, ")
        .bytes("vkey")
        .push(", ")
        .bytes("made_by")
        .push(" FROM checkpoint_keys ORDER BY number")
}

pub(super) fn checkpoint(row: &Row) -> Result<StoredCheckpoint, sqlx::Error> {
    Ok(StoredCheckpoint {
        number: row.get("number")?,
        size: row.get("size")?,
        root: row.get("root")?,
        note: row.get("note")?,
        made_at: row.get("made_at")?,
    })
}

pub(super) fn key(row: &Row) -> Result<StoredKey, sqlx::Error> {
    let text = |column| {
        let bytes: Vec<u8> = row.get(column)?;
        Ok::<_, sqlx::Error>(String::from_utf8_lossy(&bytes).into_owned())
    };
    Ok(StoredKey {
        number: row.get("number")?,
        vkey: text("vkey")?,
        from_size: row.get("from_size")?,
        made_at: row.get("made_at")?,
        made_by: text("made_by")?,
    })
}
