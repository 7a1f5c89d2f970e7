//! The rows of the table of cursors, as a transaction writes them.
//!
//! That a message is settled stays true, whoever holds the lease by now. So [`save`] only ever moves a cursor forward.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use mesh_db::Bulk;
use mesh_db::pool::WriteTransaction;

use crate::stream::cursor::Cursor;
use crate::stream::queue::{Arrival, EventQueue};

const BEGIN: &str = "INSERT INTO cursors (endpoint, stream, stream_created, settled, above)
 SELECT endpoint, stream, created, settled, '' FROM bulk WHERE EXISTS (SELECT 1 FROM endpoints WHERE name = bulk.endpoint)
 ON CONFLICT (endpoint, stream) DO NOTHING";

const MOVE: &str = "INSERT INTO cursors (endpoint, stream, stream_created, settled, above)
 SELECT endpoint, stream, created, settled, above FROM bulk WHERE TRUE
 ON CONFLICT (endpoint, stream) DO UPDATE SET stream_created = excluded.stream_created, settled = excluded.settled, above = excluded.above
 WHERE cursors.stream_created <> excluded.stream_created OR cursors.settled <= excluded.settled";

/// A cursor to store.
pub(super) struct CursorRow<'a> {
    pub endpoint: Cow<'a, str>,
    pub stream: &'static str,
    pub created: DateTime<Utc>,
    pub cursor: Cursor,
}

/// Stores the cursors that these events move, in the transaction of their outcomes.
pub(super) async fn save_arrivals(
    transaction: &mut WriteTransaction,
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
            endpoint: queue.endpoint.as_str().into(),
            stream: queue.stream,
            created,
            cursor,
        }
    });
    let rows: Vec<CursorRow<'_>> = rows.collect();
    save(transaction, &rows).await
}

/// Stores where endpoints begin, unless they have begun.
pub(super) async fn begin(
    transaction: &mut WriteTransaction,
    rows: &[CursorRow<'_>],
) -> Result<(), sqlx::Error> {
    write(transaction, rows, BEGIN).await
}

/// Moves cursors forward.
pub(super) async fn save(
    transaction: &mut WriteTransaction,
    rows: &[CursorRow<'_>],
) -> Result<(), sqlx::Error> {
    write(transaction, rows, MOVE).await
}

async fn write(
    transaction: &mut WriteTransaction,
    rows: &[CursorRow<'_>],
    sql: &'static str,
) -> Result<(), sqlx::Error> {
    if rows.is_empty() {
        return Ok(());
    }
    let rows = rows.iter().map(|row| (row, row.cursor.ranges()));
    let rows: Vec<(&CursorRow<'_>, String)> = rows.collect();
    let bulk = Bulk::of(&rows)
        .texts("endpoint", |(row, _)| &*row.endpoint)
        .texts("stream", |(row, _)| row.stream)
        .ints("created", |(row, _)| nanos(row.created))
        .ints("settled", |(row, _)| row.cursor.settled.cast_signed())
        .texts("above", |(_, ranges)| ranges.as_str());
    transaction.conn().execute_bulk(&bulk, sql).await.map(drop)
}

/// A stream's time of creation, as the table has it.
pub(super) fn nanos(time: DateTime<Utc>) -> i64 {
    time.timestamp_nanos_opt().unwrap_or_default()
}
