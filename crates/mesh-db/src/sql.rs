//! A statement builder for both dialects: a statement is built once and rendered for the dialect of
//! the connection.
//!
//! Dialect differences have methods: lists of values ([`Sql::any_of`]), text as bytes
//! ([`Sql::bytes`]), bulk rows ([`Column`]) and [`Sql::either`] for the rest. Numbers are `i64`,
//! and so are times: since 1970, in the unit that the service chooses for its tables.

use std::borrow::Cow;
use std::sync::Arc;

use sqlx::postgres::PgRow;
use sqlx::query::Query;
use sqlx::query_builder::Separated;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Decode, Postgres, Row as _, Sqlite, Type};

/// A bound value.
#[derive(Clone, Debug)]
pub enum Value {
    /// A number or NULL.
    Int(Option<i64>),
    /// Text or NULL.
    Text(Option<String>),
    /// Bytes or NULL.
    Bytes(Option<Vec<u8>>),
    /// Numbers, for [`Sql::any_of`].
    Ints(Vec<i64>),
    /// Texts, for [`Sql::any_of`].
    Texts(Vec<String>),
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Int(Some(value))
    }
}

impl From<u32> for Value {
    fn from(value: u32) -> Self {
        Self::Int(Some(value.into()))
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(Some(without_nul(value).into_owned()))
    }
}

impl From<&String> for Value {
    fn from(value: &String) -> Self {
        Self::from(value.as_str())
    }
}

impl From<&[u8]> for Value {
    fn from(value: &[u8]) -> Self {
        Self::Bytes(Some(value.to_vec()))
    }
}

impl From<Option<i64>> for Value {
    fn from(value: Option<i64>) -> Self {
        Self::Int(value)
    }
}

impl From<Option<&str>> for Value {
    fn from(value: Option<&str>) -> Self {
        value.map_or(Self::Text(None), Self::from)
    }
}

impl From<Option<&[u8]>> for Value {
    fn from(value: Option<&[u8]>) -> Self {
        Self::Bytes(value.map(<[u8]>::to_vec))
    }
}

impl From<Vec<i64>> for Value {
    fn from(values: Vec<i64>) -> Self {
        Self::Ints(values)
    }
}

impl From<Vec<String>> for Value {
    fn from(values: Vec<String>) -> Self {
        Self::Texts(values)
    }
}

/// The SQL dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// SQLite.
    Sqlite,
    /// PostgreSQL.
    Postgres,
}

#[derive(Clone, Debug)]
enum Piece {
    Text(Cow<'static, str>),
    Either {
        sqlite: &'static str,
        postgres: &'static str,
    },
    Bind(Value),
    AnyOf(Value),
}

/// A statement.
#[derive(Clone, Debug, Default)]
pub struct Sql {
    pieces: Vec<Piece>,
}

impl Sql {
    /// Starts a statement.
    pub fn new(text: impl Into<Cow<'static, str>>) -> Self {
        Self::default().push(text)
    }

    /// A statement from its whole text, see [`crate::sql!`].
    pub fn of(text: &'static str, values: impl IntoIterator<Item = Value>) -> Self {
        Self::default().append(text, values)
    }

    /// Appends text with values, see [`crate::sql!`].
    #[must_use]
    pub fn append(mut self, text: &'static str, values: impl IntoIterator<Item = Value>) -> Self {
        let mut values = values.into_iter();
        let mut rest = text;
        while let Some(at) = rest.find(['?', '{']) {
            let (before, mark) = rest.split_at(at);
            if let Some(after) = mark.strip_prefix('?') {
                let value = values.next().expect("there is a value for each `?`");
                let list = matches!(value, Value::Ints(_) | Value::Texts(_));
                self = match before.strip_suffix(" IN ").filter(|_| list) {
                    Some(column) => self.push(column).any_of(value),
                    None => self.push(before).bind(value),
                };
                rest = after;
            } else {
                let (part, after) = mark[1..].split_once('}').expect("each `{` is closed");
                let (sqlite, postgres) = part.split_once('|').expect("two dialects in `{|}`");
                self = self.push(before).either(sqlite, postgres);
                rest = after;
            }
        }
        debug_assert!(values.next().is_none(), "more values than `?`: {text}");
        self.push(rest)
    }

    /// Appends text. Never pass untrusted input here; use [`Self::bind`].
    #[must_use]
    pub fn push(mut self, text: impl Into<Cow<'static, str>>) -> Self {
        self.pieces.push(Piece::Text(text.into()));
        self
    }

    /// Appends another part of the statement.
    #[must_use]
    pub fn followed_by(mut self, rest: Self) -> Self {
        self.pieces.extend(rest.pieces);
        self
    }

    /// Appends a placeholder and binds the value.
    #[must_use]
    pub fn bind(mut self, value: impl Into<Value>) -> Self {
        self.pieces.push(Piece::Bind(value.into()));
        self
    }

