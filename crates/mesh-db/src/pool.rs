//! Connections to either database.

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, PgPool};
use sqlx::sqlite::{SqliteConnection, SqlitePool};
use sqlx::{AssertSqlSafe, Connection as _, Postgres, QueryBuilder, Sqlite};

use crate::given::{self, Given};
use crate::sql::{Dialect, Row, Sql, Value};

/// Connections to the database.
#[derive(Clone, Debug)]
pub enum Pool {
    /// A file.
    Sqlite(SqlitePool),
    /// A server.
    Postgres(PgPool),
}

impl Pool {
    /// A connection of its own.
    ///
    /// # Errors
    /// If none can be had in time.
    pub async fn acquire(&self) -> Result<Connection, sqlx::Error> {
        // On the heap: opening a connection is 14 KB of state, which would be a part of every future that may ask something.
        Ok(match self {
            Self::Sqlite(pool) => Connection::Sqlite(Box::pin(pool.acquire()).await?),
            Self::Postgres(pool) => Connection::Postgres(Box::pin(pool.acquire()).await?),
        })
    }

    /// All rows of a query.
    ///
    /// # Errors
    /// If the database cannot be reached or refuses.
    pub async fn rows(&self, sql: &Sql) -> Result<Vec<Row>, sqlx::Error> {
        self.acquire().await?.link().rows(sql).await
    }

    /// The first row of a query.
    ///
    /// # Errors
    /// If the database cannot be reached or refuses.
    pub async fn first(&self, sql: &Sql) -> Result<Option<Row>, sqlx::Error> {
        Ok(self.rows(sql).await?.into_iter().next())
    }

    /// Closes every connection.
    pub async fn close(&self) {
        match self {
            Self::Sqlite(pool) => crate::sqlite::close(pool).await,
            Self::Postgres(pool) => pool.close().await,
        }
    }
}

/// One connection of a pool.
pub enum Connection {
    /// To a file.
    Sqlite(PoolConnection<Sqlite>),
    /// To a server.
    Postgres(PoolConnection<Postgres>),
}

/// What a transaction is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading: all of it sees the same moment.
    Snapshot,
    /// Writing.
    Write,
}

impl Connection {
    /// For statements outside a transaction.
    pub fn link(&mut self) -> Link<'_> {
        match self {
            Self::Sqlite(connection) => Link::Sqlite(connection),
            Self::Postgres(connection) => Link::Postgres(connection),
        }
    }

    /// Begins a transaction, which is undone unless it is committed.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn begin(&mut self, access: Access) -> Result<Transaction<'_>, sqlx::Error> {
        Ok(match self {
            Self::Sqlite(connection) => Transaction::Sqlite(
                connection
                    .begin_with(match access {
                        Access::Snapshot => "BEGIN",
                        // Takes the write lock before anything is read, also against another process.
                        Access::Write => "BEGIN IMMEDIATE",
                    })
                    .await?,
            ),
            Self::Postgres(connection) => Transaction::Postgres(
                connection
                    .begin_with(match access {
                        Access::Snapshot => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
                        Access::Write => "BEGIN",
                    })
                    .await?,
            ),
        })
    }

    /// Does not give the connection back to its pool.
    pub fn close_on_drop(&mut self) {
        match self {
            Self::Sqlite(connection) => connection.close_on_drop(),
            Self::Postgres(connection) => connection.close_on_drop(),
        }
    }
}

/// All or nothing.
pub enum Transaction<'c> {
    /// On a file.
    Sqlite(sqlx::Transaction<'c, Sqlite>),
    /// On a server.
    Postgres(sqlx::Transaction<'c, Postgres>),
}

impl Transaction<'_> {
    /// For statements inside.
    pub fn link(&mut self) -> Link<'_> {
        match self {
            Self::Sqlite(transaction) => Link::Sqlite(transaction),
            Self::Postgres(transaction) => Link::Postgres(transaction),
        }
    }

    /// Makes it durable.
    ///
    /// # Errors
    /// If the database refuses, or is gone: then it may be durable nevertheless.
    pub async fn commit(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite(transaction) => transaction.commit().await,
            Self::Postgres(transaction) => transaction.commit().await,
        }
    }
}

/// Where statements go.
pub enum Link<'c> {
    /// A file.
    Sqlite(&'c mut SqliteConnection),
    /// A server.
    Postgres(&'c mut PgConnection),
}

impl Link<'_> {
    /// All rows of a query.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn rows(self, sql: &Sql) -> Result<Vec<Row>, sqlx::Error> {
        Ok(match self {
            Self::Sqlite(connection) => {
                let query = sqlite(sql).fetch_all(connection).await?;
                query.into_iter().map(Row::Sqlite).collect()
            }
            Self::Postgres(connection) => {
                let query = postgres(sql).fetch_all(connection).await?;
                query.into_iter().map(Row::Postgres).collect()
            }
        })
    }

    /// The first row of a query.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn first(self, sql: &Sql) -> Result<Option<Row>, sqlx::Error> {
        Ok(self.rows(sql).await?.into_iter().next())
    }

    /// Performs a statement, and says how many rows it was about.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn run(self, sql: &Sql) -> Result<u64, sqlx::Error> {
        Ok(match self {
            Self::Sqlite(connection) => sqlite(sql).execute(connection).await?.rows_affected(),
            Self::Postgres(connection) => postgres(sql).execute(connection).await?.rows_affected(),
        })
    }

    /// Inserts rows, given by column, with one statement: what is fastest in each database.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn insert(self, table: &'static str, columns: &Given<'_>) -> Result<(), sqlx::Error> {
        let rows = given::count(columns);
        if rows == 0 {
            return Ok(());
        }
        let into = format!("INSERT INTO {table} ({}) ", given::names(columns));
        match self {
            Self::Sqlite(connection) => {
                let mut insert = QueryBuilder::<Sqlite>::new(into);
                given::push_rows(&mut insert, columns, 0..rows);
                insert.build().execute(connection).await?;
            }
            Self::Postgres(connection) => {
                let mut insert = QueryBuilder::<Postgres>::new(into);
                given::push_arrays(&mut insert, columns);
                insert.build().execute(connection).await?;
            }
        }
        Ok(())
    }
}

fn sqlite(sql: &Sql) -> sqlx::query::Query<'static, Sqlite, sqlx::sqlite::SqliteArguments> {
    let (text, values) = sql.render(Dialect::Sqlite);
    let mut query = sqlx::query(AssertSqlSafe(text));
    for value in values {
        query = match value {
            Value::Int(value) => query.bind(*value),
            Value::Text(value) => query.bind(value.clone()),
            Value::Bytes(value) => query.bind(value.clone()),
            Value::Ints(values) => query.bind(serde_json::Value::from(values.clone()).to_string()),
            Value::Texts(values) => query.bind(serde_json::Value::from(values.clone()).to_string()),
        };
    }
    query
}

fn postgres(sql: &Sql) -> sqlx::query::Query<'static, Postgres, sqlx::postgres::PgArguments> {
    let (text, values) = sql.render(Dialect::Postgres);
    let mut query = sqlx::query(AssertSqlSafe(text));
    for value in values {
        query = match value {
            Value::Int(value) => query.bind(*value),
            Value::Text(value) => query.bind(value.clone()),
            Value::Bytes(value) => query.bind(value.clone()),
            Value::Ints(values) => query.bind(values.clone()),
            Value::Texts(values) => query.bind(values.clone()),
        };
    }
    query
}
