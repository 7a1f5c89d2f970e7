//! The table of cursors: how far each endpoint is in a stream.
//!
//! That a message is settled stays true, whoever holds the lease by now. So a cursor is only ever moved forward, except
//! when the stream itself was recreated or truncated.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use mesh_db::pool::{Access, Transaction};
use mesh_db::sql::{Column, Row, Sql};
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::Error;
use crate::store::Store;
use crate::store::delivery::time;
use crate::store::endpoints::Act;
use crate::store::writer::Command;
use crate::stream::cursor::Cursor;
use crate::stream::queue::{Arrival, EventQueue};

const BEGIN: &str = "INSERT INTO cursors (endpoint, stream, stream_created, settled, above)
 SELECT endpoint, stream, created, settled, '' FROM bulk WHERE EXISTS (SELECT 1 FROM endpoints WHERE name = bulk.endpoint)
 ON CONFLICT (endpoint, stream) DO NOTHING";

const MOVE: &str = "INSERT INTO cursors (endpoint, stream, stream_created, settled, above)
 SELECT endpoint, stream, created, settled, above FROM bulk WHERE TRUE
 ON CONFLICT (endpoint, stream) DO UPDATE SET stream_created = excluded.stream_created, settled = excluded.settled, above = excluded.above
 WHERE cursors.stream_created <> excluded.stream_created OR cursors.settled <= excluded.settled";

/// Events that an endpoint missed, because the stream no longer had them when it came to them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = WebhookMissed)]
pub struct Missed {
    /// Sequences of SLURM_EVENTS that were gone, of all times. An upper limit: not each had an event for the endpoint.
    pub count: u64,
    /// The first sequence of the last gap.
    pub first_sequence: u64,
    /// The last sequence of the last gap.
    pub last_sequence: u64,
    /// When the last gap was found.
    pub at: DateTime<Utc>,
}

/// A cursor to store.
pub(super) struct CursorRow<'a> {
    pub endpoint: &'a str,
    pub stream: &'a str,
    pub created: DateTime<Utc>,
    pub cursor: Cursor,
}

impl Store {
    /// The cursor of an endpoint in a stream that was created at this time. `None` if it has none yet.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn cursor(
        &self,
        endpoint: &str,
        stream: &str,
        created: DateTime<Utc>,
    ) -> Result<Option<Cursor>, Error> {
        let action = "read cursor";
        let sql = Sql::new(
            "SELECT endpoint, settled, above, stream_created FROM cursors WHERE endpoint = ",
        )
        .bind(endpoint)
        .push(" AND stream = ")
        .bind(stream);
        let Some(row) = self.first(action, &sql).await? else {
            return Ok(None);
        };
        let read = || -> Result<Cursor, sqlx::Error> {
            let is_of_stream = row.get::<i64>("stream_created")? == nanos(created);
            let (_, cursor) = read(&row)?;
            Ok(if is_of_stream {
                cursor
            } else {
                Cursor::default()
            })
        };
        read().map(Some).map_err(Error::database(action))
    }

    /// The cursors of all endpoints in a stream.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn cursors(&self, stream: &str) -> Result<HashMap<String, Cursor>, Error> {
        let action = "read cursors";
        let sql =
            Sql::new("SELECT endpoint, settled, above FROM cursors WHERE stream = ").bind(stream);
        self.query(action, &sql, read).await
    }

    /// The endpoints that are not being removed, with the times of their creation.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn creations(&self) -> Result<BTreeMap<String, DateTime<Utc>>, Error> {
        let action = "read endpoints";
        let sql = Sql::new("SELECT name, created_at FROM endpoints WHERE state <> 'removed'");
        let read = |row: &Row| Ok((row.get("name")?, time(row.get("created_at")?)));
        self.query(action, &sql, read).await
    }

    /// Stores where endpoints begin, unless they have begun.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn begin_cursors(
        &self,
        begin: Vec<(String, u64)>,
        stream: &'static str,
        created: DateTime<Utc>,
    ) -> Result<(), Error> {
        let rows: Vec<CursorRow<'_>> = begin
            .iter()
            .map(|(endpoint, settled)| CursorRow {
                endpoint,
                stream,
                created,
                cursor: Cursor::at(*settled),
            })
            .collect();
        let write = async {
            let mut connection = self.database.inner.writer.acquire().await?;
            let mut transaction = connection.begin(Access::Write).await?;
            write(&mut transaction, &rows, BEGIN).await?;
            transaction.commit().await
        };
        write.await.map_err(Error::database("begin cursors"))
    }

    /// Corrects the cursors of a stream that was recreated, or that lost its end.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn reset_cursors(
        &self,
        stream: &str,
        created: DateTime<Utc>,
        last: u64,
    ) -> Result<(), Error> {
        let sql = Sql::new("UPDATE cursors SET settled = 0, above = '', stream_created = ")
            .bind(nanos(created))
            .push(" WHERE stream = ")
            .bind(stream)
            .push(" AND stream_created <> ")
            .bind(nanos(created));
        let recreated = self.run("reset cursors", &sql).await?;
        let sql = Sql::new("UPDATE cursors SET above = '', settled = ")
            .bind(last.cast_signed())
            .push(" WHERE stream = ")
            .bind(stream)
            .push(" AND settled > ")
            .bind(last.cast_signed());
        let set_back = self.run("reset cursors", &sql).await?;
        if recreated + set_back > 0 {
            tracing::warn!(
                stream,
                recreated,
                set_back,
                "stream was recreated or truncated: cursors of endpoints reset"
            );
        }
        Ok(())
    }

    /// Moves endpoints that have nothing under way to this position.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn advance_cursors(
        &self,
        endpoints: Vec<String>,
        stream: &'static str,
        created: DateTime<Utc>,
        settled: u64,
    ) -> Result<(), Error> {
        let command = Command::AdvanceCursors {
            endpoints,
            stream,
            created,
            settled,
        };
        self.writer.write(None, command).await.map(drop)
    }

    /// Stores the cursor of an endpoint that stops.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn save_cursor(
        &self,
        queue: &EventQueue,
        cursor: Cursor,
        created: DateTime<Utc>,
    ) -> Result<(), Error> {
        let command = Command::SaveCursor {
            endpoint: queue.endpoint.clone(),
            stream: queue.stream,
            created,
            cursor,
        };
        self.writer.write(None, command).await.map(drop)
    }

    /// Records that a stream lacks these sequences, and moves the endpoint behind them.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn report_gap(
        &self,
        endpoint: &str,
        stream: &str,
        first: u64,
        last: u64,
        now: DateTime<Utc>,
        act: Act,
    ) -> Result<(), Error> {
        let [first, last] = [first, last].map(u64::cast_signed);
        let sql = Sql::new("UPDATE cursors SET above = '', settled = ")
            .bind(last)
            .push(", missed_first = ")
            .bind(first)
            .push(", missed_last = ")
            .bind(last)
            .push(", missed_count = missed_count + ")
            .bind(last - first + 1)
            .push(", missed_at = ")
            .bind(now.timestamp_millis())
            .push(" WHERE endpoint = ")
            .bind(endpoint)
            .push(" AND stream = ")
            .bind(stream)
            .push(" AND settled < ")
            .bind(last);
        self.act("store missed events", &sql, Some(act))
            .await
            .map(drop)
    }
}

