//! Received positions of streams, and the gaps in them.

use std::collections::BTreeSet;

use mesh_db::pool::{Access, Transaction};
use mesh_db::sql::{Column, Row, Sql};

use super::store::Store;
use crate::domain::gap::Gap;
use crate::domain::sequence_set::SequenceSet;
use crate::error::Error;

/// Number of recent entries that are searched for clusters.
const RECENT_ENTRIES: i64 = 10_000;

/// Position in a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamPosition {
    /// Received sequences.
    pub received: SequenceSet,
    /// When the stream stored the last message that was received without a gap, in microseconds
    /// since 1970.
    pub last_at: Option<i64>,
    /// When the stream was created, in microseconds since 1970.
    pub created_at: Option<i64>,
}

/// Sequences received with a batch, and the times at which the stream stored them.
#[derive(Clone, Debug)]
pub enum BatchSequences {
    /// None: the appended records come from no stream.
    Nothing,
    /// All sequences up to this one.
    UpTo(u64),
    /// Individual messages: sequence, and time in microseconds since 1970.
    Messages(Vec<(u64, i64)>),
}

impl BatchSequences {
    fn add_to(&self, position: &mut StreamPosition) {
        match self {
            Self::Nothing => {}
            Self::UpTo(last) => position.received.insert(1, *last),
            Self::Messages(messages) => {
                let before = position.received.up_to;
                for (sequence, _) in messages {
                    position.received.insert(*sequence, *sequence);
                }
                // Considers only the messages of this batch that are now received without a gap.
                // The times of earlier messages ahead of a gap are not stored. An earlier time is
                // harmless.
                let reached = before + 1..=position.received.up_to;
                let times = messages.iter().filter(|(n, _)| reached.contains(n));
                position.last_at = times.map(|(_, at)| *at).max().max(position.last_at);
            }
        }
    }
}

impl Store {
    /// Returns the position in a stream, or `None` if it is unknown.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn position(&self, stream: &str) -> Result<Option<StreamPosition>, Error> {
        let mut reader = self.database.readers.acquire().await.map_err(Error::Read)?;
        let mut snapshot = reader.begin(Access::Snapshot).await.map_err(Error::Read)?;
        let position = read(&mut snapshot, stream).await;
        position.map_err(Error::Read)
    }

    /// Records gaps of a stream. They count as received from then on. If the stream has no
    /// position, or one of another stream incarnation, it starts at the given one.
    ///
    /// # Errors
    /// If the database refuses. Nothing is recorded then.
    pub async fn record_gaps(
        &self,
        stream: &str,
        begin: Option<&StreamPosition>,
        gaps: &[Gap],
    ) -> Result<(), Error> {
        self.try_note_gaps(stream, begin, gaps)
            .await
            .map_err(Error::Append)
    }

    async fn try_note_gaps(
        &self,
        stream: &str,
        begin: Option<&StreamPosition>,
        gaps: &[Gap],
    ) -> Result<(), sqlx::Error> {
        let mut writer = self.database.writer.acquire().await?;
        let mut transaction = writer.begin(Access::Write).await?;
        // Serialized by the same lock as appends.
        let lock = Sql::new("SELECT seq FROM head").either("", " FOR UPDATE");
        transaction.conn().first(&lock).await?;
        let before = read(&mut transaction, stream).await?;
        let mut position = match begin {
            Some(begin) => begin.clone(),
            None => before.clone().unwrap_or_default(),
        };
        for gap in gaps {
            let last = Sql::new("SELECT COALESCE(MAX(number), 0) AS number FROM holes");
            let last = transaction.conn().first(&last).await?;
            let number = last.map_or(Ok(0), |row| row.get::<i64>("number"))? + 1;
            let mut sql = Sql::new(
                "INSERT INTO holes (number, created_at, first_sequence, last_sequence, from_at, to_at, found_at, stream) VALUES (",
            );
            for value in [
                number,
                gap.created_at,
                gap.first_sequence,
                gap.last_sequence,
                gap.from_at,
                gap.to_at,
                gap.found_at,
            ] {
                sql = sql.bind(value).push(", ");
            }
            let sql = sql.bind(&gap.stream).push(") ON CONFLICT DO NOTHING");
            transaction.conn().execute(&sql).await?;
            if begin.is_none() && gap.last_sequence >= gap.first_sequence {
                let (first, last) = (gap.first_sequence, gap.last_sequence);
                position
                    .received
                    .insert(first.unsigned_abs(), last.unsigned_abs());
                position.last_at = position.last_at.max(Some(gap.to_at));
            }
        }
        write(&mut transaction, stream, before.as_ref(), &position).await?;
        transaction.commit().await
    }

    /// Returns the gaps after a number, in order.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn gaps(&self, after: i64) -> Result<Vec<Gap>, Error> {
        let sql = Sql::new(
            "SELECT number, stream, created_at, first_sequence, last_sequence, from_at, to_at, found_at FROM holes WHERE number > ",
        )
        .bind(after)
        .push(" ORDER BY number");
        let rows = self.rows(&sql).await?;
        let gaps: Result<Vec<_>, _> = rows.iter().map(gap).collect();
        gaps.map_err(Error::Read)
    }

    /// Returns the clusters of the newest entries.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn recent_clusters(&self) -> Result<BTreeSet<String>, Error> {
        let sql = Sql::new(
            "SELECT DISTINCT cluster FROM (SELECT cluster FROM event_index ORDER BY seq DESC LIMIT ",
        )
        .bind(RECENT_ENTRIES)
        .push(") AS recent");
        let rows = self.rows(&sql).await?;
        let clusters: Result<_, _> = rows.iter().map(|row| row.get("cluster")).collect();
        clusters.map_err(Error::Read)
    }
}

