//! The tables of replicas and leases.
//!
//! A dispatcher sends a heartbeat once a second. After [`TTL`] without one it loses its row, and only then may others
//! take its endpoints. It learns of the loss at its next heartbeat. All times are the database's, so hosts' clocks
//! are never compared.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mesh_db::pool::Access;
use mesh_db::sql::{Row, Sql, Value};

use crate::error::Error;
use crate::store::Store;
use crate::store::ownership::{Lease, Replica};

/// A replica without a heartbeat for this long is considered dead.
pub const TTL: Duration = Duration::from_secs(6);

/// Milliseconds since the Unix epoch, by the database's clock.
pub(super) fn now(sql: Sql) -> Sql {
    sql.either(
        "CAST(unixepoch('subsec') * 1000 AS INTEGER)",
        "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)",
    )
}

impl Store {
    /// Removes all replicas. For SQLite, where this process is the only one.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn forget_replicas(&self) -> Result<(), Error> {
        self.run("forget replicas", &Sql::new("DELETE FROM replicas"))
            .await
            .map(drop)
    }

    /// Registers a dispatcher.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn join(&self, id: &str, files: &BTreeSet<String>) -> Result<(), Error> {
        let files = serde_json::Value::from_iter(files.iter().cloned()).to_string();
        let sql = now(
            Sql::new("INSERT INTO replicas (id, leaving, files, seen) VALUES (")
                .list([id.into(), 0_i64.into(), Value::from(&files)])
                .push(", "),
        )
        .push(")");
        self.run("join replicas", &sql).await.map(drop)
    }

    /// Replaces the endpoints that a dispatcher's `mesh.toml` lists.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn list(&self, id: &str, files: &BTreeSet<String>) -> Result<(), Error> {
        let files = serde_json::Value::from_iter(files.iter().cloned()).to_string();
        let sql = Sql::new("UPDATE replicas SET files = ")
            .bind(&files)
            .push(" WHERE id = ")
            .bind(id);
        self.run("list endpoints", &sql).await.map(drop)
    }

    /// Sends a dispatcher's heartbeat and removes dead replicas. Returns false if this one was removed itself.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn heartbeat(&self, id: &str, leaving: bool) -> Result<bool, Error> {
        let sql = now(Sql::new("UPDATE replicas SET leaving = ")
            .bind(i64::from(leaving))
            .push(", seen = "))
        .push(" WHERE id = ")
        .bind(id);
        let known = self.run("renew leases", &sql).await? > 0;
        let ttl = i64::try_from(TTL.as_millis()).unwrap_or(i64::MAX);
        let sql = now(Sql::new("DELETE FROM replicas WHERE seen < "))
            .push(" - ")
            .bind(ttl);
        // A `seen` time from a clock ahead would otherwise keep a replica alive until then.
        let sql = now(sql.push(" OR seen > ")).push(" + ").bind(ttl);
        self.run("expel replicas", &sql).await?;
        Ok(known)
    }

    /// The live dispatchers.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn replicas(&self) -> Result<Vec<Replica>, Error> {
        let action = "read replicas";
        let read = |row: &Row| {
            Ok(Replica {
                id: row.get("id")?,
                leaving: row.get::<i64>("leaving")? != 0,
                files: serde_json::from_str(&row.get::<String>("files")?).unwrap_or_default(),
            })
        };
        self.query(
            action,
            &Sql::new("SELECT id, leaving, files FROM replicas"),
            read,
        )
        .await
    }

    /// All leases, by endpoint.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn leases(&self) -> Result<BTreeMap<String, Lease>, Error> {
        let action = "read leases";
        let read = |row: &Row| {
            let lease = Lease {
                holder: row.get("holder")?,
                epoch: row.get("epoch")?,
            };
            Ok((row.get("endpoint")?, lease))
        };
        self.query(
            action,
            &Sql::new("SELECT endpoint, holder, epoch FROM leases"),
            read,
        )
        .await
    }

    /// Takes leases at the epochs that were read, except those that a live replica holds or took first. Returns the
    /// new epochs. All leases are taken in one commit, so that a start with many endpoints takes less time than a
    /// lease lasts.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn take(
        &self,
        id: &str,
        wanted: &BTreeMap<String, i64>,
    ) -> Result<BTreeMap<String, i64>, Error> {
        let action = "take leases";
        let mut by_epoch: BTreeMap<i64, Vec<String>> = BTreeMap::new();
        for (endpoint, seen) in wanted {
            by_epoch.entry(*seen).or_default().push(endpoint.clone());
        }
        let names: Vec<String> = wanted.keys().cloned().collect();
        // Lock in a fixed order, so that two dispatchers that take the same leases do not deadlock.
        let first = Sql::new("INSERT INTO leases (endpoint, holder, epoch, since) SELECT name, '', 0, 0 FROM endpoints WHERE name")
            .any_of(names.clone())
            .push(" ORDER BY name ON CONFLICT (endpoint) DO NOTHING");
        let lock = Sql::new("SELECT endpoint FROM leases WHERE endpoint")
            .any_of(names)
            .push(" ORDER BY endpoint")
            .either("", " FOR UPDATE");
        let take = async {
            let mut connection = self.database.inner.writer.acquire().await?;
            let mut transaction = connection.begin(Access::Write).await?;
            transaction.conn().execute(&first).await?;
            transaction.conn().rows(&lock).await?;
            let mut taken = BTreeMap::new();
            for (seen, names) in by_epoch {
                let sql = now(Sql::new("UPDATE leases SET epoch = epoch + 1, holder = ")
                    .bind(id)
                    .push(", since = "))
                .push(" WHERE endpoint")
                .any_of(names)
                .push(" AND epoch = ")
                .bind(seen)
                .push(" AND holder NOT IN (SELECT id FROM replicas) RETURNING endpoint");
                for row in transaction.conn().rows(&sql).await? {
                    taken.insert(row.get("endpoint")?, seen + 1);
                }
            }
            transaction.commit().await?;
            self.changed();
            Ok(taken)
        };
        take.await.map_err(Error::database(action))
    }

    /// Releases leases that this dispatcher still holds.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn release(&self, id: &str, endpoints: Vec<String>) -> Result<(), Error> {
        let sql = Sql::new("UPDATE leases SET holder = '' WHERE holder = ")
            .bind(id)
            .push(" AND endpoint")
            .any_of(endpoints);
        self.run("release leases", &sql).await.map(drop)
    }

    /// Removes a dispatcher and releases all its leases.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn leave(&self, id: &str) -> Result<(), Error> {
        let sql = Sql::new("UPDATE leases SET holder = '' WHERE holder = ").bind(id);
        self.run("release leases", &sql).await?;
        let sql = Sql::new("DELETE FROM replicas WHERE id = ").bind(id);
        self.run("leave replicas", &sql).await.map(drop)
    }

    /// Runs one statement in its own transaction, independent of the writer's.
    pub(super) async fn run(&self, action: &'static str, sql: &Sql) -> Result<u64, Error> {
        let run = async {
            let mut connection = self.database.inner.writer.acquire().await?;
            let mut transaction = connection.begin(Access::Write).await?;
            let rows = transaction.conn().execute(sql).await?;
            transaction.commit().await?;
            self.changed();
            Ok(rows)
        };
        run.await.map_err(Error::database(action))
    }
}
