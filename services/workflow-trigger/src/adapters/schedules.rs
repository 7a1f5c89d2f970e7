//! The latest instant of each schedule that was handled.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use mesh_db::sql::Sql;

use super::store::{Store, rule_id};
use crate::domain::rule::RuleId;
use crate::error::Error;

/// The schedule of a rule and its latest handled instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleState {
    /// The schedule as text: another one begins from now.
    pub schedule: String,
    /// Nothing up to here fires again.
    pub last: DateTime<Utc>,
}

impl Store {
    /// All of them.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn schedules(&self) -> Result<BTreeMap<RuleId, ScheduleState>, Error> {
        const ACTION: &str = "read schedules";
        let sql = Sql::new("SELECT owner, name, schedule, last_at FROM schedules");
        let rows = self.database.rows(ACTION, &sql).await?;
        rows.iter()
            .map(|row| {
                let id = rule_id(row, "owner", "name")?;
                let state = ScheduleState {
                    schedule: row.get("schedule")?,
                    last: DateTime::from_timestamp_micros(row.get("last_at")?).unwrap_or_default(),
                };
                Ok((id, state))
            })
            .collect::<Result<_, _>>()
            .map_err(Error::database(ACTION))
    }

    /// Stores the latest handled instant of a rule's schedule.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn store_schedule(&self, rule: &RuleId, state: &ScheduleState) -> Result<(), Error> {
        let sql = Sql::new("INSERT INTO schedules (owner, name, schedule, last_at) VALUES (")
            .list([
                (&rule.owner).into(),
                (&rule.name).into(),
                (&state.schedule).into(),
                state.last.timestamp_micros().into(),
            ])
            .push(") ON CONFLICT (owner, name) DO UPDATE SET schedule = excluded.schedule, last_at = excluded.last_at");
        self.change("store schedule", sql, Vec::new())
            .await
            .map(drop)
    }
}
