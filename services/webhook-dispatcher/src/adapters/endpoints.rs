//! Endpoints as they are stored.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use mesh_db::pool::Access;
use mesh_db::sql::{Row, Sql, Value};
use serde::Serialize;

use super::delivery::{Delivery, time};
use super::saves::save;
use super::store::Store;
use crate::config;
use crate::error::Error;

/// Where an endpoint is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Made by the API.
    Api,
    /// In `mesh.toml`.
    File,
}

impl Source {
    /// Its word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::File => "file",
        }
    }
}

/// What an endpoint does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Activity {
    /// It is at work.
    Active,
    /// Somebody wants it to wait, or it has failed for days; what comes is queued.
    Paused,
    /// Its receiver wants no more; what comes is queued.
    Disabled,
    /// It is being removed.
    Removed,
}

impl Activity {
    /// Its word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Paused => "paused",
            Self::Disabled => "disabled",
            Self::Removed => "removed",
        }
    }

    fn parse(word: &str) -> Self {
        match word {
            "paused" => Self::Paused,
            "disabled" => Self::Disabled,
            "removed" => Self::Removed,
            // The table's CHECK allows nothing else.
            _ => Self::Active,
        }
    }
}

/// An endpoint as it is stored.
#[derive(Clone, Debug)]
pub struct EndpointRow {
    /// Its full name: with the owner's, if it belongs to a user.
    pub name: String,
    /// New with every creation.
    pub id: String,
    /// Where it is written.
    pub source: Source,
    /// Unix user it belongs to; empty for those of `mesh.toml`.
    pub owner: String,
    /// What it is, without anything secret.
    pub spec: serde_json::Value,
    /// All of it, sealed; `None` for those of `mesh.toml`.
    pub secrets: Option<Vec<u8>>,
    /// What it does.
    pub activity: Activity,
    /// Why.
    pub reason: String,
    /// Since when.
    pub since: DateTime<Utc>,
    /// Grows with every change.
    pub revision: i64,
    /// When it was made.
    pub created_at: DateTime<Utc>,
    /// When it was changed.
    pub updated_at: DateTime<Utc>,
}

impl EndpointRow {
    /// How a request names it, whoever asks: a name alone could be one's own.
    pub fn reference(&self) -> String {
        if self.owner.is_empty() {
            format!("/{}", self.name)
        } else {
            self.name.clone()
        }
    }
}

/// What has to be known of every endpoint all the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSummary {
    /// Where it is written.
    pub source: Source,
    /// What it does.
    pub activity: Activity,
    /// Grows with every change.
    pub revision: i64,
    /// Since when no dispatcher has it in its `mesh.toml`.
    pub unlisted_at: Option<DateTime<Utc>>,
}

/// An act of somebody, for the audit.
#[derive(Clone, Debug)]
pub struct Act {
    /// Id of the entry.
    pub id: String,
    /// The entry.
    pub body: Vec<u8>,
}

impl Store {
    /// Every endpoint in short.
    ///
    /// # Errors
    /// If the database does not read.
    pub async fn outlines(&self) -> Result<BTreeMap<String, EndpointSummary>, Error> {
        let action = "read endpoints";
        let sql = Sql::new("SELECT name, source, state, revision, unlisted_at FROM endpoints");
        let rows = self.rows(action, &sql).await?;
        rows.iter()
            .map(|row| {
                let outline = EndpointSummary {
                    source: source(row)?,
                    activity: Activity::parse(&row.get::<String>("state")?),
                    revision: row.get("revision")?,
                    unlisted_at: row.get::<Option<i64>>("unlisted_at")?.map(time),
                };
                Ok((row.get("name")?, outline))
            })
            .collect::<Result<_, _>>()
            .map_err(Error::database(action))
    }

    /// Every endpoint.
    ///
    /// # Errors
    /// If the database does not read.
    pub async fn endpoints(&self) -> Result<Vec<EndpointRow>, Error> {
        let action = "read endpoints";
        let sql = Sql::new("SELECT * FROM endpoints ORDER BY name");
        let rows = self.rows(action, &sql).await?;
        let read: Result<_, _> = rows.iter().map(read).collect();
        read.map_err(Error::database(action))
    }

    /// One endpoint.
    ///
    /// # Errors
    /// If the database does not read.
    pub async fn endpoint(&self, name: &str) -> Result<Option<EndpointRow>, Error> {
        let action = "read endpoint";
        let sql = Sql::new("SELECT * FROM endpoints WHERE name = ").bind(name);
        let row = self.first(action, &sql).await?;
        row.map(|row| read(&row))
            .transpose()
            .map_err(Error::database(action))
    }

