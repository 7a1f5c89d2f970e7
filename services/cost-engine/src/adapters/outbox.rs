//! The outbox: cost events that are not in JetStream yet.

use std::time::Duration;

use chrono::Utc;
use mesh_db::sql::{Row, Sql};
use mesh_events::Event;
use prost::Message as _;

use super::Store;
use crate::error::Error;

/// Delay before events of another process are published. That process has ended by then, or is cut off from NATS.
const TAKEOVER_DELAY: Duration = Duration::from_secs(10);

/// An event in the outbox.
#[derive(Clone, Debug)]
pub struct OutboxEvent {
    /// The event.
    pub event: Event,
    /// Trace context of the job event that caused it. Empty if there is none.
    pub traceparent: String,
}

impl Store {
    /// The oldest unpublished events, in the order of their creation: those of this process, and those left behind by others. If two
    /// processes publish the same event, JetStream deduplicates it by id.
    ///
    /// # Errors
    /// If the database refuses, or a stored event cannot be decoded.
    pub async fn unpublished(&self, limit: u32) -> Result<Vec<OutboxEvent>, Error> {
        const ACTION: &str = "read outbox";
        let now = Utc::now();
        let sql = Sql::new("SELECT event_id, body, traceparent FROM outbox WHERE made_by = ")
            .bind(&*self.database.instance)
            .push(" OR made_at < ")
            .bind((now - TAKEOVER_DELAY).timestamp_millis())
            // Created while the clock was ahead, so its true age is unknown.
            .push(" OR made_at > ")
            .bind((now + TAKEOVER_DELAY).timestamp_millis())
            .push(" ORDER BY seq LIMIT ")
            .bind(limit);
        let read = |row: &Row| -> Result<(String, Vec<u8>, String), sqlx::Error> {
            Ok((
                row.get("event_id")?,
                row.get("body")?,
                row.get("traceparent")?,
            ))
        };
        let rows = self.database.rows(ACTION, &sql).await?;
        rows.iter()
            .map(|row| {
                let (id, body, traceparent) = read(row).map_err(Error::database(ACTION))?;
                let event = Event::decode(body.as_slice()).map_err(|source| Error::Damaged {
                    action: ACTION,
                    run: id,
                    source,
                })?;
                Ok(OutboxEvent { event, traceparent })
            })
            .collect()
    }

    /// Removes events that JetStream has stored or refused permanently.
    ///
    /// # Errors
    /// If the database refuses. The events are then published again, with the same ids.
    pub async fn remove_published(&self, ids: Vec<String>) -> Result<(), Error> {
        let sql = Sql::new("DELETE FROM outbox WHERE event_id").any_of(ids);
        let delete = "delete from outbox";
        self.database.change(delete, sql, Vec::new()).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use mesh_db::Location;

    use super::*;

    #[tokio::test]
    async fn work_created_while_the_clock_was_ahead_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&Location::Sqlite(folder.path().join("costs.db")))
            .await
            .unwrap();
        let now = Utc::now();
        let hour = Duration::from_secs(3_600);
        let mut transaction = store.database.begin().await.unwrap();
        for (id, made_at) in [
            ("ahead", now + hour),
            // In good time, however long the test takes.
            ("just now", now + Duration::from_secs(5)),
            ("old", now - hour),
        ] {
            let body = Event {
                id: id.to_owned(),
                ..Event::default()
            }
            .encode_to_vec();
            let sql = Sql::new(
                "INSERT INTO outbox (event_id, body, traceparent, made_by, made_at) VALUES (",
            )
            .list([
                id.into(),
                body.as_slice().into(),
                "".into(),
                "another process".into(),
                made_at.timestamp_millis().into(),
            ])
            .push(")");
            transaction.conn().execute(&sql).await.unwrap();
        }
        transaction.commit().await.unwrap();
        let found = store.unpublished(10).await.unwrap();
        let ids: Vec<String> = found.into_iter().map(|found| found.event.id).collect();
        // The process that created a recent event may still be about to publish it.
        assert_eq!(ids, ["ahead", "old"]);
    }
}
