//! Statements about many rows at once: the rows go with the statement, which finds them in a table `given`.

use std::ops::Range;

use sqlx::{Postgres, QueryBuilder, Sqlite};

use crate::pool::Link;
use crate::sql::{Column, Row};

/// Rows of one statement on SQLite, where each row has placeholders of its own. Statements are prepared once for each number of rows, so
/// these are powers of two.
const MOST_ROWS: usize = 128;

/// Rows, given by column.
pub type Given<'a> = [(&'static str, Column<'a>)];

impl Link<'_> {
    /// Performs a statement about the rows in `given`, and says how many rows it changed. Inside of a transaction: where the rows are too
    /// many for one statement there are several.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn run_given(
        self,
        given: &Given<'_>,
        statement: &'static str,
    ) -> Result<u64, sqlx::Error> {
        let count = count(given);
        let mut changed = 0;
        match self {
            Self::Sqlite(connection) => {
                for rows in portions(count) {
                    let mut query = sqlite(given, rows, statement);
                    let done = query.build().execute(&mut *connection).await?;
                    changed += done.rows_affected();
                }
            }
            Self::Postgres(connection) => {
                if count > 0 {
                    let mut query = postgres(given, statement);
                    changed = query.build().execute(connection).await?.rows_affected();
                }
            }
        }
        Ok(changed)
    }

    /// All rows of a query about the rows in `given`.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn rows_given(
        self,
        given: &Given<'_>,
        statement: &'static str,
    ) -> Result<Vec<Row>, sqlx::Error> {
        let count = count(given);
        let mut found = Vec::new();
        match self {
            Self::Sqlite(connection) => {
                for rows in portions(count) {
                    let mut query = sqlite(given, rows, statement);
                    let rows = query.build().fetch_all(&mut *connection).await?;
                    found.extend(rows.into_iter().map(Row::Sqlite));
                }
            }
            Self::Postgres(connection) => {
                if count > 0 {
                    let mut query = postgres(given, statement);
                    let rows = query.build().fetch_all(connection).await?;
                    found.extend(rows.into_iter().map(Row::Postgres));
                }
            }
        }
        Ok(found)
    }
}

/// How many rows there are.
pub(crate) fn count(given: &Given<'_>) -> usize {
    given.first().map_or(0, |(_, column)| column.len())
}

/// The names of the columns.
pub(crate) fn names(given: &Given<'_>) -> String {
    let names: Vec<&str> = given.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

/// Goes on with some of the rows as values.
pub(crate) fn push_rows(query: &mut QueryBuilder<Sqlite>, given: &Given<'_>, rows: Range<usize>) {
    query.push_values(rows, |mut values, row| {
        for (_, column) in given {
            column.bind_to(&mut values, row);
        }
    });
}

/// Goes on with a query of all rows. Its text is the same for any number of them, so that it is prepared once.
pub(crate) fn push_arrays(query: &mut QueryBuilder<Postgres>, given: &Given<'_>) {
    query.push("SELECT * FROM UNNEST(");
    let mut arrays = query.separated(", ");
    for (_, column) in given {
        column.bind_all_to(&mut arrays);
    }
    query.push(")");
}

fn portions(count: usize) -> impl Iterator<Item = Range<usize>> {
    let mut begin = 0;
    std::iter::from_fn(move || {
        let size = (count - begin).checked_ilog2().map(|log| 1 << log)?;
        let end = begin + size.min(MOST_ROWS);
        Some(std::mem::replace(&mut begin, end)..end)
    })
}

fn head(given: &Given<'_>) -> String {
    format!("WITH given ({}) AS (", names(given))
}

fn sqlite(given: &Given<'_>, rows: Range<usize>, statement: &'static str) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new(head(given));
    push_rows(&mut query, given, rows);
    query.push(") ").push(statement);
    query
}

fn postgres(given: &Given<'_>, statement: &'static str) -> QueryBuilder<Postgres> {
    let mut query = QueryBuilder::new(head(given));
    push_arrays(&mut query, given);
    query.push(") ").push(statement);
    query
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portions_are_powers_of_two_and_leave_nothing_out() {
        for count in 0..1_000 {
            let mut next = 0;
            for portion in portions(count) {
                assert_eq!(portion.start, next);
                assert!(portion.len().is_power_of_two() && portion.len() <= MOST_ROWS);
                next = portion.end;
            }
            assert_eq!(next, count);
        }
    }
}
