//! Pools, connections and transactions for both databases.

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnection, PgPool};
use sqlx::sqlite::{SqliteConnection, SqlitePool};
use sqlx::{AssertSqlSafe, Connection as _, Postgres, Sqlite};

use crate::sql::{Dialect, Row, Sql, Value};

/// Virtual machine instructions between two checks of the clock, well below a millisecond.
const PROGRESS_INSTRUCTIONS: i32 = 10_000;

/// A connection pool.
#[derive(Clone, Debug)]
pub enum Pool {
    /// SQLite.
    Sqlite(SqlitePool),
    /// PostgreSQL.
    Postgres(PgPool),
}

impl Pool {
    /// Acquires a connection.
    ///
    /// # Errors
    /// If none is available in time.
    pub async fn acquire(&self) -> Result<Connection, sqlx::Error> {
        // Boxed: the state of opening a connection is 14 KB and would enlarge every future that runs a query.
        let pooled = match self {
            Self::Sqlite(pool) => Pooled::Sqlite(Box::pin(pool.acquire()).await?),
            Self::Postgres(pool) => Pooled::Postgres(Box::pin(pool.acquire()).await?),
        };
        Ok(Connection {
            pooled,
            is_beginning: false,
        })
    }

    /// Fetches all rows of a query.
    ///
    /// # Errors
    /// If the database cannot be reached or refuses.
    pub async fn rows(&self, sql: &Sql) -> Result<Vec<Row>, sqlx::Error> {
        self.acquire().await?.conn().rows(sql).await
    }

    /// Fetches the first row of a query.
    ///
    /// # Errors
    /// If the database cannot be reached or refuses.
    pub async fn first(&self, sql: &Sql) -> Result<Option<Row>, sqlx::Error> {
        Ok(self.rows(sql).await?.into_iter().next())
    }

    /// Closes all connections.
    pub async fn close(&self) {
        match self {
            Self::Sqlite(pool) => close_sqlite(pool).await,
            Self::Postgres(pool) => pool.close().await,
        }
    }
}

/// One connection of a pool.
pub struct Connection {
    pooled: Pooled,
    /// A transaction may have begun that sqlx does not know of, because whoever began it did not wait for the answer. The pool would hand
    /// it to the next user, who would read an old snapshot and write without a commit. So the connection is closed.
    is_beginning: bool,
}

enum Pooled {
    Sqlite(PoolConnection<Sqlite>),
    Postgres(PoolConnection<Postgres>),
}

/// Kind of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read-only, with snapshot isolation.
    Snapshot,
    /// Read and write.
    Write,
}

impl Connection {
    /// Borrows the connection for a statement outside a transaction.
    pub fn conn(&mut self) -> Conn<'_> {
        match &mut self.pooled {
            Pooled::Sqlite(connection) => Conn::Sqlite(connection),
            Pooled::Postgres(connection) => Conn::Postgres(connection),
        }
    }

    /// The SQL dialect of its database.
    pub const fn dialect(&self) -> Dialect {
        match self.pooled {
            Pooled::Sqlite(_) => Dialect::Sqlite,
            Pooled::Postgres(_) => Dialect::Postgres,
        }
    }

    /// Begins a transaction. It is rolled back unless it is committed.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn begin(&mut self, access: Access) -> Result<Transaction<'_>, sqlx::Error> {
        self.is_beginning = true;
        let begun = match &mut self.pooled {
            Pooled::Sqlite(connection) => {
                let begin = match access {
                    Access::Snapshot => "BEGIN",
                    // Takes the write lock before the first read, which also excludes other
                    // processes.
                    Access::Write => "BEGIN IMMEDIATE",
                };
                connection.begin_with(begin).await.map(Transaction::Sqlite)
            }
            Pooled::Postgres(connection) => {
                let begin = match access {
                    Access::Snapshot => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
                    Access::Write => "BEGIN",
                };
                let begun = connection.begin_with(begin).await;
                begun.map(Transaction::Postgres)
            }
        };
        self.is_beginning = false;
        begun
    }

    /// Interrupts queries on SQLite once the condition holds, even if their caller is gone. On
    /// PostgreSQL closing the connection ends them.
    ///
    /// # Errors
    /// If the connection is broken.
    pub async fn interrupt_when(
        &mut self,
        condition: impl Fn() -> bool + Send + 'static,
    ) -> Result<(), sqlx::Error> {
        match &mut self.pooled {
            Pooled::Sqlite(connection) => interrupt_when(connection, condition).await,
            Pooled::Postgres(_) => Ok(()),
        }
    }

    /// Closes the connection when it is dropped, instead of returning it to the pool.
    pub fn close_on_drop(&mut self) {
        match &mut self.pooled {
            Pooled::Sqlite(connection) => connection.close_on_drop(),
            Pooled::Postgres(connection) => connection.close_on_drop(),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.is_beginning {
            self.close_on_drop();
        }
    }
}

