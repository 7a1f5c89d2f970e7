//! Budgets that are exceeded.

use chrono::{DateTime, Utc};
use mesh_db::pool::WriteTransaction;
use mesh_db::sql;
use mesh_db::sql::Sql;

use super::store::Store;
use crate::domain::budget::{BudgetState, Spender};
use crate::error::Error;

/// An exceeded budget of a spender.
pub(super) async fn exceeded(
    transaction: &mut WriteTransaction,
    spender: &Spender,
    now: DateTime<Utc>,
) -> Result<Option<String>, sqlx::Error> {
    let row = transaction.conn().first(&query(spender, now)).await?;
    row.map(|row| row.get("name")).transpose()
}

fn query(spender: &Spender, now: DateTime<Utc>) -> Sql {
    sql!(
        "SELECT name FROM budgets WHERE is_exceeded = 1 AND (ends_at IS NULL OR ends_at > ?) AND (user_name = '' OR user_name = ?) AND (account = '' OR account = ?) ORDER BY name LIMIT 1",
        now.timestamp_micros(),
        &spender.user,
        &spender.account
    )
}

impl Store {
    /// An exceeded budget of a spender.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn exceeded_budget(
        &self,
        spender: &Spender,
        now: DateTime<Utc>,
    ) -> Result<Option<String>, Error> {
        const ACTION: &str = "read budgets";
        let rows = self.database.rows(ACTION, &query(spender, now)).await?;
        let name = rows.first().map(|row| row.get("name"));
        name.transpose().map_err(Error::database(ACTION))
    }

    /// Stores the state of a budget, unless a later event was stored.
    ///
    /// # Errors
    /// If the database refuses.
    pub async fn store_budget(&self, state: &BudgetState) -> Result<(), Error> {
        let at = state.at.timestamp_micros();
        let number = i64::try_from(state.number).unwrap_or(i64::MAX);
        let sql = Sql::new("INSERT INTO budgets (name, user_name, account, is_exceeded, ends_at, event_at, event_number) VALUES (")
            .list([
                (&state.name).into(),
                (&state.user).into(),
                (&state.account).into(),
                i64::from(state.is_exceeded).into(),
                state.ends_at.map(|end| end.timestamp_micros()).into(),
                at.into(),
                number.into(),
            ])
            .push(") ON CONFLICT (name) DO UPDATE SET user_name = excluded.user_name, account = excluded.account, is_exceeded = excluded.is_exceeded, ends_at = excluded.ends_at, event_at = excluded.event_at, event_number = excluded.event_number WHERE budgets.event_at < excluded.event_at OR (budgets.event_at = excluded.event_at AND budgets.event_number < excluded.event_number)");
        self.change("store budget", sql, Vec::new()).await.map(drop)
    }
}
