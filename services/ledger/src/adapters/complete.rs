//! Filling columns for queries that are missing, wherever: after a migration emptied the table, or an operator did.
//!
//! In steps over ranges of the sequence, so that no statement grows with the ledger. Nothing is remembered between two starts: a note of
//! what is complete would be wrong as soon as somebody empties the table, and counting the rows that are there is cheap.

use std::collections::HashSet;

use bytes::Bytes;
use mesh_db::pool::{Access, Transaction};
use mesh_db::sql::Sql;

use super::index::{Row, insert, insert_nodes};
use super::store::Store;
use super::times::{block, times_of};
use crate::domain::fact::Fact;
use crate::error::Error;

/// Entries that one step looks at.
pub(super) const RANGE: u64 = 10_000;
/// Entries that one step fills at most, in one transaction.
const PAGE: usize = 1000;

/// How far the search for missing columns is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// Nothing is missing up to this sequence.
    pub at: u64,
    /// Where it ends: what is appended later has its columns.
    pub to: u64,
    /// How many entries were filled.
    pub filled: u64,
}

impl Completion {
    /// True if nothing is missing any more.
    pub const fn is_done(&self) -> bool {
        self.at >= self.to
    }
}

impl Store {
    /// Begins to look for columns that are missing.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn completion(&self) -> Result<Completion, Error> {
        Ok(Completion {
            // What is archived has no body to read them out of.
            at: self.archived_to().await?,
            to: self.head().await?.seq,
            filled: 0,
        })
    }

    /// Looks at the next entries, and fills what is missing there; another step if that is much.
    ///
    /// # Errors
    /// If the database refuses; then nothing is filled.
    pub async fn complete_some(&self, completion: Completion) -> Result<Completion, Error> {
        self.try_complete(completion).await.map_err(Error::Index)
    }

    async fn try_complete(&self, mut completion: Completion) -> Result<Completion, sqlx::Error> {
        let end = completion.at.saturating_add(RANGE).min(completion.to);
        let (after, last) = (completion.at.cast_signed(), end.cast_signed());
        let mut writer = self.writer.acquire().await?;
        // Without the lock, as almost always nothing is missing. What is complete has times that do not change any more.
        let (present, times) = block(writer.conn().first(&times_of(after, last)).await?)?;
        if present == last - after {
            if let Some(times) = times {
                self.times.learn(after, times, RANGE.cast_signed());
            }
            completion.at = end;
            return Ok(completion);
        }
        let mut transaction = writer.begin(Access::Write).await?;
        // As for appending: two replicas do not fill the same rows.
        let lock = Sql::new("SELECT seq FROM head").either("", " FOR UPDATE");
        transaction.conn().first(&lock).await?;
        let seqs = Sql::new("SELECT seq FROM event_index WHERE seq > ")
            .bind(after)
            .push(" AND seq <= ")
            .bind(last);
        let present = transaction.conn().rows(&seqs).await?;
        let present = present
            .iter()
            .map(|row| row.get("seq"))
            .collect::<Result<HashSet<i64>, _>>()?;
        let missing = (after + 1..=last).filter(|seq| !present.contains(seq));
        let missing: Vec<i64> = missing.take(PAGE).collect();
        completion.at = match missing.last() {
            Some(filled) if missing.len() == PAGE => filled.unsigned_abs(),
            _ => end,
        };
        completion.filled += fill(&mut transaction, missing).await?;
        transaction.commit().await?;
        let filled = times_of(after, completion.at.cast_signed());
        if let (_, Some(times)) = block(writer.conn().first(&filled).await?)? {
            self.times.learn(after, times, RANGE.cast_signed());
        }
        Ok(completion)
    }
}

/// Makes the columns of entries out of their bodies, and says how many have one that can be read.
async fn fill(transaction: &mut Transaction<'_>, missing: Vec<i64>) -> Result<u64, sqlx::Error> {
    let payloads = Sql::new("SELECT seq, recorded_at, ")
        .bytes("subject")
        .push(", body FROM payloads WHERE seq")
        .any_of(missing.clone());
    // Blocks of nodes may be there although the columns were taken away.
    let blocks = Sql::new("SELECT seq, block FROM event_nodes WHERE seq").any_of(missing);
    let blocks = transaction.conn().rows(&blocks).await?;
    let blocks = blocks
        .iter()
        .map(|row| Ok((row.get("seq")?, row.get("block")?)))
        .collect::<Result<HashSet<(i64, String)>, sqlx::Error>>()?;
    let mut facts = Vec::new();
    for row in transaction.conn().rows(&payloads).await? {
        let (seq, recorded_at) = (row.get::<i64>("seq")?, row.get::<i64>("recorded_at")?);
        let subject: Vec<u8> = row.get("subject")?;
        let body = Bytes::from(row.get::<Vec<u8>>("body")?);
        match Fact::stored(&String::from_utf8_lossy(&subject), body) {
            Ok(fact) => facts.push((seq, recorded_at, fact)),
            // Tampered with: `smesh verify` names it, and the rest stays readable.
            Err(error) => tracing::error!(
                error = &error as &dyn std::error::Error,
                seq,
                "ledger body cannot be read, run smesh verify"
            ),
        }
    }
    let rows: Vec<Row<'_>> = facts
        .iter()
        .map(|(seq, recorded_at, fact)| Row {
            seq: *seq,
            recorded_at: *recorded_at,
            cluster: &fact.cluster,
            index: &fact.index,
        })
        .collect();
    insert(transaction.conn(), &rows).await?;
    insert_nodes(transaction, &rows, &blocks).await?;
    Ok(rows.len() as u64)
}
