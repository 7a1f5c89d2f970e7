//! A service's database: its tables, a pool for writing and one for reading.

use std::sync::Arc;
use std::time::Duration;

use crate::pool::{Connection, Pool, WriteTransaction};
use crate::sql::{Row, Sql};
use crate::{Error, Location, Tables, migrations, postgres, sqlite};

/// Statement timeout of writers on PostgreSQL.
const WRITE_TIMEOUT: &str = "5s";

/// Limits of a database's connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of concurrent queries.
    pub readers: u32,
    /// Maximum number of concurrent writers on PostgreSQL. SQLite has one.
    pub writers: u32,
    /// Time limit of a query.
    pub query_timeout: Duration,
}

/// A service's database. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Database {
    /// Connections for writing.
    pub writer: Pool,
    /// Connections for reading.
    pub readers: Pool,
    /// Id of this process, for rows that it claims. Empty for SQLite, where what an earlier process claimed is this one's.
    pub instance: Arc<str>,
    tables: &'static Tables,
    location: Location,
}

impl Database {
    /// Configures the database without opening it. A SQLite file is created with its folder.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn connect(
        tables: &'static Tables,
        location: &Location,
        limits: Limits,
    ) -> Result<Self, Error> {
        let (
            name,
            Limits {
                readers,
                query_timeout,
                ..
            },
        ) = (tables.name, limits);
        let (writer, readers) = match location {
            Location::Sqlite(path) => {
                if let Some(folder) = path.parent() {
                    // Creating the file reports an error if the folder cannot be created.
                    drop(std::fs::create_dir_all(folder));
                }
                sqlite::pools(name, path, readers, query_timeout)?
            }
            Location::Postgres(options) => (
                postgres::writers(name, options, limits.writers, WRITE_TIMEOUT),
                postgres::readers(name, options, readers, query_timeout),
            ),
        };
        Ok(Self::of_pools(tables, location, writer, readers))
    }

    /// A database with these connections.
    pub fn of_pools(
        tables: &'static Tables,
        location: &Location,
        writer: Pool,
        readers: Pool,
    ) -> Self {
        let instance = match &writer {
            Pool::Sqlite(_) => String::new(),
            Pool::Postgres(_) => uuid::Uuid::new_v4().to_string(),
        };
        Self {
            writer,
            readers,
            instance: instance.into(),
            tables,
            location: location.clone(),
        }
    }

    /// Creates the tables or migrates them to this version.
    ///
    /// # Errors
    /// If the database is unavailable or unsupported, or a migration fails.
    pub async fn prepare(&self) -> Result<(), Error> {
        let (tables, location) = (self.tables, &self.location);
        match (&self.writer, location) {
            (_, Location::Postgres(options)) => tables.migrate(options, location).await,
            (Pool::Sqlite(pool), _) => {
                migrations::run_on_sqlite(tables.name, &tables.sqlite, pool, location).await
            }
            (Pool::Postgres(_), Location::Sqlite(_)) => Ok(()),
        }
    }

    /// True if the database is a server, whose tables other processes may use too.
    pub const fn is_shared(&self) -> bool {
        matches!(self.writer, Pool::Postgres(_))
    }

    /// Its address.
    pub const fn location(&self) -> &Location {
        &self.location
    }

    /// Begins a transaction that writes.
    ///
    /// # Errors
    /// If no connection is available in time, or the database refuses.
    pub async fn begin(&self) -> Result<WriteTransaction, sqlx::Error> {
        WriteTransaction::begin(&self.writer).await
    }

    /// A connection for reading.
    ///
    /// # Errors
    /// If none is available in time.
    pub async fn reader(&self, action: &'static str) -> Result<Connection, Error> {
        let connection = self.readers.acquire().await;
        connection.map_err(Error::statement(action))
    }

    /// Fetches all rows of a query.
    ///
    /// # Errors
    /// If the database cannot be reached or refuses.
    pub async fn rows(&self, action: &'static str, sql: &Sql) -> Result<Vec<Row>, Error> {
        let rows = self.readers.rows(sql).await;
        rows.map_err(Error::statement(action))
    }

    /// The rows of a query, each read by this function.
    ///
    /// # Errors
    /// If the database cannot be reached or refuses, or a column has another type.
    pub async fn query<T, C: FromIterator<T>>(
        &self,
        action: &'static str,
        sql: &Sql,
        read: impl Fn(&Row) -> Result<T, sqlx::Error>,
    ) -> Result<C, Error> {
        let rows = self.rows(action, sql).await?;
        let read: Result<C, sqlx::Error> = rows.iter().map(read).collect();
        read.map_err(Error::statement(action))
    }

    /// Performs writes in one transaction.
    ///
    /// # Errors
    /// If the database cannot be reached or refuses. Nothing is changed then.
    pub async fn write<T>(
        &self,
        action: &'static str,
        write: impl AsyncFnOnce(&mut WriteTransaction) -> Result<T, sqlx::Error>,
    ) -> Result<T, Error> {
        let written = async {
            let mut transaction = self.begin().await?;
            let written = write(&mut transaction).await?;
            transaction.commit().await?;
            Ok(written)
        };
        written.await.map_err(Error::statement(action))
    }

    /// Executes a statement in a transaction of its own. Returns the number of rows.
    ///
    /// # Errors
    /// If the database cannot be reached or refuses.
    pub async fn execute(&self, action: &'static str, sql: &Sql) -> Result<u64, Error> {
        self.write(action, async |transaction| {
            transaction.conn().execute(sql).await
        })
        .await
    }

    /// Executes statements in one transaction. If the first one changes nothing, the others are not executed. Returns whether it did.
    ///
    /// # Errors
    /// If the database cannot be reached or refuses. Nothing is changed then.
    pub async fn change(
        &self,
        action: &'static str,
        first: Sql,
        others: Vec<Sql>,
    ) -> Result<bool, Error> {
        self.write(action, async |transaction| {
            let is_changed = transaction.conn().execute(&first).await? > 0;
            if is_changed {
                for sql in &others {
                    transaction.conn().execute(sql).await?;
                }
            }
            Ok(is_changed)
        })
        .await
    }

    /// Closes all connections. Committed data is on disk already.
    pub async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}

