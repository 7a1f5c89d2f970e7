//! Rows whose columns are numbers, texts or bytes, for reading millions of them.
//!
//! sqlx copies every single value of a SQLite row, which costs more than reading it. So SQLite
//! packs all rows of a result into one value: a number as its digits and a comma, a text or bytes as
//! their length, a colon and the bytes. NULL has no digits and no length.

use sqlx::postgres::PgRow;
use sqlx::{Row as _, ValueRef as _};

use crate::pool::Conn;
use crate::sql::{Row, Sql};

/// Bytes of a packed cell, for a first guess of how many there are.
const MEAN_CELL_BYTES: usize = 8;

/// A column to fetch.
#[derive(Clone, Copy, Debug)]
pub enum CellColumn {
    /// A column of integers.
    Int(&'static str),
    /// A column of texts or bytes.
    Bytes(&'static str),
}

impl CellColumn {
    const fn name(self) -> &'static str {
        match self {
            Self::Int(name) | Self::Bytes(name) => name,
        }
    }

    fn packed(self) -> String {
        match self {
            Self::Int(name) => format!("{name}, ','"),
            Self::Bytes(name) => format!("octet_length({name}), ':', {name}"),
        }
    }
}

impl Conn<'_> {
    /// Fetches columns of all rows. `rest` is the query after its columns. Its rows must be few
    /// enough for the memory, and on SQLite shorter than 1 GB together.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn cells(self, columns: &[CellColumn], rest: Sql) -> Result<Cells, sqlx::Error> {
        if let Self::Postgres(_) = &self {
            let names: Vec<&str> = columns.iter().map(|column| column.name()).collect();
            let names = names.join(", ");
            let select = Sql::new(format!("SELECT {names}")).followed_by(rest);
            let rows = self.rows(&select).await?;
            let rows = rows.into_iter().filter_map(|row| match row {
                Row::Postgres(row) => Some(row),
                Row::Sqlite(_) => None,
            });
            return Ok(Cells(Source::Rows(rows.collect())));
        }
        let packed: Vec<String> = columns.iter().map(|column| column.packed()).collect();
        // The inner query orders and limits the rows. One value per row is less to copy than its columns.
        let packed = format!(
            "SELECT group_concat(packed, '') FROM (SELECT concat({}) AS packed",
            packed.join(", ")
        );
        let packed = self
            .first(&Sql::new(packed).followed_by(rest).push(")"))
            .await?;
        let packed = packed.map_or(Ok(None), |row| row.at::<Option<Vec<u8>>>(0));
        let bytes = packed?.unwrap_or_default();
        let spans = spans(&bytes, columns).ok_or_else(|| malformed("not as SQLite packs rows"))?;
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
        spans: Vec<Option<(u32, u32)>>,
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

    /// Returns a row, by its index in the result.
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
    Packed(&'a [u8], &'a [Option<(u32, u32)>]),
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
                Ok(span.map(|(start, end)| &bytes[start as usize..end as usize]))
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
                let number =
                    digits.map(|digits| integer(digits).ok_or_else(|| malformed("not a number")));
                number.transpose()
            }
            RowSource::Row(row) => row.try_get(column),
        }
    }
}

fn malformed(what: &str) -> sqlx::Error {
    sqlx::Error::Decode(what.into())
}

/// Finds the columns in packed rows.
fn spans(packed: &[u8], columns: &[CellColumn]) -> Option<Vec<Option<(u32, u32)>>> {
    // Every end fits.
    u32::try_from(packed.len()).ok()?;
    let mut spans = Vec::with_capacity(packed.len() / MEAN_CELL_BYTES);
    let mut at = 0;
    while at < packed.len() {
        for column in columns {
            let until = match column {
                CellColumn::Int(_) => b',',
                CellColumn::Bytes(_) => b':',
            };
            let digits = at;
            at += packed.get(at..)?.iter().position(|byte| *byte == until)?;
            let number = &packed[digits..at];
            at += 1;
            spans.push(match column {
                _ if number.is_empty() => None,
                CellColumn::Int(_) => Some((digits as u32, at as u32 - 1)),
                CellColumn::Bytes(_) => {
                    let start = at;
                    at = start
                        .checked_add(usize::try_from(integer(number)?).ok()?)
                        .filter(|end| *end <= packed.len())?;
                    Some((start as u32, at as u32))
                }
            });
        }
    }
    Some(spans)
}

/// Parses a number as SQLite writes it.
fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    if digits.is_empty() {
        return None;
    }
    // Negative, because the smallest number has no positive counterpart.
    let negative = digits.iter().try_fold(0_i64, |number, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_sub(digit.into())
    })?;
    match digits.len() == text.len() {
        true => negative.checked_neg(),
        false => Some(negative),
    }
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
        let columns = [
            CellColumn::Int("seq"),
            CellColumn::Int("number"),
            CellColumn::Bytes("name"),
            CellColumn::Bytes("body"),
        ];
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
        assert!(cells.row(0).int(2).unwrap().is_none());
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
        let columns = [CellColumn::Bytes("text"), CellColumn::Int("number")];
        assert_eq!(
            spans(b"1:a-7,0:,", &columns),
            Some(vec![Some((2, 3)), Some((3, 5)), Some((8, 8)), None])
        );
        for packed in [
            "1",
            "1:",
            "1:a",
            "1:a7",
            "2:a",
            "x:1,",
            "-1:a1,",
            "1:a1,1:b",
            "99999999999999999999:a1,",
            "9223372036854775807:a1,",
        ] {
            assert_eq!(spans(packed.as_bytes(), &columns), None, "{packed}");
        }
    }
}