/// An open transaction.
pub enum Transaction<'c> {
    /// SQLite.
    Sqlite(sqlx::Transaction<'c, Sqlite>),
    /// PostgreSQL.
    Postgres(sqlx::Transaction<'c, Postgres>),
}

impl Transaction<'_> {
    /// Borrows the connection for a statement inside the transaction.
    pub fn conn(&mut self) -> Conn<'_> {
        match self {
            Self::Sqlite(transaction) => Conn::Sqlite(transaction),
            Self::Postgres(transaction) => Conn::Postgres(transaction),
        }
    }

    /// Commits durably.
    ///
    /// # Errors
    /// If the database refuses. If the connection is lost, the transaction may still have been
    /// committed.
    pub async fn commit(self) -> Result<(), sqlx::Error> {
        match self {
            Self::Sqlite(transaction) => transaction.commit().await,
            Self::Postgres(transaction) => transaction.commit().await,
        }
    }
}

/// A transaction that writes, on a connection of its own. If it is not committed, its connection is closed, which rolls it back: SQLite ends
/// a transaction by itself when the disk is full, and a connection to a server may be in the middle of an answer.
pub struct WriteTransaction {
    connection: Connection,
    is_committed: bool,
}

impl WriteTransaction {
    /// Begins a transaction.
    pub(crate) async fn begin(pool: &Pool) -> Result<Self, sqlx::Error> {
        let mut transaction = Self {
            connection: pool.acquire().await?,
            is_committed: false,
        };
        // SQLite: takes the write lock before the first read, which also excludes other processes.
        let begin = Sql::default().either("BEGIN IMMEDIATE", "BEGIN");
        transaction.conn().execute(&begin).await?;
        Ok(transaction)
    }

    /// Borrows the connection for a statement inside the transaction.
    pub fn conn(&mut self) -> Conn<'_> {
        self.connection.conn()
    }

    /// Commits durably.
    ///
    /// # Errors
    /// If the database refuses. If the connection is lost, the transaction may still have been committed.
    pub async fn commit(mut self) -> Result<(), sqlx::Error> {
        self.conn().execute(&Sql::new("COMMIT")).await?;
        self.is_committed = true;
        Ok(())
    }
}

impl Drop for WriteTransaction {
    fn drop(&mut self) {
        if !self.is_committed {
            self.connection.close_on_drop();
        }
    }
}

/// A borrowed connection that executes one statement.
pub enum Conn<'c> {
    /// SQLite.
    Sqlite(&'c mut SqliteConnection),
    /// PostgreSQL.
    Postgres(&'c mut PgConnection),
}

impl Conn<'_> {
    /// Fetches all rows of a query.
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

    /// Fetches the first row of a query.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn first(self, sql: &Sql) -> Result<Option<Row>, sqlx::Error> {
        Ok(self.rows(sql).await?.into_iter().next())
    }

    /// Executes a statement and returns the number of affected rows.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn execute(self, sql: &Sql) -> Result<u64, sqlx::Error> {
        Ok(match self {
            Self::Sqlite(connection) => sqlite(sql).execute(connection).await?.rows_affected(),
            Self::Postgres(connection) => postgres(sql).execute(connection).await?.rows_affected(),
        })
    }
}

/// Checkpoints the WAL into the file, then closes the pool. SQLite checkpoints only when the last
/// connection closes, which may be a reader. A copy of the file alone would then lack the newest
/// rows.
async fn close_sqlite(pool: &SqlitePool) {
    if pool.size() > 0
        && let Ok(mut connection) = pool.acquire().await
    {
        let checkpointed = sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut *connection);
        if let Err(error) = checkpointed.await {
            tracing::debug!(%error, "WAL checkpoint at close failed");
        }
    }
    pool.close().await;
}

/// Interrupts queries on SQLite once the condition holds.
pub(crate) async fn interrupt_when(
    connection: &mut SqliteConnection,
    condition: impl Fn() -> bool + Send + 'static,
) -> Result<(), sqlx::Error> {
    let mut handle = connection.lock_handle().await?;
    handle.set_progress_handler(PROGRESS_INSTRUCTIONS, move || !condition());
    Ok(())
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