#[cfg(test)]
mod tests {
    use sqlx::migrate::Migrator;

    use super::*;

    static TABLES: Tables = Tables {
        name: "test",
        sqlite: Migrator::DEFAULT,
        postgres: Migrator::DEFAULT,
        first: "rows",
        remedy: "",
    };
    const LIMITS: Limits = Limits {
        readers: 1,
        writers: 1,
        query_timeout: Duration::from_secs(5),
    };

    async fn execute(database: &Database, statements: &[&'static str]) -> Result<(), sqlx::Error> {
        let mut transaction = database.begin().await?;
        for text in statements {
            transaction.conn().execute(&Sql::new(*text)).await?;
        }
        transaction.commit().await
    }

    #[tokio::test]
    async fn the_next_transaction_begins_after_one_that_was_not_committed() {
        let folder = tempfile::tempdir().unwrap();
        let location = Location::Sqlite(folder.path().join("new/d.db"));
        let database = Database::connect(&TABLES, &location, LIMITS).unwrap();
        database.prepare().await.unwrap();
        let create = "CREATE TABLE numbers (number INTEGER PRIMARY KEY, body BLOB)";
        execute(&database, &[create]).await.unwrap();
        let insert = |number: i64| {
            Sql::new("INSERT INTO numbers (number) VALUES (")
                .bind(number)
                .push(") ON CONFLICT (number) DO NOTHING")
        };

        let mut dropped = database.begin().await.unwrap();
        dropped.conn().execute(&insert(1)).await.unwrap();
        drop(dropped);
        // The disk is full, so SQLite ends the transaction by itself. sqlx takes it for open.
        let fill = "INSERT INTO numbers (number, body) VALUES (2, zeroblob(1000000))";
        let full = execute(&database, &["PRAGMA max_page_count = 10", fill]).await;
        assert!(matches!(full, Err(sqlx::Error::Database(_))), "{full:?}");

        let changed = database.change("add", insert(3), vec![insert(4)]).await;
        assert!(changed.unwrap());
        let unchanged = database.change("add", insert(3), vec![insert(5)]).await;
        assert!(!unchanged.unwrap());
        let read = Sql::new("SELECT number FROM numbers ORDER BY number");
        let rows = database.rows("read", &read).await.unwrap();
        let numbers: Vec<i64> = rows.iter().map(|row| row.at(0).unwrap()).collect();
        assert_eq!(numbers, [3, 4]);
        database.close().await;
    }
}