    /// Those of these endpoints that there are, by name.
    ///
    /// # Errors
    /// If the database does not read.
    pub async fn named(&self, names: Vec<String>) -> Result<BTreeMap<String, EndpointRow>, Error> {
        let action = "read endpoints";
        if names.is_empty() {
            return Ok(BTreeMap::new());
        }
        let sql = Sql::new("SELECT * FROM endpoints WHERE name").any_of(names);
        let rows = self.rows(action, &sql).await?;
        rows.iter()
            .map(|row| read(row).map(|stored| (stored.name.clone(), stored)))
            .collect::<Result<_, _>>()
            .map_err(Error::database(action))
    }

    /// Notes the endpoints of `mesh.toml`, all or none. Gives the name of one that was made by the API, if there is one.
    ///
    /// # Errors
    /// If the database does not write.
    pub async fn note_files<'a>(
        &self,
        endpoints: impl Iterator<Item = (&'a str, &'a serde_json::Value)>,
        now: DateTime<Utc>,
    ) -> Result<Option<String>, Error> {
        let note = async {
            let mut connection = self.database.writer.acquire().await?;
            let mut transaction = connection.begin(Access::Write).await?;
            for (name, spec) in endpoints {
                if transaction
                    .conn()
                    .execute(&note_file(name, spec, now))
                    .await?
                    == 0
                {
                    return Ok(Some(name.to_owned()));
                }
            }
            transaction.commit().await?;
            Ok(None)
        };
        note.await.map_err(Error::database("note endpoints"))
    }

    /// Notes since when an endpoint of `mesh.toml` is in no such file any more; `None` if it is in one.
    ///
    /// # Errors
    /// If the database does not write.
    pub async fn remove_from_config(
        &self,
        name: &str,
        since: Option<DateTime<Utc>>,
    ) -> Result<(), Error> {
        let sql = Sql::new("UPDATE endpoints SET unlisted_at = ")
            .bind(since.map(|since| since.timestamp_millis()))
            .push(" WHERE source = 'file' AND name = ")
            .bind(name);
        self.run("note endpoint", &sql).await.map(drop)
    }

    /// Makes an endpoint. False if there is one of that name.
    ///
    /// # Errors
    /// If the database does not write.
    pub async fn create(&self, endpoint: &EndpointRow, act: Act) -> Result<bool, Error> {
        let sql = Sql::new(
            "INSERT INTO endpoints (name, id, source, owner, spec, secrets, state, reason, since, revision, created_at, updated_at) VALUES (",
        )
        .list([
            (&endpoint.name).into(),
            (&endpoint.id).into(),
            endpoint.source.as_str().into(),
            (&endpoint.owner).into(),
            Value::from(&endpoint.spec.to_string()),
            endpoint.secrets.as_deref().into(),
            endpoint.activity.as_str().into(),
            (&endpoint.reason).into(),
            endpoint.since.timestamp_millis().into(),
            endpoint.revision.into(),
            endpoint.created_at.timestamp_millis().into(),
            endpoint.updated_at.timestamp_millis().into(),
        ])
        .push(") ON CONFLICT (name) DO NOTHING");
        self.act("make endpoint", &sql, Some(act)).await
    }

    /// Changes an endpoint: all of it but its name, id and source. False if it was changed meanwhile: `revision` is the one it was read
    /// with.
    ///
    /// # Errors
    /// If the database does not write.
    pub async fn change(&self, endpoint: &EndpointRow, act: Option<Act>) -> Result<bool, Error> {
        let sql = Sql::new("UPDATE endpoints SET revision = revision + 1, owner = ")
            .bind(&endpoint.owner)
            .push(", spec = ")
            .bind(&endpoint.spec.to_string())
            .push(", secrets = ")
            .bind(endpoint.secrets.as_deref())
            .push(", state = ")
            .bind(endpoint.activity.as_str())
            .push(", reason = ")
            .bind(&endpoint.reason)
            .push(", since = ")
            .bind(endpoint.since.timestamp_millis())
            .push(", updated_at = ")
            .bind(endpoint.updated_at.timestamp_millis())
            .push(" WHERE name = ")
            .bind(&endpoint.name)
            .push(" AND revision = ")
            .bind(endpoint.revision);
        self.act("change endpoint", &sql, act).await
    }

    /// Changes what an endpoint does, unless it is being removed. False if there is none or it does that already.
    ///
    /// # Errors
    /// If the database does not write.
    pub async fn set_activity(
        &self,
        name: &str,
        activity: Activity,
        reason: &str,
        now: DateTime<Utc>,
        act: Option<Act>,
    ) -> Result<bool, Error> {
        let sql = becomes(name, activity, reason, now);
        self.act("change endpoint", &sql, act).await
    }

    /// Halts an endpoint, and queues messages about that at others. False if there is none or it is halted so already.
    ///
    /// # Errors
    /// If the database does not write.
    pub async fn auto_disable(
        &self,
        name: &str,
        activity: Activity,
        reason: &str,
        now: DateTime<Utc>,
        act: Act,
        notices: Vec<Delivery>,
    ) -> Result<bool, Error> {
        let sql = becomes(name, activity, reason, now);
        self.act_and_queue("halt endpoint", &sql, Some(act), &notices)
            .await
    }

    /// Notes an act that changed nothing here.
    ///
    /// # Errors
    /// If the database does not write.
    pub async fn note(&self, act: Act) -> Result<(), Error> {
        let sql = insert(&act);
        self.run("note act", &sql).await.map(drop)
    }

    /// Acts that the audit was not told yet.
    ///
    /// # Errors
    /// If the database does not read.
    pub async fn acts(&self) -> Result<Vec<Act>, Error> {
        let action = "read acts";
        let rows = self
            .rows(action, &Sql::new("SELECT id, body FROM acts LIMIT 100"))
            .await?;
        rows.iter()
            .map(|row| {
                Ok(Act {
                    id: row.get("id")?,
                    body: row.get("body")?,
                })
            })
            .collect::<Result<_, _>>()
            .map_err(Error::database(action))
    }

    /// Forgets an act that the audit has.
    ///
    /// # Errors
    /// If the database does not write.
    pub async fn sent(&self, act: &str) -> Result<(), Error> {
        let sql = Sql::new("DELETE FROM acts WHERE id = ").bind(act);
        self.run("forget act", &sql).await.map(drop)
    }

    /// Performs a statement and notes the act in the same transaction, if it changed something.
    pub(super) async fn act(
        &self,
        action: &'static str,
        sql: &Sql,
        act: Option<Act>,
    ) -> Result<bool, Error> {
        self.act_and_queue(action, sql, act, &[]).await
    }

    /// And queues these messages, which are new: nobody needs the lease of their endpoints for that.
    async fn act_and_queue(
        &self,
        action: &'static str,
        sql: &Sql,
        act: Option<Act>,
        messages: &[Delivery],
    ) -> Result<bool, Error> {
        let perform = async {
            let mut connection = self.database.writer.acquire().await?;
            let mut transaction = connection.begin(Access::Write).await?;
            if transaction.conn().execute(sql).await? == 0 {
                return Ok(false);
            }
            if let Some(act) = act {
                transaction.conn().execute(&insert(&act)).await?;
            }
            for message in messages {
                save(&mut transaction, &[message]).await?;
            }
            transaction.commit().await?;
            Ok(true)
        };
        perform.await.map_err(Error::database(action))
    }
}

