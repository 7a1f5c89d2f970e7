//! Appends a batch in one durable transaction.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use chrono::Utc;
use mesh_db::pool::{Access, Conn, Connection, Transaction};
use mesh_db::sql::{Column, Sql};

use super::store::{Store, head};
use super::streams::BatchSequences;
use super::{event_index, streams};
use crate::domain::append::{AppendResult, ExistingEntry, append};
use crate::domain::record::Record;
use crate::error::Error;

/// Detects an unresponsive server. The sum of it and the handler's retry timeout is below the
/// consumers' ack wait.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

impl Store {
    /// Appends records of a stream that was received up to `last_sequence`; see
    /// [`Self::append_batch`].
    ///
    /// # Errors
    /// As [`Self::append_batch`].
    pub async fn append(
        &self,
        stream: &str,
        last_sequence: u64,
        records: Vec<Record>,
    ) -> Result<AppendResult, Error> {
        self.append_batch(stream, &BatchSequences::UpTo(last_sequence), &records)
            .await
    }

    /// Appends recovered records after the entry `after`.
    ///
    /// # Errors
    /// As [`Self::append_batch`], and if `after` is not the last entry.
    pub async fn append_recovered(
        &self,
        after: u64,
        stream: &str,
        batch: &BatchSequences,
        records: &[Record],
    ) -> Result<AppendResult, Error> {
        self.append_if(AppendCondition::Exactly(after), stream, batch, records)
            .await
    }

    /// Appends records and stores the received sequences of their stream, atomically.
    ///
    /// # Errors
    /// If the database refuses or does not answer. Nothing of the batch is stored then, unless only
    /// the response to the commit was lost. A retry is correct in both cases.
    pub async fn append_batch(
        &self,
        stream: &str,
        batch: &BatchSequences,
        records: &[Record],
    ) -> Result<AppendResult, Error> {
        self.append_if(
            AppendCondition::AtLeast(self.signed()),
            stream,
            batch,
            records,
        )
        .await
    }

    async fn append_if(
        &self,
        gate: AppendCondition,
        stream: &str,
        batch: &BatchSequences,
        records: &[Record],
    ) -> Result<AppendResult, Error> {
        let mut writer = self
            .database
            .writer
            .acquire()
            .await
            .map_err(Error::Append)?;
        let attempt = async {
            // Usually all records are new: the unique index checks each id anyway, and looking for all of them first is a tenth of an append.
            let all_new = try_append(&mut writer, gate, stream, batch, records, Lookup::Skip);
            match all_new.await {
                Err(Error::Append(error)) if is_constraint_violation(&error) => {
                    try_append(&mut writer, gate, stream, batch, records, Lookup::Ids).await
                }
                appended => appended,
            }
        };
        let appended = tokio::time::timeout(ATTEMPT_TIMEOUT, attempt)
            .await
            .unwrap_or(Err(Error::TooSlow(ATTEMPT_TIMEOUT)));
        match &appended {
            Ok(appended) => self.advance(appended.head.seq),
            // If the disk is full, SQLite rolls back on its own. sqlx does not notice this, and the
            // connection is unusable. A PostgreSQL connection may be in the middle of a response.
            Err(_) => writer.close_on_drop(),
        }
        appended
    }
}

/// Precondition of an append.
#[derive(Clone, Copy, Debug)]
enum AppendCondition {
    /// The ledger has at least this many entries, the size of the largest signed checkpoint.
    AtLeast(u64),
    /// The ledger has exactly this many entries.
    Exactly(u64),
}

impl AppendCondition {
    const fn check(self, entries: u64) -> Result<(), Error> {
        match self {
            Self::AtLeast(signed) if entries < signed => Err(Error::SetBack { entries, signed }),
            Self::Exactly(after) if entries != after => Err(Error::Moved { entries, after }),
            _ => Ok(()),
        }
    }
}

/// Whether existing entries with the records' ids are looked for before the insert.
#[derive(Clone, Copy, Debug)]
enum Lookup {
    /// They are not: the insert fails if there is one.
    Skip,
    /// They are, and count as duplicates or conflicts.
    Ids,
}

/// Reports whether a unique index or, in SQLite, the trigger before it refused a row.
fn is_constraint_violation(error: &sqlx::Error) -> bool {
    /// The extended result code SQLITE_CONSTRAINT_TRIGGER.
    const SQLITE_CONSTRAINT_TRIGGER: &str = "1811";
    error.as_database_error().is_some_and(|error| {
        error.is_unique_violation() || error.code().as_deref() == Some(SQLITE_CONSTRAINT_TRIGGER)
    })
}

