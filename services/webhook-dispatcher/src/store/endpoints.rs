//! The table of endpoints.

use std::collections::BTreeMap;

use audit_outbox::{AuditRow, AuditTable};
use chrono::{DateTime, Utc};
use mesh_db::pool::WriteTransaction;
use mesh_db::sql;
use mesh_db::sql::{Row, Sql};

use crate::config;
use crate::error::Error;
use crate::store::Store;
use crate::store::delivery::{Delivery, time};
use crate::store::saves::save;
use crate::stream::SERVICE;
use crate::string_enum::string_enum;

string_enum! {
    /// Where an endpoint is defined.
    pub enum Source {
        /// Created by the API.
        Api = "api",
        /// Listed in `mesh.toml`.
        File = "file",
    }
}

string_enum! {
    /// Activity state of an endpoint.
    pub enum Activity {
        /// Delivers.
        Active = "active",
        /// Paused by a user, or after days of failures. Events are queued.
        Paused = "paused",
        /// Disabled because the receiver accepts no more events. Events are queued.
        Disabled = "disabled",
        /// Being removed.
        Removed = "removed",
    }
}

/// A row of the table of endpoints.
#[derive(Clone, Debug)]
pub struct EndpointRow {
    /// Full name, including the owner if it belongs to a user.
    pub name: String,
    /// Unique id, new with every creation.
    pub id: String,
    /// Where it is defined.
    pub source: Source,
    /// Unix user who owns it. Empty for endpoints of `mesh.toml`.
    pub owner: String,
    /// Definition without secrets, as JSON.
    pub spec: serde_json::Value,
    /// Encrypted definition with secrets. `None` for endpoints of `mesh.toml`.
    pub secrets: Option<Vec<u8>>,
    /// Activity state.
    pub activity: Activity,
    /// Reason for the activity state.
    pub reason: String,
    /// When the activity state began.
    pub since: DateTime<Utc>,
    /// Incremented by every change.
    pub revision: i64,
    /// When it was created.
    pub created_at: DateTime<Utc>,
    /// When it was last changed.
    pub updated_at: DateTime<Utc>,
}

impl EndpointRow {
    /// A reference that is unambiguous for every user. A plain name would refer to an endpoint of the caller.
    pub fn reference(&self) -> String {
        if self.owner.is_empty() {
            format!("/{}", self.name)
        } else {
            self.name.clone()
        }
    }
}

/// The columns that every reconciliation needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSummary {
    /// Where it is defined.
    pub source: Source,
    /// Activity state.
    pub activity: Activity,
    /// Incremented by every change.
    pub revision: i64,
    /// When it disappeared from the `mesh.toml` of every dispatcher.
    pub unlisted_at: Option<DateTime<Utc>>,
}

/// The table of audit entries about changes of endpoints.
pub static ACTS: AuditTable = AuditTable {
    service: SERVICE,
    kind: "webhook",
    table: "acts",
    id: "id",
    cluster: None,
    body: "body",
    sequence: None,
};

