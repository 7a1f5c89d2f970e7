//! Rows whose columns are numbers, texts or bytes, for reading millions of them.
//!
//! sqlx copies every single value of a SQLite row, which costs more than reading it. So SQLite
//! packs all rows of a result into one value: each column as its length, a colon and its bytes.
//! NULL has no length.

use sqlx::postgres::PgRow;
use sqlx::{Row as _, ValueRef as _};

use crate::pool::Conn;
use crate::sql::{Row, Sql};

impl Conn<'_> {
    /// Fetches columns of all rows. `rest` is the query after its columns. Its rows must be few
    /// enough for the memory, and on SQLite shorter than 1 GB together.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn cells(self, columns: &[&str], rest: Sql) -> Result<Cells, sqlx::Error> {
        let names = columns.join(", ");
        if let Self::Postgres(_) = &self {
            let select = Sql::new(format!("SELECT {names}")).followed_by(rest);
            let rows = self.rows(&select).await?;
            let rows = rows.into_iter().filter_map(|row| match row {
                Row::Postgres(row) => Some(row),
                Row::Sqlite(_) => None,
            });
            return Ok(Cells(Source::Rows(rows.collect())));
        }
        let packed: Vec<String> = columns
            .iter()
            .map(|column| format!("octet_length({column}), ':', {column}"))
            .collect();
        let packed = format!(
            "SELECT group_concat(concat({}), '') AS packed FROM (SELECT {names}",
            packed.join(", ")
        );
        let packed = self
            .first(&Sql::new(packed).followed_by(rest).push(")"))
            .await?;
        let packed = packed.map_or(Ok(None), |row| row.at::<Option<Vec<u8>>>(0));
        let bytes = packed?.unwrap_or_default();
        let spans = spans(&bytes).filter(|spans| spans.len() % columns.len() == 0);
        let spans = spans.ok_or_else(|| malformed("not as SQLite packs rows"))?;
        Ok(Cells(Source::Packed {
            bytes,
            spans,
            width: columns.len(),
        }))
    }
}

/// Columns of the rows of a result.
pub struct Cells(Source);

enum Source {
    Packed {
        bytes: Vec<u8>,
        /// Start and end of each column of each row in `bytes`. `None` is NULL.
        spans: Vec<Option<(usize, usize)>>,
        /// Columns per row.
        width: usize,
    },
    Rows(Vec<PgRow>),
}

impl Cells {
    /// Returns the number of rows.
    pub const fn len(&self) -> usize {
        match &self.0 {
            Source::Packed { spans, width, .. } => spans.len() / *width,
            Source::Rows(rows) => rows.len(),
        }
    }

    /// True if there are no rows.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a row, by its place in the result.
    ///
    /// # Panics
    /// If there are not as many.
    pub fn row(&self, place: usize) -> CellRow<'_> {
        CellRow(match &self.0 {
            Source::Packed {
                bytes,
                spans,
                width,
            } => RowSource::Packed(bytes, &spans[place * width..][..*width]),
            Source::Rows(rows) => RowSource::Row(&rows[place]),
        })
    }
}

/// A row of [`Cells`].
#[derive(Clone, Copy)]
pub struct CellRow<'a>(RowSource<'a>);

#[derive(Clone, Copy)]
enum RowSource<'a> {
    Packed(&'a [u8], &'a [Option<(usize, usize)>]),
    Row(&'a PgRow),
}

impl<'a> CellRow<'a> {
    /// Returns a text or bytes, by column index from 0. A text may be invalid UTF-8.
    ///
    /// # Errors
    /// If there is no such column.
    pub fn bytes(self, column: usize) -> Result<Option<&'a [u8]>, sqlx::Error> {
        match self.0 {
            RowSource::Packed(bytes, spans) => {
                let span = spans
                    .get(column)
                    .ok_or(sqlx::Error::ColumnIndexOutOfBounds {
                        index: column,
                        len: spans.len(),
                    })?;
                Ok(span.map(|(start, end)| &bytes[start..end]))
            }
            RowSource::Row(row) => {
                let value = row.try_get_raw(column)?;
                match value.is_null() {
                    true => Ok(None),
                    false => value.as_bytes().map(Some).map_err(sqlx::Error::Decode),
                }
            }
        }
    }

    /// Returns a number, by column index from 0.
    ///
    /// # Errors
    /// If there is no such column, or it is not a number.
    pub fn int(self, column: usize) -> Result<Option<i64>, sqlx::Error> {
        match self.0 {
            RowSource::Packed(..) => {
                let digits = self.bytes(column)?;
                digits
                    .map(|digits| {
                        let number = str::from_utf8(digits)
                            .ok()
                            .and_then(|digits| digits.parse().ok());
                        number.ok_or_else(|| malformed("not a number"))
                    })
                    .transpose()
            }
            RowSource::Row(row) => row.try_get(column),
        }
    }
}

