//! Reads the header and the lines of an export.

use std::collections::HashMap;

use ledger_format::merkle::Range;
use mesh_db::sql::{Row, Sql};

use super::store::Store;
use super::verify::payload;
use crate::domain::export::{self, Header, HexHash};
use crate::domain::tile::tiles;
use crate::domain::verify::{StoredEntry, StoredPayload};
use crate::error::Error;

/// Entries per query of an export.
const PAGE_ENTRIES: u64 = 500;

impl Store {
    /// Returns the header of an export from an entry to the checkpoint in this note.
    ///
    /// # Errors
    /// If the database cannot be read, or lacks data for the header.
    pub async fn export_header(&self, from: u64, note: String) -> Result<Header, Error> {
        let before = from - 1;
        let corrupt = || Error::Corrupt {
            seq: from.cast_signed(),
        };
        let range = Range {
            start: 0,
            end: before,
        };
        let edge = self.tiles(tiles(&[range])).await?;
        let edge = edge.frontier(before).ok_or_else(corrupt)?;
        let chain = self.chain(before).await?.ok_or_else(corrupt)?;
        Ok(Header {
            export: export::FORMAT.to_owned(),
            from,
            chain: HexHash(chain),
            edge: edge.peaks().iter().copied().map(HexHash).collect(),
            checkpoint: note,
        })
    }

    /// Returns some of the entries after `after` up to `to`, in order. Archived entries have no
    /// payload.
    ///
    /// # Errors
    /// If the database cannot be read, or a payload that is not archived is missing.
    pub async fn entries(&self, after: u64, to: u64) -> Result<Vec<StoredEntry>, Error> {
        let to = to.min(after + PAGE_ENTRIES).cast_signed();
        let after = after.cast_signed();
        let range = |sql: Sql| {
            sql.push(" WHERE seq > ")
                .bind(after)
                .push(" AND seq <= ")
                .bind(to)
                .push(" ORDER BY seq")
        };
        let entries = range(
            Sql::new("SELECT seq, ")
                .bytes("id")
                .push(", leaf, chain FROM entries"),
        );
        let payloads = range(
            Sql::new("SELECT seq, ")
                .bytes("cluster")
                .push(", ")
                .bytes("subject")
                .push(", body FROM payloads"),
        );
        let entries = self.rows(&entries).await?;
        let payloads = self.rows(&payloads).await?;
        let entries = stored(&entries, &payloads).map_err(Error::Read)?;
        let missing = entries.iter().rfind(|entry| entry.payload.is_none());
        if let Some(StoredEntry { seq, .. }) = missing {
            // Read after the payloads: a range is recorded before its payloads are deleted.
            if seq.unsigned_abs() > self.archived_to().await? {
                return Err(Error::Corrupt { seq: *seq });
            }
        }
        Ok(entries)
    }
}

fn stored(entries: &[Row], payloads: &[Row]) -> Result<Vec<StoredEntry>, sqlx::Error> {
    let mut payloads = payloads
        .iter()
        .map(|row| Ok((row.get("seq")?, payload(row)?)))
        .collect::<Result<HashMap<i64, StoredPayload>, sqlx::Error>>()?;
    entries
        .iter()
        .map(|row| {
            let seq = row.get("seq")?;
            Ok(StoredEntry {
                seq,
                id: row.get("id")?,
                leaf: row.get("leaf")?,
                chain: row.get("chain")?,
                payload: payloads.remove(&seq),
            })
        })
        .collect()
}