impl Store {
    /// Summaries of all endpoints, by name.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn endpoint_summaries(&self) -> Result<BTreeMap<String, EndpointSummary>, Error> {
        let action = "read endpoints";
        let sql = sql!("SELECT name, source, state, revision, unlisted_at FROM endpoints");
        self.query(action, &sql, |row| {
            let summary = EndpointSummary {
                source: source(row)?,
                activity: activity(row)?,
                revision: row.get("revision")?,
                unlisted_at: row.get::<Option<i64>>("unlisted_at")?.map(time),
            };
            Ok((row.get("name")?, summary))
        })
        .await
    }

    /// All endpoints.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn endpoints(&self) -> Result<Vec<EndpointRow>, Error> {
        let action = "read endpoints";
        let sql = sql!("SELECT * FROM endpoints ORDER BY name");
        self.query(action, &sql, read).await
    }

    /// Reads one endpoint.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn endpoint(&self, name: &str) -> Result<Option<EndpointRow>, Error> {
        let action = "read endpoint";
        let sql = sql!("SELECT * FROM endpoints WHERE name = ?", name);
        self.first(action, &sql, read).await
    }

    /// The existing endpoints among these names.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn named(&self, names: Vec<String>) -> Result<BTreeMap<String, EndpointRow>, Error> {
        let action = "read endpoints";
        if names.is_empty() {
            return Ok(BTreeMap::new());
        }
        let sql = sql!("SELECT * FROM endpoints WHERE name IN ?", names);
        self.query(action, &sql, |row| {
            read(row).map(|stored| (stored.name.clone(), stored))
        })
        .await
    }

    /// Stores the endpoints of `mesh.toml`, by name and specification, all or none.
    ///
    /// # Errors
    /// If one has the name of an endpoint created by the API, or the database write fails.
    pub async fn note_files<'a>(
        &self,
        endpoints: impl Iterator<Item = (&'a str, &'a str)>,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        let note = async {
            let mut transaction = self.database.begin().await?;
            for (name, spec) in endpoints {
                let sql = note_file(name, spec, now);
                if transaction.conn().execute(&sql).await? == 0 {
                    return Ok(Some(name.to_owned()));
                }
            }
            transaction.commit().await?;
            self.changed();
            Ok(None)
        };
        match note.await.map_err(Error::database("store endpoints"))? {
            Some(taken) => Err(Error::NameTaken(taken)),
            None => Ok(()),
        }
    }

    /// Records when an endpoint disappeared from every `mesh.toml`. `None` if it is listed.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn remove_from_config(
        &self,
        name: &str,
        since: Option<DateTime<Utc>>,
    ) -> Result<(), Error> {
        let sql = sql!(
            "UPDATE endpoints SET unlisted_at = ? WHERE source = 'file' AND name = ?",
            since.map(|since| since.timestamp_millis()),
            name,
        );
        self.run("store endpoint", &sql).await.map(drop)
    }

    /// Inserts an endpoint. Returns false if the name is taken.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn create(&self, endpoint: &EndpointRow, act: AuditRow) -> Result<bool, Error> {
        let sql = sql!(
            "INSERT INTO endpoints (name, id, source, owner, spec, secrets, state, reason, since, revision, created_at, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO NOTHING",
            &endpoint.name,
            &endpoint.id,
            endpoint.source.as_str(),
            &endpoint.owner,
            &endpoint.spec.to_string(),
            endpoint.secrets.as_deref(),
            endpoint.activity.as_str(),
            &endpoint.reason,
            endpoint.since.timestamp_millis(),
            endpoint.revision,
            endpoint.created_at.timestamp_millis(),
            endpoint.updated_at.timestamp_millis(),
        );
        self.act("create endpoint", &sql, Some(act)).await
    }

    /// Updates everything but an endpoint's name, id and source. Returns false if it was changed since it was read:
    /// `revision` must match.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn change(
        &self,
        endpoint: &EndpointRow,
        act: Option<AuditRow>,
    ) -> Result<bool, Error> {
        let sql = sql!(
            "UPDATE endpoints SET revision = revision + 1, owner = ?, spec = ?, secrets = ?, state = ?, reason = ?, since = ?, updated_at = ? WHERE name = ? AND revision = ?",
            &endpoint.owner,
            &endpoint.spec.to_string(),
            endpoint.secrets.as_deref(),
            endpoint.activity.as_str(),
            &endpoint.reason,
            endpoint.since.timestamp_millis(),
            endpoint.updated_at.timestamp_millis(),
            &endpoint.name,
            endpoint.revision,
        );
        self.act("change endpoint", &sql, act).await
    }

    /// Changes the activity of an endpoint that is not being removed, and queues notices at other endpoints. Returns
    /// false if there is none, or the activity is already set.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn set_activity(
        &self,
        name: &str,
        activity: Activity,
        reason: &str,
        now: DateTime<Utc>,
        act: Option<AuditRow>,
        notices: &[Delivery],
    ) -> Result<bool, Error> {
        let (state, now) = (activity.as_str(), now.timestamp_millis());
        let sql = sql!(
            "UPDATE endpoints SET revision = revision + 1, state = ?, reason = ?, since = ? WHERE state <> 'removed' AND state <> ? AND name = ?",
            state,
            reason,
            now,
            state,
            name,
        );
        self.act_and_queue("change endpoint", &sql, act, notices)
            .await
    }

    /// Records an action that changed no row.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn note(&self, act: AuditRow) -> Result<(), Error> {
        let sql = ACTS.insertion(&act);
        self.run("store audit entry", &sql).await.map(drop)
    }

    /// Runs a statement and, if it changed a row, records the action in the same transaction.
    pub(super) async fn act(
        &self,
        action: &'static str,
        sql: &Sql,
        act: Option<AuditRow>,
    ) -> Result<bool, Error> {
        self.act_and_queue(action, sql, act, &[]).await
    }

    /// Like [`Store::act`], and queues new messages. Inserting new messages requires no lease of their endpoints.
    async fn act_and_queue(
        &self,
        action: &'static str,
        sql: &Sql,
        act: Option<AuditRow>,
        messages: &[Delivery],
    ) -> Result<bool, Error> {
        let perform = async |transaction: &mut WriteTransaction| {
            if transaction.conn().execute(sql).await? == 0 {
                return Ok(false);
            }
            if let Some(act) = act {
                transaction.conn().execute(&ACTS.insertion(&act)).await?;
            }
            for message in messages {
                save(transaction, &[message]).await?;
            }
            Ok(true)
        };
        let is_changed = self.database.write(action, perform).await?;
        if is_changed {
            self.changed();
        }
        Ok(is_changed)
    }
}

