//! Inserts many rows in the form that is fastest for the dialect.

use std::ops::Range;
use std::sync::Arc;

use sqlx::postgres::PgConnection;
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteConnection};
use sqlx::{AssertSqlSafe, Postgres, QueryBuilder, Sqlite};

use crate::bulk::{BulkRows, chunks, count, names, push_arrays};
use crate::pool::Conn;
use crate::sql::LastText;

/// PostgreSQL: minimum number of rows for COPY. With fewer rows its two round trips cost more than
/// they save.
const MIN_COPY_ROWS: usize = 16;
/// Bytes of a COPY sent at a time. The server inserts them while the next are prepared.
const COPY_CHUNK: usize = 64 * 1024;

impl Conn<'_> {
    /// Inserts rows in the form that is fastest for the dialect. Call it in a transaction: SQLite may need several statements. Numbers are
    /// `BIGINT` on PostgreSQL.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn insert(
        self,
        table: &'static str,
        columns: &BulkRows<'_>,
    ) -> Result<(), sqlx::Error> {
        if count(columns) == 0 {
            return Ok(());
        }
        match self {
            Self::Sqlite(connection) => insert_sqlite(connection, table, columns).await,
            Self::Postgres(connection) => insert_postgres(connection, table, columns).await,
        }
    }
}

/// Inserts rows in chunks. The connection's thread inserts one chunk while the next is bound.
async fn insert_sqlite(
    connection: &mut SqliteConnection,
    table: &'static str,
    columns: &BulkRows<'_>,
) -> Result<(), sqlx::Error> {
    let mut prepared: Option<(usize, Arc<str>)> = None;
    let mut bound = chunks(count(columns)).map(|rows| {
        let text = match &prepared {
            Some((count, text)) if *count == rows.len() => Arc::clone(text),
            _ => Arc::from(values_statement(table, columns, rows.len())),
        };
        prepared = Some((rows.len(), Arc::clone(&text)));
        bind_rows(text, columns, rows)
    });
    let mut next = bound.next();
    while let Some(insert) = next {
        let (inserted, following) =
            tokio::join!(biased; insert.execute(&mut *connection), async { bound.next() });
        inserted?;
        next = following;
    }
    Ok(())
}

fn values_statement(table: &str, columns: &BulkRows<'_>, rows: usize) -> String {
    let row = format!("({})", vec!["?"; columns.len()].join(","));
    let rows = vec![row; rows].join(",");
    format!("INSERT INTO {table} ({}) VALUES {rows}", names(columns))
}

fn bind_rows(
    text: Arc<str>,
    columns: &BulkRows<'_>,
    rows: Range<usize>,
) -> Query<'static, Sqlite, SqliteArguments> {
    let mut query = sqlx::query(AssertSqlSafe(text));
    let mut texts = vec![LastText::default(); columns.len()];
    for row in rows {
        for ((_, column), last) in columns.iter().zip(&mut texts) {
            query = column.bind_one_to(query, row, last);
        }
    }
    query
}

/// Inserts rows by COPY, or as arrays if there are few.
async fn insert_postgres(
    connection: &mut PgConnection,
    table: &'static str,
    columns: &BulkRows<'_>,
) -> Result<(), sqlx::Error> {
    if count(columns) < MIN_COPY_ROWS {
        let into = format!("INSERT INTO {table} ({}) ", names(columns));
        let mut insert = QueryBuilder::<Postgres>::new(into);
        push_arrays(&mut insert, columns);
        insert.build().execute(connection).await?;
        return Ok(());
    }
    let statement = format!(
        "COPY {table} ({}) FROM STDIN (FORMAT binary)",
        names(columns)
    );
    let mut copy = connection.copy_in_raw(&statement).await?;
    // <https://www.postgresql.org/docs/current/sql-copy.html>: a signature, flags, no header
    // extension, the rows, and -1 as the trailer.
    let mut buffer = Vec::with_capacity(COPY_CHUNK + COPY_CHUNK / 4);
    buffer.extend_from_slice(b"PGCOPY\n\xff\r\n\0");
    buffer.extend_from_slice(&[0; 8]);
    let width = i16::try_from(columns.len()).expect("a table has fewer columns");
    for row in 0..count(columns) {
        buffer.extend_from_slice(&width.to_be_bytes());
        for (_, column) in columns {
            column.copy_to(&mut buffer, row);
        }
        if buffer.len() >= COPY_CHUNK {
            copy.send(buffer.as_slice()).await?;
            buffer.clear();
        }
    }
    buffer.extend_from_slice(&(-1_i16).to_be_bytes());
    copy.send(buffer.as_slice()).await?;
    copy.finish().await.map(drop)
}
