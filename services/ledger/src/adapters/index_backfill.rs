//! Backfills missing index rows, for example after a migration, or after an operator emptied the
//! table.
//!
//! Each step covers a range of sequences, so no statement grows with the ledger. Progress is not
//! stored. Counting the existing rows is cheap, and a stored position would be wrong once the table
//! is emptied.

use std::collections::HashSet;

use bytes::Bytes;
use mesh_db::pool::{Access, Conn, Connection, Transaction};
use mesh_db::sql::Sql;

use super::block_ranges::{BLOCK_ENTRIES, block, block_range_sql};
use super::event_index::{IndexRow, insert, insert_nodes};
use super::store::Store;
use crate::domain::record::Record;
use crate::error::Error;

/// Maximum number of entries filled in one transaction.
const PAGE_ENTRIES: usize = 1000;

/// Progress of the backfill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackfillProgress {
    /// Sequence up to which the index is complete.
    pub at: u64,
    /// Last sequence to check. Entries appended later are indexed on append.
    pub to: u64,
    /// Number of entries filled so far.
    pub filled: u64,
}

impl BackfillProgress {
    /// True when all entries up to `to` have been checked.
    pub const fn is_done(&self) -> bool {
        self.at >= self.to
    }
}

impl Store {
    /// Starts a backfill. Of the archived entries, only the permanent ones have a body to index:
    /// they are checked and filled here.
    ///
    /// # Errors
    /// If the database refuses. Nothing is filled then.
    pub async fn start_backfill(&self) -> Result<BackfillProgress, Error> {
        let at = self.archived_to().await?;
        let to = self.head().await?.seq;
        let mut permanent = self.permanent_entries().await?;
        permanent.retain(|seq| seq.unsigned_abs() <= at);
        let filled = self.backfill_permanent(&permanent, at.cast_signed());
        Ok(BackfillProgress {
            at,
            to,
            filled: filled.await.map_err(Error::Index)?,
        })
    }

    /// Fills the missing rows of these entries, in order, and summarizes their blocks up to `end`.
    async fn backfill_permanent(&self, seqs: &[i64], end: i64) -> Result<u64, sqlx::Error> {
        let mut writer = self.database.writer.acquire().await?;
        let stored = Sql::new("SELECT seq FROM event_index WHERE seq").any_of(seqs.to_vec());
        let missing = |present: HashSet<i64>| -> Vec<i64> {
            let seqs = seqs.iter().copied();
            seqs.filter(|seq| !present.contains(seq)).collect()
        };
        let mut filled = 0;
        if !missing(seqs_of(writer.conn(), &stored).await?).is_empty() {
            let mut transaction = locked(&mut writer).await?;
            let missing = missing(seqs_of(transaction.conn(), &stored).await?);
            filled = fill(&mut transaction, missing).await?;
            transaction.commit().await?;
        }
        let size = BLOCK_ENTRIES.cast_signed();
        let mut starts: Vec<i64> = seqs.iter().map(|seq| (seq - 1) / size * size).collect();
        starts.dedup();
        for after in starts {
            let sql = block_range_sql(after, end.min(after + size));
            if let (_, Some(range)) = block(&writer.conn().rows(&sql).await?)? {
                self.block_ranges.add(range, size);
            }
        }
        Ok(filled)
    }

    /// Checks the next range and fills missing rows.
    ///
    /// # Errors
    /// If the database refuses. Nothing is filled then.
    pub async fn backfill_step(
        &self,
        progress: BackfillProgress,
    ) -> Result<BackfillProgress, Error> {
        self.try_backfill(progress).await.map_err(Error::Index)
    }