/// Upserts an endpoint of `mesh.toml`, unless the name belongs to one created by the API.
fn note_file(name: &str, spec: &str, now: DateTime<Utc>) -> Sql {
    let now = now.timestamp_millis();
    sql!(
        "INSERT INTO endpoints (name, id, source, owner, spec, state, since, revision, created_at, updated_at) VALUES (?, ?, 'file', '', ?, 'active', ?, 1, ?, ?)
         ON CONFLICT (name) DO UPDATE SET spec = excluded.spec, unlisted_at = NULL,
             state = CASE WHEN endpoints.state = 'removed' THEN 'active' ELSE endpoints.state END,
             created_at = CASE WHEN endpoints.state = 'removed' THEN excluded.created_at ELSE endpoints.created_at END,
             revision = CASE WHEN endpoints.state = 'removed' THEN endpoints.revision + 1 ELSE endpoints.revision END
         WHERE endpoints.source = 'file'",
        name,
        &uuid::Uuid::new_v4().to_string(),
        spec,
        now,
        now,
        now,
    )
}

// The table's CHECK allows no other values.

fn source(row: &Row) -> Result<Source, sqlx::Error> {
    let word: String = row.get("source")?;
    Ok(Source::parse(&word).unwrap_or(Source::Api))
}

fn activity(row: &Row) -> Result<Activity, sqlx::Error> {
    let word: String = row.get("state")?;
    Ok(Activity::parse(&word).unwrap_or(Activity::Active))
}

fn read(row: &Row) -> Result<EndpointRow, sqlx::Error> {
    let mut spec = serde_json::from_str(&row.get::<String>("spec")?).unwrap_or_default();
    config::rename_old_keys(&mut spec);
    Ok(EndpointRow {
        name: row.get("name")?,
        id: row.get("id")?,
        source: source(row)?,
        owner: row.get("owner")?,
        spec,
        secrets: row.get("secrets")?,
        activity: activity(row)?,
        reason: row.get("reason")?,
        since: time(row.get("since")?),
        revision: row.get("revision")?,
        created_at: time(row.get("created_at")?),
        updated_at: time(row.get("updated_at")?),
    })
}