    /// Appends comma-separated placeholders, as in `VALUES (…`.
    #[must_use]
    pub fn list<const N: usize>(mut self, values: [Value; N]) -> Self {
        for (n, value) in values.into_iter().enumerate() {
            if n > 0 {
                self = self.push(", ");
            }
            self = self.bind(value);
        }
        self
    }

    /// Appends the text for the dialect.
    #[must_use]
    pub fn either(mut self, sqlite: &'static str, postgres: &'static str) -> Self {
        self.pieces.push(Piece::Either { sqlite, postgres });
        self
    }

    /// Appends a membership test, after a column. The text does not depend on the number of values, so it is prepared once.
    #[must_use]
    pub fn any_of(mut self, values: impl Into<Value>) -> Self {
        self.pieces.push(Piece::AnyOf(values.into()));
        self
    }

    /// Appends a text column converted to bytes, because tampered text may not be valid UTF-8.
    #[must_use]
    pub fn bytes(self, column: &'static str) -> Self {
        self.either("CAST(", "convert_to(")
            .push(column)
            .either(" AS BLOB) AS ", ", 'UTF8') AS ")
            .push(column)
    }

    /// Returns the text with placeholders, and the bound values in order.
    pub(crate) fn render(&self, dialect: Dialect) -> (String, Vec<&Value>) {
        let (mut text, mut values) = (String::new(), Vec::new());
        for piece in &self.pieces {
            match piece {
                Piece::Text(part) => text.push_str(part),
                Piece::Either { sqlite, postgres } => text.push_str(match dialect {
                    Dialect::Sqlite => sqlite,
                    Dialect::Postgres => postgres,
                }),
                Piece::Bind(value) => {
                    values.push(value);
                    text.push_str(&format!("${}", values.len()));
                }
                Piece::AnyOf(value) => {
                    values.push(value);
                    let n = values.len();
                    text.push_str(&match dialect {
                        // SQLite has no arrays; the values are bound as JSON.
                        Dialect::Sqlite => format!(" IN (SELECT value FROM json_each(${n}))"),
                        Dialect::Postgres => format!(" = ANY(${n})"),
                    });
                }
            }
        }
        (text, values)
    }
}

/// A statement from its whole text. `?` stands for the next value, `IN ?` for a membership test if the value is a list, and `{a|b}` for `a` in
/// SQLite and `b` in PostgreSQL.
#[macro_export]
macro_rules! sql {
    ($text:expr $(, $value:expr)* $(,)?) => {
        $crate::sql::Sql::of($text, [$($crate::sql::Value::from($value)),*])
    };
}

/// A column of bulk rows.
#[derive(Clone, Debug)]
pub enum Column<'a> {
    /// Numbers or NULL.
    Ints(Vec<Option<i64>>),
    /// Texts or NULL.
    Texts(Vec<Option<&'a str>>),
    /// Bytes.
    Bytes(Vec<&'a [u8]>),
    /// Bytes or NULL.
    Blobs(Vec<Option<&'a [u8]>>),
}

impl Column<'_> {
    pub(crate) const fn len(&self) -> usize {
        match self {
            Self::Ints(values) => values.len(),
            Self::Texts(values) => values.len(),
            Self::Bytes(values) => values.len(),
            Self::Blobs(values) => values.len(),
        }
    }

    /// Binds the value of one row. `last` is the last text of the column.
    pub(crate) fn bind_to(
        &self,
        values: &mut Separated<'_, Sqlite, &str>,
        row: usize,
        last: &mut LastText,
    ) {
        match self {
            Self::Ints(ints) => values.push_bind(ints[row]),
            Self::Texts(texts) => values.push_bind(texts[row].map(|text| last.or(text))),
            Self::Bytes(bytes) => values.push_bind(bytes[row]),
            Self::Blobs(blobs) => values.push_bind(blobs[row]),
        };
    }

    /// Binds the value of one row to a statement.
    pub(crate) fn bind_one_to(
        &self,
        query: Query<'static, Sqlite, SqliteArguments>,
        row: usize,
        last: &mut LastText,
    ) -> Query<'static, Sqlite, SqliteArguments> {
        match self {
            Self::Ints(ints) => query.bind(ints[row]),
            Self::Texts(texts) => query.bind(texts[row].map(|text| last.or(text))),
            Self::Bytes(bytes) => query.bind(bytes[row]),
            Self::Blobs(blobs) => query.bind(blobs[row]),
        }
    }

    /// Appends the value of one row in the binary format of COPY: its length, or -1 for NULL, and
    /// its bytes.
    pub(crate) fn copy_to(&self, buffer: &mut Vec<u8>, row: usize) {
        let mut put = |bytes: Option<&[u8]>| {
            let length = bytes.map_or(-1, |bytes| {
                i32::try_from(bytes.len()).expect("a message of NATS is shorter")
            });
            buffer.extend_from_slice(&length.to_be_bytes());
            buffer.extend_from_slice(bytes.unwrap_or_default());
        };
        match self {
            Self::Ints(ints) => put(ints[row]
                .map(i64::to_be_bytes)
                .as_ref()
                .map(|bytes| &bytes[..])),
            Self::Texts(texts) => {
                let text = texts[row].map(without_nul);
                put(text.as_ref().map(|text| text.as_bytes()));
            }
            Self::Bytes(bytes) => put(Some(bytes[row])),
            Self::Blobs(blobs) => put(blobs[row]),
        }
    }

    /// Binds all values as an array.
    pub(crate) fn bind_all_to(&self, values: &mut Separated<'_, Postgres, &str>) {
        match self {
            Self::Ints(ints) => values.push_bind(ints.as_slice()),
            Self::Texts(texts) => {
                let texts: Vec<_> = texts.iter().map(|text| text.map(without_nul)).collect();
                values.push_bind(texts)
            }
            Self::Bytes(bytes) => values.push_bind(bytes.as_slice()),
            Self::Blobs(blobs) => values.push_bind(blobs.as_slice()),
        };
    }
}

/// The last text of a column, which is often that of the next row too. sqlx needs a copy of every bound text.
#[derive(Clone, Default)]
pub(crate) struct LastText(Option<Arc<str>>);

impl LastText {
    fn or(&mut self, text: &str) -> Arc<str> {
        match &self.0 {
            Some(last) if **last == *text => Arc::clone(last),
            _ => {
                let copy = Arc::from(without_nul(text));
                self.0 = Some(Arc::clone(&copy));
                copy
            }
        }
    }
}

/// Replaces NUL characters, which PostgreSQL cannot store. Applied on both dialects.
fn without_nul(text: &str) -> Cow<'_, str> {
    if text.contains('\0') {
        text.replace('\0', "\u{fffd}").into()
    } else {
        text.into()
    }
}

