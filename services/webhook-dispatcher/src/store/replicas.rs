//! The tables of replicas and leases.
//!
//! A dispatcher sends a heartbeat once a second. After [`TTL`] without one it loses its row, and only then may others
//! take its endpoints. It learns of the loss at its next heartbeat. All times are the database's, so hosts' clocks
//! are never compared.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mesh_db::pool::WriteTransaction;
use mesh_db::sql;
use mesh_db::sql::Sql;

use crate::error::Error;
use crate::store::Store;
use crate::store::ownership::{Replica, StoredLease};

/// A replica without a heartbeat for this long is considered dead.
pub const TTL: Duration = Duration::from_secs(6);

/// Milliseconds since the Unix epoch, by the database's clock.
macro_rules! now {
    () => {
        "{CAST(unixepoch('subsec') * 1000 AS INTEGER)|CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)}"
    };
}
pub(super) use now;

impl Store {
    /// Removes all replicas. For SQLite, where this process is the only one.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn forget_replicas(&self) -> Result<(), Error> {
        let sql = sql!("DELETE FROM replicas");
        self.run("forget replicas", &sql).await.map(drop)
    }

    /// Registers a dispatcher.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn join(&self, id: &str, files: &BTreeSet<String>) -> Result<(), Error> {
        let files = serde_json::Value::from_iter(files.iter().cloned()).to_string();
        let sql = sql!(
            concat!(
                "INSERT INTO replicas (id, leaving, files, seen) VALUES (?, 0, ?, ",
                now!(),
                ")"
            ),
            id,
            &files,
        );
        self.run("join replicas", &sql).await.map(drop)
    }

    /// Replaces the endpoints that a dispatcher's `mesh.toml` lists.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn list(&self, id: &str, files: &BTreeSet<String>) -> Result<(), Error> {
        let files = serde_json::Value::from_iter(files.iter().cloned()).to_string();
        let sql = sql!("UPDATE replicas SET files = ? WHERE id = ?", &files, id);
        self.run("list endpoints", &sql).await.map(drop)
    }

    /// Sends a dispatcher's heartbeat and removes dead replicas. Returns false if this one was removed itself.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn heartbeat(&self, id: &str, leaving: bool) -> Result<bool, Error> {
        let sql = sql!(
            concat!(
                "UPDATE replicas SET leaving = ?, seen = ",
                now!(),
                " WHERE id = ?"
            ),
            i64::from(leaving),
            id,
        );
        let known = self.run("renew leases", &sql).await? > 0;
        let ttl = i64::try_from(TTL.as_millis()).unwrap_or(i64::MAX);
        // A `seen` time from a clock ahead would otherwise keep a replica alive until then.
        let sql = sql!(
            concat!(
                "DELETE FROM replicas WHERE seen < ",
                now!(),
                " - ? OR seen > ",
                now!(),
                " + ?"
            ),
            ttl,
            ttl,
        );
        self.run("expel replicas", &sql).await?;
        Ok(known)
    }

    /// The live dispatchers.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn replicas(&self) -> Result<Vec<Replica>, Error> {
        let action = "read replicas";
        let sql = sql!("SELECT id, leaving, files FROM replicas");
        self.query(action, &sql, |row| {
            Ok(Replica {
                id: row.get("id")?,
                leaving: row.get::<i64>("leaving")? != 0,
                files: serde_json::from_str(&row.get::<String>("files")?).unwrap_or_default(),
            })
        })
        .await
    }

    /// All leases, by endpoint.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn leases(&self) -> Result<BTreeMap<String, StoredLease>, Error> {
        let action = "read leases";
        let sql = sql!("SELECT endpoint, holder, epoch FROM leases");
        self.query(action, &sql, |row| {
            let (holder, epoch) = (row.get("holder")?, row.get("epoch")?);
            Ok((row.get("endpoint")?, StoredLease { holder, epoch }))
        })
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
        let mut by_epoch: BTreeMap<i64, Vec<String>> = BTreeMap::new();
        for (endpoint, seen) in wanted {
            by_epoch.entry(*seen).or_default().push(endpoint.clone());
        }
        let names: Vec<String> = wanted.keys().cloned().collect();
        // Lock in a fixed order, so that two dispatchers that take the same leases do not deadlock.
        let first = sql!(
            "INSERT INTO leases (endpoint, holder, epoch, since) SELECT name, '', 0, 0 FROM endpoints WHERE name IN ? ORDER BY name ON CONFLICT (endpoint) DO NOTHING",
            names.clone(),
        );
        let lock = sql!(
            "SELECT endpoint FROM leases WHERE endpoint IN ? ORDER BY endpoint{| FOR UPDATE}",
            names,
        );
        let take = async |transaction: &mut WriteTransaction| {
            transaction.conn().execute(&first).await?;
            transaction.conn().rows(&lock).await?;
            let mut taken = BTreeMap::new();
            for (seen, names) in by_epoch {
                let sql = sql!(
                    concat!(
                        "UPDATE leases SET epoch = epoch + 1, holder = ?, since = ",
                        now!(),
                        " WHERE endpoint IN ? AND epoch = ? AND holder NOT IN (SELECT id FROM replicas) RETURNING endpoint"
                    ),
                    id,
                    names,
                    seen,
                );
                for row in transaction.conn().rows(&sql).await? {
                    taken.insert(row.get("endpoint")?, seen + 1);
                }
            }
            Ok(taken)
        };
        let taken = self.database.write("take leases", take).await?;
        self.changed();
        Ok(taken)
    }

    /// Releases leases that this dispatcher still holds.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn release(&self, id: &str, endpoints: Vec<String>) -> Result<(), Error> {
        let sql = sql!(
            "UPDATE leases SET holder = '' WHERE holder = ? AND endpoint IN ?",
            id,
            endpoints,
        );
        self.run("release leases", &sql).await.map(drop)
    }

    /// Removes a dispatcher and releases all its leases.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn leave(&self, id: &str) -> Result<(), Error> {
        let sql = sql!("UPDATE leases SET holder = '' WHERE holder = ?", id);
        self.run("release leases", &sql).await?;
        let sql = sql!("DELETE FROM replicas WHERE id = ?", id);
        self.run("leave replicas", &sql).await.map(drop)
    }

    /// Runs one statement in its own transaction, independent of the writer's.
    pub(super) async fn run(&self, action: &'static str, sql: &Sql) -> Result<u64, Error> {
        let rows = self.database.execute(action, sql).await?;
        self.changed();
        Ok(rows)
    }
}
