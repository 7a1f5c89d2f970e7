//! The outbox: cost events that JetStream does not have yet.

use mesh_events::Event;
use prost::Message as _;

use super::Store;
use crate::error::Error;

/// An event of the outbox.
#[derive(Clone, Debug)]
pub struct Unpublished {
    /// The event.
    pub event: Event,
    /// Trace of the job event behind it; empty if there is none.
    pub traceparent: String,
}

impl Store {
    /// The oldest unpublished events, in the order they were made.
    ///
    /// # Errors
    /// If the database refuses or holds something else.
    pub async fn unpublished(&self, most: u32) -> Result<Vec<Unpublished>, Error> {
        let rows: Vec<(String, Vec<u8>, String)> =
            sqlx::query_as("SELECT event_id, body, traceparent FROM outbox ORDER BY seq LIMIT $1")
                .bind(most)
                .fetch_all(&self.readers)
                .await
                .map_err(Error::database("read outbox"))?;
        rows.into_iter()
            .map(|(id, body, traceparent)| {
                let event = Event::decode(body.as_slice()).map_err(|source| Error::Damaged {
                    action: "read outbox",
                    run: id,
                    source,
                })?;
                Ok(Unpublished { event, traceparent })
            })
            .collect()
    }

    /// Takes events out of the outbox: JetStream has them, at this time (Unix seconds), or never will (`None`).
    ///
    /// # Errors
    /// If the database refuses; they will be published once more then, with the same ids.
    pub async fn settle(&self, ids: &[&str], published_at: Option<i64>) -> Result<(), Error> {
        let mut transaction = self.begin_immediate().await?;
        for id in ids {
            sqlx::query("DELETE FROM outbox WHERE event_id = $1")
                .bind(id)
                .execute(&mut *transaction)
                .await
                .map_err(Error::database("empty outbox"))?;
            sqlx::query("UPDATE costs SET published_at = $2 WHERE event_id = $1")
                .bind(id)
                .bind(published_at)
                .execute(&mut *transaction)
                .await
                .map_err(Error::database("note that cost is published"))?;
        }
        transaction
            .commit()
            .await
            .map_err(Error::database("commit outbox"))
    }
}