/// A row of a result.
pub enum Row {
    /// SQLite.
    Sqlite(SqliteRow),
    /// PostgreSQL.
    Postgres(PgRow),
}

impl Row {
    /// Returns the value of a column: `i64`, `String`, `Vec<u8>` or an option of these.
    ///
    /// # Errors
    /// If there is no such column, or it has another type.
    pub fn get<'r, T>(&'r self, column: &str) -> Result<T, sqlx::Error>
    where
        T: Decode<'r, Sqlite> + Type<Sqlite> + Decode<'r, Postgres> + Type<Postgres>,
    {
        match self {
            Self::Sqlite(row) => row.try_get(column),
            Self::Postgres(row) => row.try_get(column),
        }
    }

    /// Same as [`Self::get`], by column index from 0: faster when reading millions of rows.
    ///
    /// # Errors
    /// If there is no such column, or it has another type.
    pub fn at<'r, T>(&'r self, column: usize) -> Result<T, sqlx::Error>
    where
        T: Decode<'r, Sqlite> + Type<Sqlite> + Decode<'r, Postgres> + Type<Postgres>,
    {
        match self {
            Self::Sqlite(row) => row.try_get(column),
            Self::Postgres(row) => row.try_get(column),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_rendered_for_either_database() {
        let sql = Sql::new("SELECT ")
            .bytes("id")
            .push(" FROM entries WHERE seq > ")
            .bind(7_i64)
            .push(" AND id")
            .any_of(vec!["a".to_owned()])
            .either("", " FOR UPDATE");
        let whole = Sql::new("SELECT ").bytes("id").append(
            " FROM entries WHERE seq > ? AND id IN ?{| FOR UPDATE}",
            [7_i64.into(), vec!["a".to_owned()].into()],
        );
        for dialect in [Dialect::Sqlite, Dialect::Postgres] {
            assert_eq!(sql.render(dialect).0, whole.render(dialect).0);
        }
        let (sqlite, values) = sql.render(Dialect::Sqlite);
        assert_eq!(
            sqlite,
            "SELECT CAST(id AS BLOB) AS id FROM entries WHERE seq > $1 AND id IN (SELECT value FROM json_each($2))"
        );
        assert_eq!(values.len(), 2);
        let (postgres, _) = sql.render(Dialect::Postgres);
        assert_eq!(
            postgres,
            "SELECT convert_to(id, 'UTF8') AS id FROM entries WHERE seq > $1 AND id = ANY($2) FOR UPDATE"
        );
    }

    #[test]
    fn a_list_is_one_value_where_no_membership_is_tested() {
        let sql = crate::sql!(
            "SELECT value FROM {json_each(|UNNEST(}?)",
            vec!["a".to_owned()]
        );
        let (text, values) = sql.render(Dialect::Postgres);
        assert_eq!(text, "SELECT value FROM UNNEST($1)");
        assert_eq!(values.len(), 1);
    }
}