async fn try_append(
    writer: &mut Connection,
    gate: AppendCondition,
    stream: &str,
    batch: &BatchSequences,
    records: &[Record],
    lookup: Lookup,
) -> Result<AppendResult, Error> {
    let mut transaction = writer.begin(Access::Write).await.map_err(Error::Append)?;
    // Serializes appends until the commit: the write lock in SQLite, the row lock on the head in PostgreSQL.
    let before = Sql::new("SELECT seq, chain FROM head").either("", " FOR UPDATE");
    let row = transaction.conn().first(&before).await;
    let before = head(row.map_err(Error::Append)?)?;
    gate.check(before.seq)?;
    let known = match lookup {
        Lookup::Skip => HashMap::new(),
        Lookup::Ids => find_existing(transaction.conn(), records)
            .await
            .map_err(Error::Append)?,
    };
    let appended = append(before, records, &known);
    streams::note(&mut transaction, stream, batch)
        .await
        .map_err(Error::Append)?;
    if !appended.entries.is_empty() {
        write(&mut transaction, &appended, records)
            .await
            .map_err(Error::Append)?;
    }
    transaction.commit().await.map_err(Error::Append)?;
    Ok(appended)
}

/// Returns the entries that have the id of one of the records.
async fn find_existing(
    conn: Conn<'_>,
    records: &[Record],
) -> Result<HashMap<String, ExistingEntry>, sqlx::Error> {
    if records.is_empty() {
        return Ok(HashMap::new());
    }
    let ids: Vec<String> = records.iter().map(|record| record.id.clone()).collect();
    let sql = Sql::new("SELECT id, seq, leaf FROM entries WHERE id").any_of(ids);
    let rows = conn.rows(&sql).await?;
    rows.iter()
        .map(|row| {
            let known = ExistingEntry {
                seq: row.get::<i64>("seq")?.unsigned_abs(),
                // A tampered leaf of another length never equals the record's leaf, so the record
                // is reported as a conflict.
                leaf: row.get::<Vec<u8>>("leaf")?.try_into().unwrap_or_default(),
            };
            Ok((row.get("id")?, known))
        })
        .collect()
}

async fn write(
    transaction: &mut Transaction<'_>,
    appended: &AppendResult,
    records: &[Record],
) -> Result<(), sqlx::Error> {
    let entries = &appended.entries;
    let recorded_at = Utc::now().timestamp_micros();
    let seqs = || Column::Ints(entries.iter().map(|e| Some(e.seq.cast_signed())).collect());
    let text = |of: fn(&Record) -> &str| {
        let texts = entries.iter().map(|e| Some(of(&records[e.record])));
        Column::Texts(texts.collect())
    };
    let columns = [
        ("seq", seqs()),
        ("id", text(|record| &record.id)),
        (
            "leaf",
            Column::Bytes(entries.iter().map(|e| e.leaf.as_slice()).collect()),
        ),
        (
            "chain",
            Column::Bytes(entries.iter().map(|e| e.chain.as_slice()).collect()),
        ),
    ];
    transaction.conn().insert("entries", &columns).await?;

    let bodies = entries.iter().map(|e| records[e.record].body.as_ref());
    let columns = [
        ("seq", seqs()),
        (
            "recorded_at",
            Column::Ints(vec![Some(recorded_at); entries.len()]),
        ),
        ("cluster", text(|record| &record.cluster)),
        ("subject", text(|record| &record.subject)),
        ("body", Column::Bytes(bodies.collect())),
    ];
    transaction.conn().insert("payloads", &columns).await?;

    let rows: Vec<event_index::IndexRow<'_>> = entries
        .iter()
        .map(|entry| event_index::IndexRow {
            seq: entry.seq.cast_signed(),
            recorded_at,
            cluster: &records[entry.record].cluster,
            index: &records[entry.record].index,
        })
        .collect();
    event_index::insert(transaction.conn(), &rows).await?;
    event_index::insert_nodes(transaction, &rows, &HashSet::new()).await?;

    let sql = Sql::new("UPDATE head SET seq = ")
        .bind(appended.head.seq.cast_signed())
        .push(", chain = ")
        .bind(appended.head.chain.as_slice());
    transaction.conn().execute(&sql).await.map(drop)
}
