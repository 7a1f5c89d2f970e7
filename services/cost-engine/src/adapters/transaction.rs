//! A database transaction, for a batch of job events.

use std::sync::Arc;

use mesh_db::pool::{Conn, WriteTransaction};
use mesh_db::sql::{Row, Sql};
use sha2::{Digest as _, Sha256};

use super::Store;
use crate::error::Error;

/// A database transaction. Rolled back unless [`Transaction::commit`] is called.
pub struct Transaction {
    inner: WriteTransaction,
    /// Id of this process, for the outbox.
    pub(super) instance: Arc<str>,
}

impl Store {
    /// Begins a transaction.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn begin(&self) -> Result<Transaction, Error> {
        let begun = self.database.begin().await;
        Ok(Transaction {
            inner: begun.map_err(Error::database("begin transaction"))?,
            instance: Arc::clone(&self.database.instance),
        })
    }
}

impl Transaction {
    pub(super) fn conn(&mut self) -> Conn<'_> {
        self.inner.conn()
    }

    /// Commits the transaction.
    ///
    /// # Errors
    /// If the database refuses. Nothing is written then.
    pub async fn commit(self) -> Result<(), Error> {
        let committed = self.inner.commit().await;
        committed.map_err(Error::database("commit costs"))
    }

    /// Locks these runs against other processes until the end of the transaction, because several processes may handle events of the
    /// same run. SQLite has a single writer anyway. The locks are taken in a fixed order, which avoids deadlocks.
    ///
    /// # Errors
    /// If another process holds a lock for too long, or the database refuses.
    pub async fn lock(&mut self, runs: &[(String, String)]) -> Result<(), Error> {
        if !matches!(self.conn(), Conn::Postgres(_)) {
            return Ok(());
        }
        let mut keys: Vec<i64> = runs
            .iter()
            .map(|(cluster, run)| key(cluster, run))
            .collect();
        keys.sort_unstable();
        keys.dedup();
        let sql = Sql::new("SELECT pg_advisory_xact_lock(key)::TEXT FROM UNNEST(")
            .bind(keys)
            .push(") AS key");
        let locked = self.conn().rows(&sql).await;
        locked.map(drop).map_err(Error::database("lock runs"))
    }

    pub(super) async fn first(
        &mut self,
        action: &'static str,
        sql: &Sql,
    ) -> Result<Option<Row>, Error> {
        let row = self.conn().first(sql).await;
        row.map_err(Error::database(action))
    }

    pub(super) async fn run(&mut self, action: &'static str, sql: &Sql) -> Result<u64, Error> {
        let changed = self.conn().execute(sql).await;
        changed.map_err(Error::database(action))
    }
}

/// Lock key of a run: the first bytes of a hash, equal in all processes.
fn key(cluster: &str, run: &str) -> i64 {
    let digest = Sha256::new()
        .chain_update(cluster)
        .chain_update([0])
        .chain_update(run)
        .finalize();
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&digest[..8]);
    i64::from_be_bytes(bytes)
}
