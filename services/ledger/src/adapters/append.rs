//! Storing a batch: one transaction, durable when it returns.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use chrono::Utc;
use mesh_db::pool::{Access, Conn, Connection};
use mesh_db::sql::{Column, Sql};

use super::store::{Store, head};
use super::streams::Batch;
use super::{index, streams};
use crate::domain::append::{Appended, Known, append};
use crate::domain::fact::Fact;
use crate::error::Error;

/// How long one attempt may take: a server that is gone without a word is found out by it. With the handler's patience it is within the
/// consumers' ack wait.
const ATTEMPT: Duration = Duration::from_secs(5);

impl Store {
    /// Appends facts of a stream, with which everything of it up to a sequence is taken in; see [`Self::take_in`].
    ///
    /// # Errors
    /// As [`Self::take_in`].
    pub async fn append(
        &self,
        stream: &str,
        last_sequence: u64,
        facts: Vec<Fact>,
    ) -> Result<Appended, Error> {
        self.take_in(stream, &Batch::UpTo(last_sequence), facts)
            .await
    }

    /// Puts back facts of a ledger that was set back: the first of them comes after this entry.
    ///
    /// # Errors
    /// As [`Self::take_in`]; and if something else is the last entry.
    pub async fn put_back(
        &self,
        after: u64,
        stream: &str,
        batch: &Batch,
        facts: Vec<Fact>,
    ) -> Result<Appended, Error> {
        self.take_in_at(Gate::After(after), stream, batch, facts)
            .await
    }

    /// Appends facts of a stream and notes which messages were taken in with them. All or nothing.
    ///
    /// # Errors
    /// If the database refuses or does not answer. Nothing of the batch is stored then, unless the answer to the commit was lost; appending
    /// it again is right in both cases.
    pub async fn take_in(
        &self,
        stream: &str,
        batch: &Batch,
        facts: Vec<Fact>,
    ) -> Result<Appended, Error> {
        self.take_in_at(Gate::NotBefore(self.signed()), stream, batch, facts)
            .await
    }

    async fn take_in_at(
        &self,
        gate: Gate,
        stream: &str,
        batch: &Batch,
        facts: Vec<Fact>,
    ) -> Result<Appended, Error> {
        let mut writer = self.writer.acquire().await.map_err(Error::Append)?;
        let attempt = try_append(&mut writer, gate, stream, batch, facts);
        let appended = tokio::time::timeout(ATTEMPT, attempt)
            .await
            .unwrap_or(Err(Error::TooSlow(ATTEMPT)));
        match &appended {
            Ok(appended) => self.advance(appended.head.seq),
            // SQLite ends a transaction by itself when the disk is full, and sqlx, which does not know, would begin none on this connection.
            // One to a server may be in the middle of an answer.
            Err(_) => writer.close_on_drop(),
        }
        appended
    }
}

/// Where entries may be appended.
#[derive(Clone, Copy, Debug)]
enum Gate {
    /// To a ledger that has everything that was signed.
    NotBefore(u64),
    /// After this entry and nowhere else.
    After(u64),
}

impl Gate {
    const fn check(self, entries: u64) -> Result<(), Error> {
        match self {
            Self::NotBefore(signed) if entries < signed => Err(Error::SetBack { entries, signed }),
            Self::After(after) if entries != after => Err(Error::Moved { entries, after }),
            _ => Ok(()),
        }
    }
}

async fn try_append(
    writer: &mut Connection,
    gate: Gate,
    stream: &str,
    batch: &Batch,
    facts: Vec<Fact>,
) -> Result<Appended, Error> {
    let mut transaction = writer.begin(Access::Write).await.map_err(Error::Append)?;
    // From here to the commit nobody else appends: in SQLite since the transaction began, in PostgreSQL by the lock on the head's row.
    let before = Sql::new("SELECT seq, chain FROM head").either("", " FOR UPDATE");
    let row = transaction.conn().first(&before).await;
    let before = head(row.map_err(Error::Append)?)?;
    gate.check(before.seq)?;
    let known = known(transaction.conn(), &facts)
        .await
        .map_err(Error::Append)?;
    let appended = append(before, facts, &known);
    streams::note(&mut transaction, stream, batch)
        .await
        .map_err(Error::Append)?;
    if !appended.entries.is_empty() {
        write(&mut transaction, &appended)
            .await
            .map_err(Error::Append)?;
    }
    transaction.commit().await.map_err(Error::Append)?;
    Ok(appended)
}

/// Which of the facts are in the ledger already.
async fn known(conn: Conn<'_>, facts: &[Fact]) -> Result<HashMap<String, Known>, sqlx::Error> {
    if facts.is_empty() {
        return Ok(HashMap::new());
    }
    let ids: Vec<String> = facts.iter().map(|fact| fact.id.clone()).collect();
    let sql = Sql::new("SELECT id, seq, leaf FROM entries WHERE id").any_of(ids);
    let rows = conn.rows(&sql).await?;
    rows.iter()
        .map(|row| {
            let known = Known {
                seq: row.get::<i64>("seq")?.unsigned_abs(),
                // A leaf of another length was tampered with; it equals no leaf, so the fact counts as a conflict.
                leaf: row.get::<Vec<u8>>("leaf")?.try_into().unwrap_or_default(),
            };
            Ok((row.get("id")?, known))
        })
        .collect()
}

async fn write(
    transaction: &mut mesh_db::pool::Transaction<'_>,
    appended: &Appended,
) -> Result<(), sqlx::Error> {
    let entries = &appended.entries;
    let recorded_at = Utc::now().timestamp_micros();
    let seqs = || Column::Ints(entries.iter().map(|e| Some(e.seq.cast_signed())).collect());
    let columns = [
        ("seq", seqs()),
        (
            "id",
            Column::Texts(entries.iter().map(|e| Some(e.fact.id.as_str())).collect()),
        ),
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

    let text =
        |of: fn(&Fact) -> &str| Column::Texts(entries.iter().map(|e| Some(of(&e.fact))).collect());
    let columns = [
        ("seq", seqs()),
        (
            "recorded_at",
            Column::Ints(vec![Some(recorded_at); entries.len()]),
        ),
        ("cluster", text(|fact| &fact.cluster)),
        ("subject", text(|fact| &fact.subject)),
        (
            "body",
            Column::Bytes(entries.iter().map(|e| e.fact.body.as_ref()).collect()),
        ),
    ];
    transaction.conn().insert("payloads", &columns).await?;

    let rows: Vec<index::Row<'_>> = entries
        .iter()
        .map(|entry| index::Row {
            seq: entry.seq.cast_signed(),
            recorded_at,
            cluster: &entry.fact.cluster,
            index: &entry.fact.index,
        })
        .collect();
    index::insert(transaction.conn(), &rows).await?;
    index::insert_nodes(transaction, &rows, &HashSet::new()).await?;

    let sql = Sql::new("UPDATE head SET seq = ")
        .bind(appended.head.seq.cast_signed())
        .push(", chain = ")
        .bind(appended.head.chain.as_slice());
    transaction.conn().execute(&sql).await.map(drop)
}