/// One of `mesh.toml`, unless there is one of that name that was made by the API.
fn note_file(name: &str, spec: &serde_json::Value, now: DateTime<Utc>) -> Sql {
    let now = now.timestamp_millis();
    Sql::new(
        "INSERT INTO endpoints (name, id, source, owner, spec, state, since, revision, created_at, updated_at) VALUES (",
    )
    .list([
        name.into(),
        Value::from(&uuid::Uuid::new_v4().to_string()),
        "file".into(),
        "".into(),
        Value::from(&spec.to_string()),
        "active".into(),
        now.into(),
        1_i64.into(),
        now.into(),
        now.into(),
    ])
    .push(
        ") ON CONFLICT (name) DO UPDATE SET spec = excluded.spec, unlisted_at = NULL,
             state = CASE WHEN endpoints.state = 'removed' THEN 'active' ELSE endpoints.state END,
             created_at = CASE WHEN endpoints.state = 'removed' THEN excluded.created_at ELSE endpoints.created_at END,
             revision = CASE WHEN endpoints.state = 'removed' THEN endpoints.revision + 1 ELSE endpoints.revision END
         WHERE endpoints.source = 'file'",
    )
}

fn becomes(name: &str, activity: Activity, reason: &str, now: DateTime<Utc>) -> Sql {
    Sql::new("UPDATE endpoints SET revision = revision + 1, state = ")
        .bind(activity.as_str())
        .push(", reason = ")
        .bind(reason)
        .push(", since = ")
        .bind(now.timestamp_millis())
        .push(" WHERE state <> 'removed' AND state <> ")
        .bind(activity.as_str())
        .push(" AND name = ")
        .bind(name)
}

fn insert(act: &Act) -> Sql {
    Sql::new("INSERT INTO acts (id, body) VALUES (")
        .list([(&act.id).into(), act.body.as_slice().into()])
        .push(")")
}

fn source(row: &Row) -> Result<Source, sqlx::Error> {
    Ok(match row.get::<String>("source")?.as_str() {
        "file" => Source::File,
        // The table's CHECK allows nothing else.
        _ => Source::Api,
    })
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
        activity: Activity::parse(&row.get::<String>("state")?),
        reason: row.get("reason")?,
        since: time(row.get("since")?),
        revision: row.get("revision")?,
        created_at: time(row.get("created_at")?),
        updated_at: time(row.get("updated_at")?),
    })
}
