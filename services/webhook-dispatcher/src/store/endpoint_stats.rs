//! Delivery counts and stored gates of endpoints. The number of queries does not depend on the number of endpoints.

use std::collections::BTreeMap;

use mesh_db::sql;
use mesh_db::sql::Row;
use mesh_events::catalogue::SLURM_EVENTS;
use serde::Serialize;
use utoipa::ToSchema;

use crate::attempt::gate::STORED_GATE_KEY;
use crate::error::Error;
use crate::store::Store;
use crate::store::cursors::{Missed, missed};
use crate::store::delivery::{State, state};

/// Statistics of an endpoint.
#[derive(Clone, Debug, Default)]
pub struct EndpointStats {
    /// Number of deliveries by state.
    pub counts: Counts,
    /// Stored state of the gate.
    pub gate: Option<String>,
    /// Events that it missed.
    pub missed: Option<Missed>,
}

/// Number of deliveries by state, and the last error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Counts {
    /// Delivered.
    pub delivered: u64,
    /// Waiting for an attempt.
    pub waiting: u64,
    /// Dead letters: given up.
    pub dead: u64,
    /// Expired: too old to be sent.
    pub expired: u64,
    /// Error of the most recently changed waiting or dead delivery that has one; empty if there is none.
    pub last_error: String,
}

impl Counts {
    fn slot(&mut self, state: State) -> &mut u64 {
        match state {
            State::Waiting => &mut self.waiting,
            State::Delivered => &mut self.delivered,
            State::Dead => &mut self.dead,
            State::Expired => &mut self.expired,
        }
    }
}

impl Store {
    /// Statistics of these endpoints. Those without any are left out.
    ///
    /// # Errors
    /// If the database read fails.
    pub async fn standings(
        &self,
        endpoints: Vec<String>,
    ) -> Result<BTreeMap<String, EndpointStats>, Error> {
        let action = "count deliveries";
        let mut standings = BTreeMap::new();
        if endpoints.is_empty() {
            return Ok(standings);
        }
        let counts = sql!(
            "SELECT endpoint, state, COUNT(*) AS count FROM deliveries WHERE endpoint IN ? GROUP BY endpoint, state",
            endpoints.clone(),
        );
        // The `+` stops SQLite from sorting all waiting and dead deliveries.
        let errors = sql!(
            "SELECT value AS endpoint, (SELECT error FROM deliveries WHERE deliveries.endpoint = given.value AND error <> '' AND {+|}state IN ('waiting', 'dead') ORDER BY updated_at DESC LIMIT 1) AS error FROM {json_each(|UNNEST(}?{) AS given|::text[]) AS given(value)}",
            endpoints.clone(),
        );
        let gates = sql!(
            "SELECT endpoint, value FROM kept WHERE key = ? AND endpoint IN ?",
            STORED_GATE_KEY,
            endpoints.clone(),
        );
        let gaps = sql!(
            "SELECT endpoint, missed_count, missed_first, missed_last, missed_at FROM cursors WHERE missed_count > 0 AND stream = ? AND endpoint IN ?",
            SLURM_EVENTS,
            endpoints,
        );
        let of = |row: &Row| row.get::<String>("endpoint");
        let read = |row: &Row| Ok((of(row)?, state(row)?, row.get::<i64>("count")?));
        for (name, state, count) in self.query::<_, Vec<_>>(action, &counts, read).await? {
            let standing: &mut EndpointStats = standings.entry(name).or_default();
            *standing.counts.slot(state) = count.unsigned_abs();
        }
        let read = |row: &Row| Ok((of(row)?, row.get::<Option<String>>("error")?));
        for (name, error) in self.query::<_, Vec<_>>(action, &errors, read).await? {
            if let Some(error) = error {
                standings.entry(name).or_default().counts.last_error = error;
            }
        }
        let read = |row: &Row| Ok((of(row)?, row.get("value")?));
        for (name, gate) in self.query::<_, Vec<_>>(action, &gates, read).await? {
            standings.entry(name).or_default().gate = gate;
        }
        let read = |row: &Row| Ok((of(row)?, missed(row)?));
        for (name, missed) in self.query::<_, Vec<_>>(action, &gaps, read).await? {
            standings.entry(name).or_default().missed = missed;
        }
        Ok(standings)
    }
}
