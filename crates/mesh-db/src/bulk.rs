//! Statements with many rows as parameters: the statement reads them from a common table expression named `bulk`.

use std::ops::{Deref, Range};

use sqlx::{Postgres, QueryBuilder, Sqlite};

use crate::pool::Conn;
use crate::sql::{Column, LastText, Row};

/// Maximum number of rows per statement. SQLite needs a placeholder for each value, so a statement
/// is prepared once per number of rows. Chunk sizes are therefore powers of two.
const MAX_CHUNK_ROWS: usize = 128;

/// Rows as named columns.
pub type BulkRows<'a> = [(&'static str, Column<'a>)];

/// [`BulkRows`] of a slice, column by column.
pub struct Bulk<'a, T> {
    rows: &'a [T],
    columns: Vec<(&'static str, Column<'a>)>,
}

impl<'a, T> Bulk<'a, T> {
    /// Rows without columns.
    pub const fn of(rows: &'a [T]) -> Self {
        Self {
            rows,
            columns: Vec::new(),
        }
    }

    fn column(mut self, name: &'static str, column: Column<'a>) -> Self {
        self.columns.push((name, column));
        self
    }

    /// Adds a column of texts or NULL.
    #[must_use]
    pub fn texts<V: Into<Option<&'a str>>>(
        self,
        name: &'static str,
        of: impl Fn(&'a T) -> V,
    ) -> Self {
        let texts = self.rows.iter().map(|row| of(row).into()).collect();
        self.column(name, Column::Texts(texts))
    }

    /// Adds a column of numbers or NULL.
    #[must_use]
    pub fn ints<V: Into<Option<i64>>>(self, name: &'static str, of: impl Fn(&'a T) -> V) -> Self {
        let ints = self.rows.iter().map(|row| of(row).into()).collect();
        self.column(name, Column::Ints(ints))
    }

    /// Adds a column of bytes or NULL.
    #[must_use]
    pub fn blobs(self, name: &'static str, of: impl Fn(&'a T) -> Option<&'a [u8]>) -> Self {
        let blobs = self.rows.iter().map(of).collect();
        self.column(name, Column::Blobs(blobs))
    }
}

impl<'a, T> Deref for Bulk<'a, T> {
    type Target = BulkRows<'a>;

    fn deref(&self) -> &BulkRows<'a> {
        &self.columns
    }
}

impl Conn<'_> {
    /// Executes a statement that reads `bulk` and returns the number of affected rows. Call it in a transaction: SQLite may need several
    /// statements.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn execute_bulk(
        self,
        bulk: &BulkRows<'_>,
        statement: &'static str,
    ) -> Result<u64, sqlx::Error> {
        let count = count(bulk);
        let mut changed = 0;
        match self {
            Self::Sqlite(connection) => {
                for rows in chunks(count) {
                    let mut query = sqlite(bulk, rows, statement);
                    let done = query.build().execute(&mut *connection).await?;
                    changed += done.rows_affected();
                }
            }
            Self::Postgres(connection) => {
                if count > 0 {
                    let mut query = postgres(bulk, statement);
                    changed = query.build().execute(connection).await?.rows_affected();
                }
            }
        }
        Ok(changed)
    }

    /// Fetches all rows of a query that reads `bulk`.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn fetch_bulk(
        self,
        bulk: &BulkRows<'_>,
        statement: &'static str,
    ) -> Result<Vec<Row>, sqlx::Error> {
        let count = count(bulk);
        let mut found = Vec::new();
        match self {
            Self::Sqlite(connection) => {
                for rows in chunks(count) {
                    let mut query = sqlite(bulk, rows, statement);
                    let rows = query.build().fetch_all(&mut *connection).await?;
                    found.extend(rows.into_iter().map(Row::Sqlite));
                }
            }
            Self::Postgres(connection) => {
                if count > 0 {
                    let mut query = postgres(bulk, statement);
                    let rows = query.build().fetch_all(connection).await?;
                    found.extend(rows.into_iter().map(Row::Postgres));
                }
            }
        }
        Ok(found)
    }
}

pub(crate) fn count(bulk: &BulkRows<'_>) -> usize {
    bulk.first().map_or(0, |(_, column)| column.len())
}

pub(crate) fn names(bulk: &BulkRows<'_>) -> String {
    let names: Vec<&str> = bulk.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

/// Appends a range of the rows as `VALUES`.
fn push_rows(query: &mut QueryBuilder<Sqlite>, bulk: &BulkRows<'_>, rows: Range<usize>) {
    let mut texts = vec![LastText::default(); bulk.len()];
    query.push_values(rows, |mut values, row| {
        for ((_, column), last) in bulk.iter().zip(&mut texts) {
            column.bind_to(&mut values, row, last);
        }
    });
}

/// Appends all rows as arrays. The text does not depend on their number, so it is prepared once.
pub(crate) fn push_arrays(query: &mut QueryBuilder<Postgres>, bulk: &BulkRows<'_>) {
    query.push("SELECT * FROM UNNEST(");
    let mut arrays = query.separated(", ");
    for (_, column) in bulk {
        column.bind_all_to(&mut arrays);
    }
    query.push(")");
}

/// Ranges of the rows, of at most [`MAX_CHUNK_ROWS`] each.
pub(crate) fn chunks(count: usize) -> impl Iterator<Item = Range<usize>> {
    let mut begin = 0;
    std::iter::from_fn(move || {
        let size = (count - begin).checked_ilog2().map(|log| 1 << log)?;
        let end = begin + size.min(MAX_CHUNK_ROWS);
        Some(std::mem::replace(&mut begin, end)..end)
    })
}

fn with_clause(bulk: &BulkRows<'_>) -> String {
    format!("WITH bulk ({}) AS (", names(bulk))
}

fn sqlite(
    bulk: &BulkRows<'_>,
    rows: Range<usize>,
    statement: &'static str,
) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new(with_clause(bulk));
    push_rows(&mut query, bulk, rows);
    query.push(") ").push(statement);
    query
}

fn postgres(bulk: &BulkRows<'_>, statement: &'static str) -> QueryBuilder<Postgres> {
    let mut query = QueryBuilder::new(with_clause(bulk));
    push_arrays(&mut query, bulk);
    query.push(") ").push(statement);
    query
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_powers_of_two_and_cover_all_rows() {
        for count in 0..1_000 {
            let mut next = 0;
            for chunk in chunks(count) {
                assert_eq!(chunk.start, next);
                assert!(chunk.len().is_power_of_two() && chunk.len() <= MAX_CHUNK_ROWS);
                next = chunk.end;
            }
            assert_eq!(next, count);
        }
    }
}