fn malformed(what: &str) -> sqlx::Error {
    sqlx::Error::Decode(what.into())
}

/// Finds the columns in packed rows.
fn spans(packed: &[u8]) -> Option<Vec<Option<(usize, usize)>>> {
    let mut spans = Vec::new();
    let mut at = 0;
    while at < packed.len() {
        let mut length = None;
        loop {
            match packed.get(at)? {
                b':' => break,
                digit @ b'0'..=b'9' => {
                    let before: usize = length.unwrap_or(0);
                    length = Some(before.checked_mul(10)?.checked_add((digit - b'0').into())?);
                }
                _ => return None,
            }
            at += 1;
        }
        at += 1;
        spans.push(match length {
            None => None,
            Some(length) => {
                let start = at;
                at = at.checked_add(length).filter(|end| *end <= packed.len())?;
                Some((start, at))
            }
        });
    }
    Some(spans)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::sqlite::pools;

    #[tokio::test]
    async fn packed_rows_are_those_of_the_table() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("d.db");
        let (writer, readers) = pools("test", &path, 1, Duration::from_secs(5)).unwrap();
        let mut connection = writer.acquire().await.unwrap();
        let table =
            "CREATE TABLE t (seq INTEGER PRIMARY KEY, number INTEGER, name TEXT, body BLOB)";
        let rows = "INSERT INTO t VALUES (1, NULL, NULL, NULL), (2, -9223372036854775808, '', x''),
             (3, 0, '3:abc:ü', x'00ff3a'), (4, 9223372036854775807, 'a' || char(0) || 'b', zeroblob(3)),
             (5, 1, CAST(x'ff3a' AS TEXT), x'3a')";
        for statement in [table, rows] {
            connection
                .conn()
                .execute(&Sql::new(statement))
                .await
                .unwrap();
        }
        let columns = ["seq", "number", "name", "body"];
        let from = |after: i64| {
            Sql::new(" FROM t WHERE seq > ")
                .bind(after)
                .push(" ORDER BY seq")
        };
        let cells = connection.conn().cells(&columns, from(0)).await.unwrap();
        let bytes = |bytes: &'static [u8]| Some(bytes);
        let expected = [
            (None, None, None),
            (Some(i64::MIN), bytes(b""), bytes(b"")),
            (Some(0), bytes("3:abc:ü".as_bytes()), bytes(b"\0\xff:")),
            (Some(i64::MAX), bytes(b"a\0b"), bytes(b"\0\0\0")),
            (Some(1), bytes(b"\xff:"), bytes(b":")),
        ];
        assert_eq!(cells.len(), expected.len());
        for (place, (number, name, body)) in expected.into_iter().enumerate() {
            let row = cells.row(place);
            assert_eq!(row.int(0).unwrap(), Some(place as i64 + 1));
            assert_eq!(row.int(1).unwrap(), number);
            assert_eq!(row.bytes(2).unwrap(), name);
            assert_eq!(row.bytes(3).unwrap(), body);
            assert!(row.bytes(4).is_err());
        }
        assert!(cells.row(2).int(2).is_err());
        assert!(
            connection
                .conn()
                .cells(&columns, from(5))
                .await
                .unwrap()
                .is_empty()
        );
        drop(connection);
        readers.close().await;
        writer.close().await;
    }

    #[test]
    fn other_bytes_are_refused() {
        assert_eq!(
            spans(b"1:a:0:"),
            Some(vec![Some((2, 3)), None, Some((6, 6))])
        );
        for packed in [
            "1",
            "1:",
            "2:a",
            "x:",
            "-1:a",
            "99999999999999999999:a",
            "18446744073709551615:a",
        ] {
            assert_eq!(spans(packed.as_bytes()), None, "{packed}");
        }
    }
}
