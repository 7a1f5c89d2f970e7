//! Integrity check of the database itself: its pages and indexes.

use std::panic::resume_unwind;

use mesh_db::pool::{Access, Connection, Pool};
use mesh_db::sql::{Dialect, Sql};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::indexes::OrderCheck;
use super::outcome::Integrity;
use super::{indexes, partial_indexes};
use crate::error::Error;

/// Page cache of SQLite's integrity check in KiB. It looks up every row in every index.
pub const INTEGRITY_CACHE_KIB: u32 = 16 * 1024;

/// The integrity check, running beside the verification because it is as much work for one core.
pub struct IntegrityCheck {
    running: JoinHandle<Result<Integrity, sqlx::Error>>,
    cancelled: CancellationToken,
}

impl IntegrityCheck {
    /// Starts the check. SQLite checks the whole file. PostgreSQL checks the indexes of the
    /// ledger's tables by reading each beside its table. The extension amcheck checks the order of
    /// their keys, if it is there.
    pub fn start(pool: Pool) -> Self {
        let cancelled = CancellationToken::new();
        let is_cancelled = cancelled.clone();
        let running = tokio::spawn(async move {
            let mut connection = pool.acquire().await?;
            connection.close_on_drop();
            let interrupt = is_cancelled.clone();
            connection
                .interrupt_when(move || interrupt.is_cancelled())
                .await?;
            let check = async {
                match connection.dialect() {
                    Dialect::Sqlite => of_sqlite(&mut connection).await,
                    Dialect::Postgres => of_postgres(&mut connection, &pool).await,
                }
            };
            let cancelled = is_cancelled.run_until_cancelled(check).await;
            cancelled.unwrap_or_else(|| Ok(Integrity::Unasked("cancelled".to_owned())))
        });
        Self { running, cancelled }
    }

    /// Returns the result.
    pub async fn result(&mut self) -> Result<Integrity, Error> {
        match (&mut self.running).await {
            Ok(result) => result.map_err(Error::Read),
            Err(error) => resume_unwind(error.into_panic()),
        }
    }

    /// Ends the check if it still runs, so that it does not occupy the database.
    pub async fn end(self) {
        self.cancelled.cancel();
        if !self.running.is_finished() {
            self.running.await.ok();
        }
    }
}

async fn of_sqlite(connection: &mut Connection) -> Result<Integrity, sqlx::Error> {
    let cache = Sql::new(format!("PRAGMA cache_size = -{INTEGRITY_CACHE_KIB}"));
    connection.conn().execute(&cache).await?;
    let mut snapshot = connection.begin(Access::Snapshot).await?;
    let sql = Sql::new("PRAGMA integrity_check(1)");
    let row = snapshot.conn().first(&sql).await?;
    let text = row.map(|row| row.get::<String>("integrity_check"));
    let damage = match text.transpose()?.as_deref() {
        Some("ok") => partial_indexes::damage(&mut snapshot).await?,
        text => Some(text.unwrap_or("it says nothing").to_owned()),
    };
    snapshot.commit().await?;
    Ok(damage.map_or(Integrity::Whole, Integrity::Damaged))
}

async fn of_postgres(connection: &mut Connection, pool: &Pool) -> Result<Integrity, sqlx::Error> {
    let sql = Sql::new(
        "SELECT quote_ident(nspname) AS schema FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE extname = 'amcheck'",
    );
    let Some(row) = connection.conn().first(&sql).await? else {
        return indexes::compare(pool, OrderCheck::Here).await;
    };
    let schema: String = row.get("schema")?;
    let sql = Sql::new(format!(
        "SELECT COUNT({schema}.bt_index_check(i.indexrelid, false)) AS indexes FROM pg_index i
         JOIN pg_class x ON x.oid = i.indexrelid AND x.relkind = 'i' AND x.relam = (SELECT oid FROM pg_am WHERE amname = 'btree')
         WHERE x.relnamespace = current_schema()::regnamespace AND i.indisvalid AND i.indisready"
    ));
    match connection.conn().first(&sql).await {
        // Whether an index has all rows is compared exactly, so amcheck does not look for them.
        Ok(_) => indexes::compare(pool, OrderCheck::Done).await,
        // Insufficient privilege, or no such function in an older version.
        Err(sqlx::Error::Database(error))
            if matches!(error.code().as_deref(), Some("42501" | "42883")) =>
        {
            indexes::compare(pool, OrderCheck::Here).await
        }
        // Class XX reports damaged data or indexes. Any other error is a failed read.
        Err(sqlx::Error::Database(error))
            if error.code().is_some_and(|code| code.starts_with("XX")) =>
        {
            Ok(Integrity::Damaged(error.message().to_owned()))
        }
        Err(error) => Err(error),
    }
}
