//! The table of cursors: how far each endpoint is in a stream.
//!
//! That a message is settled stays true, whoever holds the lease by now. So a cursor is only ever moved forward, except
//! when the stream itself was recreated or truncated.

use std::collections::{BTreeMap, HashMap};

use audit_outbox::AuditRow;
use chrono::{DateTime, Utc};
use mesh_db::pool::WriteTransaction;
use mesh_db::sql;
use mesh_db::sql::Row;
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::Error;
use crate::store::Store;
use crate::store::cursor_rows::{self, CursorRow, nanos};
use crate::store::delivery::time;
use crate::store::writer::Command;
use crate::stream::cursor::Cursor;
use crate::stream::queue::EventQueue;

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
        let sql = sql!(
            "SELECT endpoint, settled, above, stream_created FROM cursors WHERE endpoint = ? AND stream = ?",
            endpoint,
            stream,
        );
        self.first(action, &sql, |row| {
            Ok(match row.get::<i64>("stream_created")? == nanos(created) {
                true => read(row)?.1,
                false => Cursor::default(),
            })
        })
        .await
    }

    /// The cursors of all endpoints in a stream.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn cursors(&self, stream: &str) -> Result<HashMap<String, Cursor>, Error> {
        let action = "read cursors";
        let sql = sql!(
            "SELECT endpoint, settled, above FROM cursors WHERE stream = ?",
            stream
        );
        self.query(action, &sql, read).await
    }

    /// The endpoints that are not being removed, with the times of their creation.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn creations(&self) -> Result<BTreeMap<String, DateTime<Utc>>, Error> {
        let action = "read endpoints";
        let sql = sql!("SELECT name, created_at FROM endpoints WHERE state <> 'removed'");
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
                endpoint: endpoint.into(),
                stream,
                created,
                cursor: Cursor::at(*settled),
            })
            .collect();
        let begin =
            async |transaction: &mut WriteTransaction| cursor_rows::begin(transaction, &rows).await;
        Ok(self.database.write("begin cursors", begin).await?)
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
        let (created, last) = (nanos(created), last.cast_signed());
        let sql = sql!(
            "UPDATE cursors SET settled = 0, above = '', stream_created = ? WHERE stream = ? AND stream_created <> ?",
            created,
            stream,
            created,
        );
        let recreated = self.run("reset cursors", &sql).await?;
        let sql = sql!(
            "UPDATE cursors SET above = '', settled = ? WHERE stream = ? AND settled > ?",
            last,
            stream,
            last,
        );
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
        let settled = settled.cast_signed();
        let sql = sql!(
            "UPDATE cursors SET above = '', settled = ? WHERE stream = ? AND stream_created = ? AND settled < ? AND endpoint IN ?",
            settled,
            stream,
            nanos(created),
            settled,
            endpoints,
        );
        let command = Command::Change {
            endpoint: None,
            statements: vec![sql],
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
        let command = Command::SaveCursor(CursorRow {
            endpoint: queue.endpoint.clone().into(),
            stream: queue.stream,
            created,
            cursor,
        });
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
        act: AuditRow,
    ) -> Result<(), Error> {
        let [first, last] = [first, last].map(u64::cast_signed);
        let sql = sql!(
            "UPDATE cursors SET above = '', settled = ?, missed_first = ?, missed_last = ?, missed_count = missed_count + ?, missed_at = ? WHERE endpoint = ? AND stream = ? AND settled < ?",
            last,
            first,
            last,
            last - first + 1,
            now.timestamp_millis(),
            endpoint,
            stream,
            last,
        );
        self.act("store missed events", &sql, Some(act))
            .await
            .map(drop)
    }
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
