//! Audit entries that are not in JetStream yet. They are written in the transaction of what they report.

use mesh_db::sql::Sql;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, TriggerActed};
use mesh_events::timestamp;
use prost::Message as _;

use super::store::Store;
use crate::error::Error;

/// Kind of these entries.
pub const AUDIT_KIND: &str = "trigger";

/// An entry in the outbox.
#[derive(Clone, Debug)]
pub struct Unpublished {
    /// Place in the outbox.
    pub seq: i64,
    /// Id of the entry.
    pub id: String,
    /// Its cluster.
    pub cluster: String,
    /// Its bytes.
    pub body: Vec<u8>,
}

/// The statement that adds an audit entry to the outbox.
pub(super) fn entry(cluster: &str, at: i64, act: TriggerActed) -> Sql {
    let id = uuid::Uuid::new_v4().to_string();
    let body = AuditEntry {
        id: id.clone(),
        cluster: cluster.to_owned(),
        kind: AUDIT_KIND.to_owned(),
        at: chrono::DateTime::from_timestamp_micros(at).map(timestamp),
        service: super::store::NAME.to_owned(),
        act: Some(Act::Trigger(act)),
    }
    .encode_to_vec();
    Sql::new("INSERT INTO outbox (id, cluster, body) VALUES (")
        .list([(&id).into(), cluster.into(), body.as_slice().into()])
        .push(")")
}

impl Store {
    /// The oldest unpublished entries. Two processes may publish the same: JetStream recognises the id.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn unpublished(&self, limit: u32) -> Result<Vec<Unpublished>, Error> {
        const ACTION: &str = "read outbox";
        let sql =
            Sql::new("SELECT seq, id, cluster, body FROM outbox ORDER BY seq LIMIT ").bind(limit);
        let rows = self.database.rows(ACTION, &sql).await?;
        rows.iter()
            .map(|row| {
                Ok(Unpublished {
                    seq: row.get("seq")?,
                    id: row.get("id")?,
                    cluster: row.get("cluster")?,
                    body: row.get("body")?,
                })
            })
            .collect::<Result<_, _>>()
            .map_err(Error::database(ACTION))
    }

    /// Removes entries that JetStream has stored.
    ///
    /// # Errors
    /// If the database refuses. They are then published again, with the same ids.
    pub async fn remove_published(&self, places: Vec<i64>) -> Result<(), Error> {
        let sql = Sql::new("DELETE FROM outbox WHERE seq").any_of(places);
        self.change("delete from outbox", sql, Vec::new())
            .await
            .map(drop)
    }
}
