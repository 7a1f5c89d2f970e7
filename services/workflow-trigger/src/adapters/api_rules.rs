//! Rules by API, as they are stored.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use mesh_db::pool::WriteTransaction;
use mesh_db::sql;
use mesh_db::sql::{Row, Sql};
use mesh_events::proto::mesh::audit::v1::TriggerActed;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::store::{Store, count, first, rule_id};
use super::{outbox, rule_states};
use crate::domain::rule::{RuleAuthor, RuleId, RuleOrigin};
use crate::error::Error;

/// Most rules by API. Every process has all of them in memory.
pub const MAX_API_RULES: u32 = 5_000;

/// A rule by API.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredRule {
    /// Owner and name.
    pub id: RuleId,
    /// The rule, with the text of its script.
    pub definition: Value,
    /// Who may do what with it.
    pub author: RuleAuthor,
    /// Who made or changed it last.
    pub changed_by: String,
    /// When.
    pub changed_at: DateTime<Utc>,
}

impl StoredRule {
    /// Its origin.
    pub fn origin(&self) -> RuleOrigin {
        RuleOrigin::Api {
            author: self.author,
            changed_by: self.changed_by.clone(),
            changed_at: self.changed_at,
        }
    }
}

/// What a rule that is put is to the one that was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutRule {
    /// There was none.
    Created,
    /// There was another one.
    Changed,
    /// It is the same.
    Unchanged,
    /// It is not stored: there are as many rules as there may be, of its owner or of all.
    TooMany(u32),
}

impl PutRule {
    /// The word in the API and in the audit.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Changed => "changed",
            Self::Unchanged => "unchanged",
            Self::TooMany(_) => "too_many",
        }
    }
}

impl Store {
    /// The versions of all rules by API.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn rule_versions(&self) -> Result<BTreeMap<RuleId, String>, Error> {
        const ACTION: &str = "read versions of rules";
        let sql = Sql::new("SELECT owner, name, version FROM api_rules");
        let rows = self.database.rows(ACTION, &sql).await?;
        let version = |row: &Row| Ok((rule_id(row, "owner", "name")?, row.get("version")?));
        let versions = rows.iter().map(version).collect::<Result<_, _>>();
        versions.map_err(Error::database(ACTION))
    }

    /// Rules of these versions, each with its version. One that cannot be read has the problem in place of the rule.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn rules_of_versions(
        &self,
        versions: Vec<String>,
    ) -> Result<Vec<(RuleId, String, Result<StoredRule, String>)>, Error> {
        const ACTION: &str = "read rules";
        let sql = sql!(
            "SELECT owner, name, definition, by_admin, changed_by, changed_at, version FROM api_rules WHERE version IN ?",
            versions
        );
        let rows = self.database.rows(ACTION, &sql).await?;
        let read = |row: &Row| {
            let version: String = row.get("version")?;
            Ok((rule_id(row, "owner", "name")?, version, stored(row)?))
        };
        let rules = rows.iter().map(read).collect::<Result<_, _>>();
        rules.map_err(Error::database(ACTION))
    }

    /// Stores a rule, or finds out what that would be. `max` is the largest number of rules of its owner, `None` for administrators.
    ///
    /// # Errors
    /// If the database refuses. Nothing is changed then.
    pub async fn put_rule(
        &self,
        rule: &StoredRule,
        max: Option<u32>,
        cluster: &str,
        is_dry_run: bool,
    ) -> Result<PutRule, Error> {
        let put = async {
            let mut transaction = self.database.begin().await?;
            // It counts, so one process at a time puts.
            let lock = Sql::default().either(
                "UPDATE api_rules SET version = version WHERE FALSE",
                "LOCK TABLE api_rules IN SHARE ROW EXCLUSIVE MODE",
            );
            transaction.conn().execute(&lock).await?;
            let put = decide(&mut transaction, rule, max).await?;
            if !is_dry_run && matches!(put, PutRule::Created | PutRule::Changed) {
                store(&mut transaction, rule, put, cluster).await?;
            }
            transaction.commit().await?;
            Ok(put)
        };
        put.await.map_err(Error::database("store rule"))
    }

    /// Deletes a rule. Whether it is paused stays, and its runs go on. False if there is none.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn delete_rule(
        &self,
        id: &RuleId,
        by: &str,
        cluster: &str,
        now: DateTime<Utc>,
    ) -> Result<bool, Error> {
        let sql = sql!(
            "DELETE FROM api_rules WHERE owner = ? AND name = ?",
            &id.owner,
            &id.name
        );
        let act = rule_states::act(id, "deleted", "", by);
        let entry = outbox::entry(cluster, now.timestamp_micros(), act);
        self.change("delete rule", sql, vec![entry]).await
    }
}