    async fn try_backfill(
        &self,
        mut progress: BackfillProgress,
    ) -> Result<BackfillProgress, sqlx::Error> {
        let end = progress.at.saturating_add(BLOCK_ENTRIES).min(progress.to);
        let (after, last) = (progress.at.cast_signed(), end.cast_signed());
        let mut writer = self.database.writer.acquire().await?;
        // Read without the lock, because usually nothing is missing. Complete blocks can be
        // summarized immediately.
        let (present, range) = block(&writer.conn().rows(&block_range_sql(after, last)).await?)?;
        if present == last - after {
            if let Some(range) = range {
                self.block_ranges.add(range, BLOCK_ENTRIES.cast_signed());
            }
            progress.at = end;
            return Ok(progress);
        }
        let mut transaction = locked(&mut writer).await?;
        let seqs = Sql::new("SELECT seq FROM event_index WHERE seq > ")
            .bind(after)
            .push(" AND seq <= ")
            .bind(last);
        let present = seqs_of(transaction.conn(), &seqs).await?;
        let missing = (after + 1..=last).filter(|seq| !present.contains(seq));
        let missing: Vec<i64> = missing.take(PAGE_ENTRIES).collect();
        progress.at = match missing.last() {
            Some(filled) if missing.len() == PAGE_ENTRIES => filled.unsigned_abs(),
            _ => end,
        };
        progress.filled += fill(&mut transaction, missing).await?;
        transaction.commit().await?;
        let filled = block_range_sql(after, progress.at.cast_signed());
        if let (_, Some(range)) = block(&writer.conn().rows(&filled).await?)? {
            self.block_ranges.add(range, BLOCK_ENTRIES.cast_signed());
        }
        Ok(progress)
    }
}

/// Begins a transaction, serialized with other replicas and with appends.
async fn locked(writer: &mut Connection) -> Result<Transaction<'_>, sqlx::Error> {
    let mut transaction = writer.begin(Access::Write).await?;
    let lock = Sql::new("SELECT seq FROM head").either("", " FOR UPDATE");
    transaction.conn().first(&lock).await?;
    Ok(transaction)
}

async fn seqs_of(conn: Conn<'_>, sql: &Sql) -> Result<HashSet<i64>, sqlx::Error> {
    let rows = conn.rows(sql).await?;
    rows.iter().map(|row| row.get("seq")).collect()
}

/// Indexes entries from their bodies and returns the number of readable ones.
async fn fill(transaction: &mut Transaction<'_>, missing: Vec<i64>) -> Result<u64, sqlx::Error> {
    let payloads = Sql::new("SELECT seq, recorded_at, ")
        .bytes("subject")
        .push(", body FROM payloads WHERE seq")
        .any_of(missing.clone());
    // Node blocks may exist even if the row is missing.
    let blocks = Sql::new("SELECT seq, block FROM event_nodes WHERE seq").any_of(missing);
    let blocks = transaction.conn().rows(&blocks).await?;
    let blocks = blocks
        .iter()
        .map(|row| Ok((row.get("seq")?, row.get("block")?)))
        .collect::<Result<HashSet<(i64, String)>, sqlx::Error>>()?;
    let mut records = Vec::new();
    for row in transaction.conn().rows(&payloads).await? {
        let (seq, recorded_at) = (row.get::<i64>("seq")?, row.get::<i64>("recorded_at")?);
        let subject: Vec<u8> = row.get("subject")?;
        let body = Bytes::from(row.get::<Vec<u8>>("body")?);
        match Record::stored(&String::from_utf8_lossy(&subject), body) {
            Ok(record) => records.push((seq, recorded_at, record)),
            // The entry was tampered with. `smesh verify` reports it; the other entries stay
            // readable.
            Err(error) => tracing::error!(
                error = &error as &dyn std::error::Error,
                seq,
                "stored body unreadable, run smesh verify"
            ),
        }
    }
    let rows: Vec<IndexRow<'_>> = records
        .iter()
        .map(|(seq, recorded_at, record)| IndexRow {
            seq: *seq,
            recorded_at: *recorded_at,
            cluster: &record.cluster,
            index: &record.index,
        })
        .collect();
    insert(transaction.conn(), &rows).await?;
    insert_nodes(transaction, &rows, &blocks).await?;
    Ok(rows.len() as u64)
}