/// Stores the cursors that these events move, in the transaction of their outcomes.
pub(super) async fn save_arrivals(
    transaction: &mut Transaction<'_>,
    arrivals: impl Iterator<Item = &Arrival>,
) -> Result<(), sqlx::Error> {
    // Sorted, to lock in a fixed order.
    let mut queues: BTreeMap<_, (&Arc<EventQueue>, Vec<u64>)> = BTreeMap::new();
    for Arrival { queue, sequence } in arrivals {
        let entry = queues.entry((&queue.endpoint, queue.stream));
        let (known, settled) = entry.or_insert_with(|| (queue, Vec::new()));
        if !Arc::ptr_eq(known, queue) {
            // Outcomes of an earlier worker that could not be written then. The present one knows what it has settled.
            (*known, *settled) = (queue, Vec::new());
        }
        settled.push(*sequence);
    }
    let rows = queues.into_values().map(|(queue, settled)| {
        let (cursor, created) = queue.cursor_with(settled);
        CursorRow {
            endpoint: &queue.endpoint,
            stream: queue.stream,
            created,
            cursor,
        }
    });
    let rows: Vec<CursorRow<'_>> = rows.collect();
    save(transaction, &rows).await
}

/// Moves cursors forward.
pub(super) async fn save(
    transaction: &mut Transaction<'_>,
    rows: &[CursorRow<'_>],
) -> Result<(), sqlx::Error> {
    write(transaction, rows, MOVE).await
}

async fn write(
    transaction: &mut Transaction<'_>,
    rows: &[CursorRow<'_>],
    sql: &'static str,
) -> Result<(), sqlx::Error> {
    if rows.is_empty() {
        return Ok(());
    }
    let ranges: Vec<String> = rows.iter().map(|row| row.cursor.ranges()).collect();
    let numbers = |of: fn(&CursorRow<'_>) -> i64| {
        Column::Ints(rows.iter().map(|row| Some(of(row))).collect())
    };
    let bulk = [
        (
            "endpoint",
            Column::Texts(rows.iter().map(|row| Some(row.endpoint)).collect()),
        ),
        (
            "stream",
            Column::Texts(rows.iter().map(|row| Some(row.stream)).collect()),
        ),
        ("created", numbers(|row| nanos(row.created))),
        ("settled", numbers(|row| row.cursor.settled.cast_signed())),
        (
            "above",
            Column::Texts(ranges.iter().map(|text| Some(text.as_str())).collect()),
        ),
    ];
    transaction.conn().execute_bulk(&bulk, sql).await.map(drop)
}

/// Moves endpoints forward that have nothing under way.
pub(super) fn advance(
    endpoints: Vec<String>,
    stream: &str,
    created: DateTime<Utc>,
    settled: u64,
) -> Sql {
    Sql::new("UPDATE cursors SET above = '', settled = ")
        .bind(settled.cast_signed())
        .push(" WHERE stream = ")
        .bind(stream)
        .push(" AND stream_created = ")
        .bind(nanos(created))
        .push(" AND settled < ")
        .bind(settled.cast_signed())
        .push(" AND endpoint")
        .any_of(endpoints)
}

/// The gaps of an endpoint, from a row that has their columns.
pub(super) fn missed(row: &Row) -> Result<Option<Missed>, sqlx::Error> {
    let number = |name| row.get::<Option<i64>>(name).map(Option::unwrap_or_default);
    let count = number("missed_count")?.unsigned_abs();
    Ok((count > 0).then_some(Missed {
        count,
        first_sequence: number("missed_first")?.unsigned_abs(),
        last_sequence: number("missed_last")?.unsigned_abs(),
        at: time(number("missed_at")?),
    }))
}

fn read(row: &Row) -> Result<(String, Cursor), sqlx::Error> {
    let settled = row.get::<i64>("settled")?.unsigned_abs();
    let cursor = Cursor::parse(settled, &row.get::<String>("above")?);
    Ok((row.get("endpoint")?, cursor))
}

fn nanos(time: DateTime<Utc>) -> i64 {
    time.timestamp_nanos_opt().unwrap_or_default()
}
