//! Writes that follow the recovery of a damaged file.

use chrono::{DateTime, Utc};
use mesh_db::pool::WriteTransaction;
use mesh_db::{Bulk, sql};
use mesh_events::proto::mesh::audit::v1::Delivery;

use super::{State, Store};
use crate::error::Error;

/// The newest outcome of each delivery counts. A delivery that waits for an earlier attempt had its outcome since.
const RESTORE: &str = "INSERT INTO deliveries (endpoint, event_id, event_type, state, attempts, status, error, cause, round, created_at, updated_at,
     subject, stream_sequence, trace, announced)
 SELECT endpoint, event_id, event_type, state, attempts, status, error, cause, round, created_at, updated_at, '', 0, '', 1 FROM bulk WHERE TRUE
 ON CONFLICT (event_id, endpoint) DO UPDATE SET state = excluded.state, attempts = excluded.attempts, status = excluded.status,
     error = excluded.error, cause = excluded.cause, round = excluded.round, updated_at = excluded.updated_at, next_at = NULL, announced = 1
 WHERE deliveries.round < excluded.round OR (deliveries.round = excluded.round AND deliveries.state = 'waiting')";

/// An outcome from the audit.
pub struct RestoredOutcome {
    /// The outcome.
    pub delivery: Delivery,
    /// When the delivery ended.
    pub at: DateTime<Utc>,
}

impl Store {
    /// Makes every endpoint begin at its creation.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn delete_cursors(&self) -> Result<(), Error> {
        self.run("delete cursors", &sql!("DELETE FROM cursors"))
            .await
            .map(drop)
    }

    /// Stores outcomes. They are stored for `retention` from now on, longer than their events are on the bus.
    ///
    /// # Errors
    /// If the database write fails.
    pub async fn restore(
        &self,
        mut outcomes: Vec<RestoredOutcome>,
        now: DateTime<Utc>,
    ) -> Result<(), Error> {
        outcomes.retain(|outcome| {
            let state = State::parse(&outcome.delivery.outcome);
            state.is_some_and(|state| state != State::Waiting)
        });
        // One statement has each delivery once.
        outcomes.sort_by(|a, b| key(a).cmp(&key(b)));
        outcomes.reverse();
        outcomes.dedup_by(|next, kept| key(next).0 == key(kept).0);
        let bulk = Bulk::of(&outcomes)
            .texts("endpoint", |of| of.delivery.endpoint.as_str())
            .texts("event_id", |of| of.delivery.event_id.as_str())
            .texts("event_type", |of| of.delivery.event_type.as_str())
            .texts("state", |of| of.delivery.outcome.as_str())
            .ints("attempts", |of| i64::from(of.delivery.attempts))
            .ints("status", |of| i64::from(of.delivery.status))
            .texts("error", |of| of.delivery.error.as_str())
            .texts("cause", |of| of.delivery.cause.as_str())
            .ints("round", |of| i64::from(of.delivery.round))
            .ints("created_at", |of| of.at.timestamp_millis())
            .ints("updated_at", |_| now.timestamp_millis());
        let restore = async |transaction: &mut WriteTransaction| {
            transaction.conn().execute_bulk(&bulk, RESTORE).await
        };
        self.database.write("restore outcomes", restore).await?;
        Ok(())
    }
}

fn key(outcome: &RestoredOutcome) -> ((&str, &str), u32) {
    let delivery = &outcome.delivery;
    ((&delivery.event_id, &delivery.endpoint), delivery.round)
}