fn stored(row: &Row) -> Result<Result<StoredRule, String>, sqlx::Error> {
    let definition: String = row.get("definition")?;
    let by_admin: i64 = row.get("by_admin")?;
    let at = DateTime::from_timestamp_micros(row.get("changed_at")?);
    let definition = match serde_json::from_str(&definition) {
        Ok(definition) => definition,
        Err(error) => return Ok(Err(format!("not readable: {error}"))),
    };
    Ok(Ok(StoredRule {
        id: rule_id(row, "owner", "name")?,
        definition,
        author: match by_admin {
            0 => RuleAuthor::Owner,
            _ => RuleAuthor::Administrator,
        },
        changed_by: row.get("changed_by")?,
        changed_at: at.unwrap_or_default(),
    }))
}

async fn decide(
    transaction: &mut WriteTransaction,
    rule: &StoredRule,
    max: Option<u32>,
) -> Result<PutRule, sqlx::Error> {
    let id = &rule.id;
    let known = sql!(
        "SELECT owner, name, definition, by_admin, changed_by, changed_at, version FROM api_rules WHERE owner = ? AND name = ?",
        &id.owner,
        &id.name
    );
    let known = transaction.conn().first(&known).await?;
    match known.as_ref().map(stored).transpose()? {
        Some(Ok(known)) if known.definition == rule.definition && known.author == rule.author => {
            return Ok(PutRule::Unchanged);
        }
        Some(_) => return Ok(PutRule::Changed),
        None => {}
    }
    let sql = sql!(
        "SELECT COUNT(*) AS of_all, CAST(COALESCE(SUM(CASE WHEN owner = ? THEN 1 ELSE 0 END), 0) AS BIGINT) AS of_owner FROM api_rules",
        &id.owner
    );
    let row = first(transaction, &sql).await?;
    for (column, max) in [("of_owner", max), ("of_all", Some(MAX_API_RULES))] {
        if let Some(max) = max
            && count(&row, column)? >= max
        {
            return Ok(PutRule::TooMany(max));
        }
    }
    Ok(PutRule::Created)
}

async fn store(
    transaction: &mut WriteTransaction,
    rule: &StoredRule,
    put: PutRule,
    cluster: &str,
) -> Result<(), sqlx::Error> {
    let id = &rule.id;
    let version = uuid::Uuid::new_v4().to_string();
    let at = rule.changed_at.timestamp_micros();
    let upsert = Sql::new("INSERT INTO api_rules (owner, name, definition, by_admin, changed_by, changed_at, version) VALUES (")
        .list([
            (&id.owner).into(),
            (&id.name).into(),
            rule.definition.to_string().as_str().into(),
            i64::from(rule.author == RuleAuthor::Administrator).into(),
            (&rule.changed_by).into(),
            at.into(),
            (&version).into(),
        ])
        .push(") ON CONFLICT (owner, name) DO UPDATE SET definition = excluded.definition, by_admin = excluded.by_admin, changed_by = excluded.changed_by, changed_at = excluded.changed_at, version = excluded.version");
    transaction.conn().execute(&upsert).await?;
    let act = TriggerActed {
        definition: with_script_hash(&rule.definition).to_string(),
        ..rule_states::act(id, put.as_str(), "", &rule.changed_by)
    };
    let entry = outbox::entry(cluster, at, act);
    transaction.conn().execute(&entry).await.map(drop)
}

/// The audit has no scripts: a rule may have 64 KiB, and change often.
fn with_script_hash(definition: &Value) -> Value {
    let mut definition = definition.clone();
    let action = definition.get_mut("action").and_then(Value::as_object_mut);
    if let Some(action) = action
        && let Some(Value::String(script)) = action.remove("script")
    {
        let hash = json!(hex::encode(Sha256::digest(script)));
        action.insert("script_sha256".to_owned(), hash);
    }
    definition
}
