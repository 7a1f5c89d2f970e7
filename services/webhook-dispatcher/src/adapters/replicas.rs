//! Who is at work on what.
//!
//! A dispatcher says once a second that it is at work. One that was not heard of for [`TTL`] loses its row, and who takes over its
//! endpoints does so only after that; it finds out when it speaks up again. All times are the database's, so no clocks are compared.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mesh_db::pool::Access;
use mesh_db::sql::{Row, Sql, Value};

use super::store::Store;
use crate::domain::ownership::{Lease, Replica};
use crate::error::Error;

/// Who was not heard of for so long is taken for dead.
pub const TTL: Duration = Duration::from_secs(6);

/// Milliseconds since 1970 by the database's clock.
fn now(sql: Sql) -> Sql {
    sql.either(
        "CAST(unixepoch('subsec') * 1000 AS INTEGER)",
        "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)",
    )
}

impl Store {
    /// Forgets every dispatcher: of a file there is one, which is this.
    ///
    /// # Errors
    /// If the database does not write.
    pub async fn forget_replicas(&self) -> Result<(), Error> {
        self.run("forget replicas", &Sql::new("DELETE FROM replicas"))
            .await
            .map(drop)
    }

    /// Says for the first time that a dispatcher is at work.
    ///
    /// # Errors
    /// If the database does not write.
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

    /// Says that a dispatcher is still at work, and takes those for dead that did not. False if it was taken for dead itself.
    ///
    /// # Errors
    /// If the database does not write.
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
        self.run("expel replicas", &sql).await?;
        Ok(known)
    }

    /// The dispatchers that are at work.
    ///
    /// # Errors
    /// If the database does not read.
    pub async fn replicas(&self) -> Result<Vec<Replica>, Error> {
        let action = "read replicas";
        let rows = self
            .rows(action, &Sql::new("SELECT id, leaving, files FROM replicas"))
            .await?;
        let read = |row: &Row| {
            Ok(Replica {
                id: row.get("id")?,
                leaving: row.get::<i64>("leaving")? != 0,
                files: serde_json::from_str(&row.get::<String>("files")?).unwrap_or_default(),
            })
        };
        let replicas: Result<_, _> = rows.iter().map(read).collect();
        replicas.map_err(Error::database(action))
    }

    /// Who has which lease.
    ///
    /// # Errors
    /// If the database does not read.
    pub async fn leases(&self) -> Result<BTreeMap<String, Lease>, Error> {
        let action = "read leases";
        let rows = self
            .rows(
                action,
                &Sql::new("SELECT endpoint, holder, epoch FROM leases"),
            )
            .await?;
        let read = |row: &Row| {
            let lease = Lease {
                holder: row.get("holder")?,
                epoch: row.get("epoch")?,
            };
            Ok((row.get("endpoint")?, lease))
        };
        let leases: Result<_, _> = rows.iter().map(read).collect();
        leases.map_err(Error::database(action))
    }

    /// Takes the lease of an endpoint, unless somebody at work holds it or was faster; gives the new epoch.
    ///
    /// # Errors
    /// If the database does not write.
    pub async fn take(&self, endpoint: &str, id: &str, seen: i64) -> Result<Option<i64>, Error> {
        let first = Sql::new("INSERT INTO leases (endpoint, holder, epoch, since) VALUES (")
            .list([endpoint.into(), "".into(), 0_i64.into(), 0_i64.into()])
            .push(") ON CONFLICT (endpoint) DO NOTHING");
        self.run("take lease", &first).await?;
        let sql = now(Sql::new("UPDATE leases SET epoch = epoch + 1, holder = ")
            .bind(id)
            .push(", since = "))
        .push(" WHERE endpoint = ")
        .bind(endpoint)
        .push(" AND epoch = ")
        .bind(seen)
        .push(" AND holder NOT IN (SELECT id FROM replicas)");
        let taken = self.run("take lease", &sql).await? > 0;
        Ok(taken.then_some(seen + 1))
    }

    /// Gives a lease back, if it is still this one.
    ///
    /// # Errors
    /// If the database does not write.
    pub async fn release(&self, endpoint: &str, id: &str, epoch: i64) -> Result<(), Error> {
        let sql = Sql::new("UPDATE leases SET holder = '' WHERE endpoint = ")
            .bind(endpoint)
            .push(" AND holder = ")
            .bind(id)
            .push(" AND epoch = ")
            .bind(epoch);
        self.run("release lease", &sql).await.map(drop)
    }

    /// Says that a dispatcher is gone, and gives every lease back.
    ///
    /// # Errors
    /// If the database does not write.
    pub async fn leave(&self, id: &str) -> Result<(), Error> {
        let sql = Sql::new("UPDATE leases SET holder = '' WHERE holder = ").bind(id);
        self.run("release leases", &sql).await?;
        let sql = Sql::new("DELETE FROM replicas WHERE id = ").bind(id);
        self.run("leave replicas", &sql).await.map(drop)
    }

    /// One statement in a transaction of its own, beside those of the writer.
    pub(super) async fn run(&self, action: &'static str, sql: &Sql) -> Result<u64, Error> {
        let run = async {
            let mut connection = self.database.writer.acquire().await?;
            let mut transaction = connection.begin(Access::Write).await?;
            let rows = transaction.link().run(sql).await?;
            transaction.commit().await?;
            Ok(rows)
        };
        run.await.map_err(Error::database(action))
    }
}
