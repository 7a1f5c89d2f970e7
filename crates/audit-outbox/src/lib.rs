//! Audit entries: a service stores one in the transaction of what it reports, and publishes it to `MESH_AUDIT` afterwards. An entry leaves
//! its table once JetStream has it; a crash at any moment repeats it with the same id, which JetStream recognises.

use std::time::Duration;

use chrono::{DateTime, Utc};
use mesh_bus::{Backoff, Bus, RawMessage};
use mesh_db::Database;
use mesh_db::sql::{Row, Sql};
use mesh_events::proto::mesh::audit::v1::AuditEntry;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::{subject, timestamp};
use prost::Message as _;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Maximum number of entries per batch.
const BATCH_SIZE: u32 = 128;
/// Delay after an error.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Entries were not published.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database cannot be used, or refuses a statement.
    #[error(transparent)]
    Database(#[from] mesh_db::Error),
    /// JetStream did not acknowledge an entry.
    #[error("publish audit entry")]
    Bus(#[from] mesh_bus::Error),
}

/// A service's table of entries that JetStream does not have yet.
#[derive(Debug)]
pub struct AuditTable {
    /// `service` of the entries.
    pub service: &'static str,
    /// `kind` of the entries, and the last token of their subject.
    pub kind: &'static str,
    /// Name of the table.
    pub table: &'static str,
    /// Column of the entry's id.
    pub id: &'static str,
    /// Column of its cluster; `None` if each process publishes for its own.
    pub cluster: Option<&'static str>,
    /// Column of its bytes.
    pub body: &'static str,
    /// Column that numbers the entries as they were stored, if there is one.
    pub sequence: Option<&'static str>,
}

/// An entry, as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRow {
    /// Id of the entry.
    pub id: String,
    /// Its cluster. Empty if the table does not have it.
    pub cluster: String,
    /// Its bytes.
    pub body: Vec<u8>,
}

impl AuditTable {
    /// A new entry.
    pub fn entry(&self, cluster: &str, at: impl Into<Option<DateTime<Utc>>>, act: Act) -> AuditRow {
        let id = uuid::Uuid::new_v4().to_string();
        let entry = AuditEntry {
            id: id.clone(),
            cluster: cluster.to_owned(),
            kind: self.kind.to_owned(),
            at: at.into().map(timestamp),
            service: self.service.to_owned(),
            act: Some(act),
        };
        AuditRow {
            id,
            cluster: cluster.to_owned(),
            body: entry.encode_to_vec(),
        }
    }

    /// The statement that stores an entry, for the transaction of what it reports.
    pub fn insertion(&self, row: &AuditRow) -> Sql {
        let Self {
            table, id, body, ..
        } = self;
        let values = [(&row.id).into(), row.body.as_slice().into()];
        match self.cluster {
            None => Sql::new(format!("INSERT INTO {table} ({id}, {body}) VALUES (")).list(values),
            Some(cluster) => {
                let into = format!("INSERT INTO {table} ({id}, {body}, {cluster}) VALUES (");
                let [id, body] = values;
                Sql::new(into).list([id, body, (&row.cluster).into()])
            }
        }
        .push(")")
    }

    /// The oldest entries. Two processes may publish the same.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn unpublished(
        &self,
        database: &Database,
        limit: u32,
    ) -> Result<Vec<AuditRow>, mesh_db::Error> {
        let rows = self.oldest(database, limit).await?;
        Ok(rows.into_iter().map(|(row, _)| row).collect())
    }

    /// The oldest entries with their numbers.
    async fn oldest(
        &self,
        database: &Database,
        limit: u32,
    ) -> Result<Vec<(AuditRow, i64)>, mesh_db::Error> {
        const ACTION: &str = "read audit entries";
        let columns = [Some(self.id), Some(self.body), self.cluster, self.sequence];
        let columns: Vec<&str> = columns.into_iter().flatten().collect();
        let mut sql = Sql::new(format!("SELECT {} FROM {}", columns.join(", "), self.table));
        if let Some(sequence) = self.sequence {
            sql = sql.push(format!(" ORDER BY {sequence}"));
        }
        let rows = database
            .rows(ACTION, &sql.push(" LIMIT ").bind(limit))
            .await?;
        let read = |row: &Row| {
            let stored = AuditRow {
                id: row.get(self.id)?,
                cluster: match self.cluster {
                    Some(cluster) => row.get(cluster)?,
                    None => String::new(),
                },
                body: row.get(self.body)?,
            };
            let sequence: i64 = match self.sequence {
                Some(sequence) => row.get(sequence)?,
                None => 0,
            };
            Ok((stored, sequence))
        };
        let rows: Result<_, _> = rows.iter().map(read).collect();
        rows.map_err(mesh_db::Error::statement(ACTION))
    }

    /// Publishes the oldest entries, for this cluster if the table does not have it. False if there are none.
    ///
    /// # Errors
    /// If the database refuses, or JetStream did not acknowledge an entry. It holds up no others.
    pub async fn publish(
        &self,
        database: &Database,
        bus: &Bus,
        cluster: &str,
    ) -> Result<bool, Error> {
        let (rows, sequences): (Vec<_>, Vec<_>) =
            self.oldest(database, BATCH_SIZE).await?.into_iter().unzip();
        if rows.is_empty() {
            return Ok(false);
        }
        let cluster_of = |row: &AuditRow| match self.cluster {
            Some(_) => row.cluster.clone(),
            None => cluster.to_owned(),
        };
        let messages = rows.into_iter().map(|row| RawMessage {
            subject: subject::audit(&cluster_of(&row), self.kind),
            id: row.id,
            body: row.body.into(),
        });
        let messages: Vec<RawMessage> = messages.collect();
        let results = bus.publish_many(&messages).await;
        let (mut ids, mut published, mut failed) = (Vec::new(), Vec::new(), None);
        for ((message, sequence), result) in messages.into_iter().zip(sequences).zip(results) {
            match result {
                Ok(()) => {
                    ids.push(message.id);
                    published.push(sequence);
                }
                Err(error) => failed = Some(error),
            }
        }
        if !ids.is_empty() {
            let delete =
                |column: &str| Sql::new(format!("DELETE FROM {} WHERE {column}", self.table));
            let delete = match self.sequence {
                Some(sequence) => delete(sequence).any_of(published),
                None => delete(self.id).any_of(ids),
            };
            let action = "delete published audit entries";
            database.change(action, delete, Vec::new()).await?;
        }
        failed.map_or(Ok(true), |error| Err(error.into()))
    }

    /// Publishes until shutdown: when entries were `added`, and at the interval what was added without notice.
    pub async fn run(
        &self,
        database: &Database,
        bus: &Bus,
        (added, interval): (&Notify, Duration),
        shutdown: &CancellationToken,
    ) {
        let mut has_failed = false;
        while !shutdown.is_cancelled() {
            match self.publish(database, bus, "").await {
                Ok(true) => has_failed = false,
                Ok(false) => {
                    has_failed = false;
                    tokio::select! {
                        () = shutdown.cancelled() => {}
                        () = added.notified() => {}
                        () = tokio::time::sleep(interval) => {}
                    }
                }
                Err(error) => {
                    if !std::mem::replace(&mut has_failed, true) {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(error, "audit entries not published, retrying");
                    }
                    Backoff::fixed(RETRY_DELAY).wait(shutdown).await;
                }
            }
        }
    }
}
