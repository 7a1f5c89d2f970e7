//! Storing a batch: one transaction, durable when it returns.

use std::collections::HashMap;

use sqlx::{Connection as _, QueryBuilder, Sqlite, SqliteConnection};

use super::index;
use super::sqlite::{Store, head};
use crate::domain::append::{Appended, Entry, Head, Known, append};
use crate::domain::fact::Fact;
use crate::error::Error;

impl Store {
    /// Appends facts of a stream and notes how far the stream has been taken in. All or nothing.
    ///
    /// # Errors
    /// If the database refuses; nothing of the batch is stored then.
    pub async fn append(
        &self,
        stream: &str,
        last_sequence: u64,
        facts: Vec<Fact>,
    ) -> Result<Appended, Error> {
        let mut writer = self.writer.acquire().await.map_err(Error::Append)?;
        let appended = try_append(&mut writer, stream, last_sequence, facts).await;
        match &appended {
            Ok(appended) => drop(self.appended.send_replace(appended.head.seq)),
            // SQLite ends a transaction by itself when the disk is full, and sqlx, which does not know, would begin none on this connection.
            Err(_) => writer.close_on_drop(),
        }
        appended
    }
}

async fn try_append(
    writer: &mut SqliteConnection,
    stream: &str,
    last_sequence: u64,
    facts: Vec<Fact>,
) -> Result<Appended, Error> {
    // IMMEDIATE takes the write lock before the head is read, also against another process.
    let mut transaction = writer
        .begin_with("BEGIN IMMEDIATE")
        .await
        .map_err(Error::Append)?;
    let before = sqlx::query_as("SELECT seq, chain FROM head")
        .fetch_one(&mut *transaction)
        .await
        .map_err(Error::Append)?;
    let before: Head = head(before).ok_or(Error::CorruptHead)?;
    let known = known(&mut transaction, &facts)
        .await
        .map_err(Error::Append)?;
    let appended = append(before, facts, &known);
    write(&mut transaction, stream, last_sequence, &appended)
        .await
        .map_err(Error::Append)?;
    transaction.commit().await.map_err(Error::Append)?;
    Ok(appended)
}

/// Which of the facts are in the ledger already.
async fn known(
    connection: &mut SqliteConnection,
    facts: &[Fact],
) -> Result<HashMap<String, Known>, sqlx::Error> {
    if facts.is_empty() {
        return Ok(HashMap::new());
    }
    let mut query = QueryBuilder::<Sqlite>::new("SELECT id, seq, leaf FROM entries WHERE id IN (");
    let mut ids = query.separated(", ");
    for fact in facts {
        ids.push_bind(&fact.id);
    }
    query.push(")");
    let rows: Vec<(String, i64, Vec<u8>)> = query.build_query_as().fetch_all(connection).await?;
    let known = rows.into_iter().map(|(id, seq, leaf)| {
        // A leaf of another length was tampered with; it equals no leaf, so the fact counts as a conflict.
        let leaf = leaf.try_into().unwrap_or_default();
        (
            id,
            Known {
                seq: seq.unsigned_abs(),
                leaf,
            },
        )
    });
    Ok(known.collect())
}

async fn write(
    connection: &mut SqliteConnection,
    stream: &str,
    last_sequence: u64,
    appended: &Appended,
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO streams (name, last_sequence) VALUES ($1, $2)
         ON CONFLICT (name) DO UPDATE SET last_sequence = excluded.last_sequence
         WHERE excluded.last_sequence > streams.last_sequence",
    )
    .bind(stream)
    .bind(last_sequence.cast_signed())
    .execute(&mut *connection)
    .await?;
    let entries = &appended.entries;
    if entries.is_empty() {
        return Ok(());
    }

    let mut insert = QueryBuilder::<Sqlite>::new("INSERT INTO entries (seq, id, leaf, chain) ");
    insert.push_values(entries, |mut row, entry: &Entry| {
        row.push_bind(entry.seq.cast_signed())
            .push_bind(&entry.fact.id)
            .push_bind(&entry.leaf[..])
            .push_bind(&entry.chain[..]);
    });
    insert.build().execute(&mut *connection).await?;

    let mut insert =
        QueryBuilder::<Sqlite>::new("INSERT INTO payloads (seq, cluster, subject, body) ");
    insert.push_values(entries, |mut row, entry| {
        row.push_bind(entry.seq.cast_signed())
            .push_bind(&entry.fact.cluster)
            .push_bind(&entry.fact.subject)
            .push_bind(entry.fact.body.as_ref());
    });
    insert.build().execute(&mut *connection).await?;

    let rows: Vec<index::Row<'_>> = entries
        .iter()
        .map(|entry| index::Row {
            seq: entry.seq.cast_signed(),
            cluster: &entry.fact.cluster,
            index: &entry.fact.index,
        })
        .collect();
    index::insert(connection, &rows).await?;

    sqlx::query("UPDATE head SET seq = $1, chain = $2")
        .bind(appended.head.seq.cast_signed())
        .bind(&appended.head.chain[..])
        .execute(connection)
        .await?;
    Ok(())
}