/// Stores the sequences of a batch. The caller holds the lock on the head.
pub(super) async fn note(
    transaction: &mut Transaction<'_>,
    stream: &str,
    batch: &BatchSequences,
) -> Result<(), sqlx::Error> {
    if matches!(batch, BatchSequences::Nothing) {
        return Ok(());
    }
    let before = read(transaction, stream).await?;
    let mut position = before.clone().unwrap_or_default();
    if before.is_none()
        && let BatchSequences::Messages(messages) = batch
    {
        // Messages before the first one that the ledger receives are not expected, so they are no
        // gap.
        let first = messages.iter().map(|(sequence, _)| *sequence).min();
        position.received.up_to = first.unwrap_or(1) - 1;
    }
    batch.add_to(&mut position);
    write(transaction, stream, before.as_ref(), &position).await
}

async fn read(
    transaction: &mut Transaction<'_>,
    stream: &str,
) -> Result<Option<StreamPosition>, sqlx::Error> {
    // One statement, because it is part of every append.
    let sql = Sql::new(
        "SELECT last_sequence AS first_sequence, last_sequence, last_at, created_at, CAST(0 AS BIGINT) AS ahead FROM streams WHERE name = ",
    )
    .bind(stream)
    .push(
        " UNION ALL SELECT first_sequence, last_sequence, NULL, NULL, CAST(1 AS BIGINT) FROM streams_ahead WHERE name = ",
    )
    .bind(stream);
    let mut position = None;
    let mut ahead = Vec::new();
    for row in transaction.conn().rows(&sql).await? {
        let first = row.get::<i64>("first_sequence")?.unsigned_abs();
        let last = row.get::<i64>("last_sequence")?.unsigned_abs();
        if row.get::<i64>("ahead")? == 1 {
            ahead.push((first, last));
        } else {
            position = Some(StreamPosition {
                received: SequenceSet {
                    up_to: last,
                    ..SequenceSet::default()
                },
                last_at: row.get("last_at")?,
                created_at: row.get("created_at")?,
            });
        }
    }
    if let Some(position) = &mut position {
        position.received.ahead.extend(ahead);
    }
    Ok(position)
}

async fn write(
    transaction: &mut Transaction<'_>,
    stream: &str,
    before: Option<&StreamPosition>,
    position: &StreamPosition,
) -> Result<(), sqlx::Error> {
    if before == Some(position) {
        return Ok(());
    }
    let optional = |sql: Sql, value: Option<i64>| match value {
        Some(value) => sql.bind(value),
        None => sql.push("NULL"),
    };
    let sql = Sql::new("INSERT INTO streams (name, last_sequence, last_at, created_at) VALUES (")
        .bind(stream)
        .push(", ")
        .bind(position.received.up_to.cast_signed())
        .push(", ");
    let sql = optional(sql, position.last_at).push(", ");
    let sql = optional(sql, position.created_at).push(
        ") ON CONFLICT (name) DO UPDATE SET last_sequence = excluded.last_sequence, last_at = excluded.last_at,
         created_at = excluded.created_at",
    );
    transaction.conn().execute(&sql).await?;
    let ahead = &position.received.ahead;
    if before.is_some_and(|before| before.received.ahead == *ahead)
        || (before.is_none() && ahead.is_empty())
    {
        return Ok(());
    }
    let sql = Sql::new("DELETE FROM streams_ahead WHERE name = ").bind(stream);
    transaction.conn().execute(&sql).await?;
    let of = |value: &u64| Some(value.cast_signed());
    let columns = [
        ("name", Column::Texts(vec![Some(stream); ahead.len()])),
        (
            "first_sequence",
            Column::Ints(ahead.keys().map(of).collect()),
        ),
        (
            "last_sequence",
            Column::Ints(ahead.values().map(of).collect()),
        ),
    ];
    transaction.conn().insert("streams_ahead", &columns).await
}

fn gap(row: &Row) -> Result<Gap, sqlx::Error> {
    Ok(Gap {
        number: row.get("number")?,
        stream: row.get("stream")?,
        created_at: row.get("created_at")?,
        first_sequence: row.get("first_sequence")?,
        last_sequence: row.get("last_sequence")?,
        from_at: row.get("from_at")?,
        to_at: row.get("to_at")?,
        found_at: row.get("found_at")?,
    })
}
