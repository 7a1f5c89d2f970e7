//! What is published of the accrued costs of runs.

use mesh_db::sql::{Row, Sql};
use mesh_events::Event;
use mesh_events::proto::mesh::event::v1::{Confidence, Entity, Owner};
use prost::Message as _;

use super::Transaction;
use crate::accrual::{AccrualFacts, AccrualState};
use crate::domain::Micros;
use crate::error::Error;

/// What events about a run's accrued cost have of its `cost.estimated`.
pub(super) fn envelope(event: &Event) -> Vec<u8> {
    let envelope = Event {
        owner: event.owner.clone(),
        entity: event.entity.clone(),
        confidence: event.confidence,
        run_seq: event.run_seq,
        ..Event::default()
    };
    envelope.encode_to_vec()
}

impl Transaction {
    /// What is published of a run's accrued cost. `None` if its start is not stored.
    ///
    /// # Errors
    /// If the database refuses, or the stored envelope cannot be decoded.
    pub async fn accruals(
        &mut self,
        cluster: &str,
        run: &str,
    ) -> Result<Option<AccrualFacts>, Error> {
        const ACTION: &str = "read accrued cost";
        let sql = Sql::new(
            "SELECT state, user_name, account, start_event, accrued_until, accrued_micros, accrued_day, accrued_day_events
             FROM runs WHERE start_job IS NOT NULL AND cluster = ",
        )
        .bind(cluster)
        .push(" AND run = ")
        .bind(run);
        let Some(row) = self.first(ACTION, &sql).await? else {
            return Ok(None);
        };
        let sql = Sql::new("SELECT at, run_seq FROM marks WHERE cluster = ")
            .bind(cluster)
            .push(" AND run = ")
            .bind(run);
        let marks = self.conn().rows(&sql).await;
        let number = |row: &Row| Ok((row.get("at")?, row.get::<i64>("run_seq")?.unsigned_abs()));
        let numbers: Result<_, sqlx::Error> =
            marks.and_then(|marks| marks.iter().map(number).collect());
        let read = || {
            Ok((
                row.get::<String>("state")? == "open",
                row.get::<Option<Vec<u8>>>("start_event")?,
                state(&row)?,
            ))
        };
        let (is_open, stored, state) = read().map_err(Error::database(ACTION))?;
        let envelope = match stored {
            Some(bytes) => Event::decode(bytes.as_slice()).map_err(|source| Error::Damaged {
                action: ACTION,
                run: run.to_owned(),
                source,
            })?,
            None => without_envelope(&row, run).map_err(Error::database(ACTION))?,
        };
        Ok(Some(AccrualFacts {
            is_open,
            envelope,
            numbers: numbers.map_err(Error::database(ACTION))?,
            state,
        }))
    }

    /// Whether another process has made the run's `cost.estimated` and not published it yet.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn is_estimate_unpublished(
        &mut self,
        cluster: &str,
        run: &str,
    ) -> Result<bool, Error> {
        let sql = Sql::new(
            "SELECT outbox.event_id FROM outbox JOIN costs ON costs.event_id = outbox.event_id
             WHERE costs.kind = 'estimated' AND costs.cluster = ",
        )
        .bind(cluster)
        .push(" AND costs.run = ")
        .bind(run)
        .push(" AND outbox.made_by <> ")
        .bind(&*self.instance);
        let found = self.first("look up unpublished estimate", &sql).await?;
        Ok(found.is_some())
    }

    /// Stores what is published of a run's accrued cost.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn store_accruals(
        &mut self,
        cluster: &str,
        run: &str,
        state: &AccrualState,
    ) -> Result<(), Error> {
        let sql = Sql::new("UPDATE runs SET accrued_until = ")
            .bind(state.until)
            .push(", accrued_micros = ")
            .bind(state.threshold.0)
            .push(", accrued_day = ")
            .bind(state.day)
            .push(", accrued_day_events = ")
            .bind(i64::from(state.day_events))
            .push(" WHERE cluster = ")
            .bind(cluster)
            .push(" AND run = ")
            .bind(run);
        self.run("store accrued cost", &sql).await.map(drop)
    }
}

fn state(row: &Row) -> Result<AccrualState, sqlx::Error> {
    let events: i64 = row.get("accrued_day_events")?;
    Ok(AccrualState {
        until: row.get("accrued_until")?,
        threshold: Micros(row.get("accrued_micros")?),
        day: row.get("accrued_day")?,
        day_events: u32::try_from(events).unwrap_or(u32::MAX),
    })
}

/// Of a run whose start was stored by a version without the envelope.
fn without_envelope(row: &Row, run: &str) -> Result<Event, sqlx::Error> {
    Ok(Event {
        owner: Some(Owner {
            user: row.get("user_name")?,
            account: row.get("account")?,
            ..Owner::default()
        }),
        entity: Some(Entity {
            kind: "job".to_owned(),
            key: run.to_owned(),
        }),
        confidence: Confidence::Observed.into(),
        ..Event::default()
    })
}
