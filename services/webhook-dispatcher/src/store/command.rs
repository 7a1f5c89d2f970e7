//! Writes about deliveries. Each is part of a transaction of the [writer](super::writer).

use mesh_db::pool::WriteTransaction;
use mesh_db::sql;
use mesh_db::sql::Sql;

use crate::error::Error;
use crate::store::Store;
use crate::store::cursor_rows::{self, CursorRow};
use crate::store::delivery::Delivery;
use crate::store::outbox;
use crate::store::saves::save;

/// A write.
pub(super) enum Command {
    /// Store the current state of a delivery.
    Save(Box<Delivery>),
    /// Store an expired delivery and count it.
    SaveMissed(Box<Delivery>),
    /// Queue a summary of missed events and reset the count.
    ReportMissed(Box<Delivery>),
    /// Change rows, of an endpoint or of several.
    Change {
        endpoint: Option<String>,
        statements: Vec<Sql>,
    },
    /// Put dead letters back into the queue, and store the job's progress by their number.
    Redeliver {
        endpoint: String,
        letters: Sql,
        progress: Box<dyn Fn(u64) -> Sql + Send + Sync>,
    },
    /// Store the cursor of an endpoint that stops.
    SaveCursor(CursorRow<'static>),
    /// Mark outcomes as published.
    Announced(Vec<outbox::Key>),
}

impl Command {
    /// The endpoint whose lease is required.
    pub fn endpoint(&self) -> Option<&str> {
        match self {
            Self::Save(delivery) | Self::SaveMissed(delivery) | Self::ReportMissed(delivery) => {
                Some(&delivery.endpoint)
            }
            Self::Redeliver { endpoint, .. } => Some(endpoint),
            Self::Change { endpoint, .. } => endpoint.as_deref(),
            Self::SaveCursor(_) | Self::Announced(_) => None,
        }
    }

    /// True for the result of a request, which would be repeated if this write were lost.
    pub const fn is_outcome(&self) -> bool {
        matches!(self, Self::Save(_) | Self::SaveMissed(_))
    }

    /// Applies the write. Returns the number of rows.
    pub async fn apply(&self, transaction: &mut WriteTransaction) -> Result<u64, sqlx::Error> {
        match self {
            Self::Save(delivery) => save(transaction, &[delivery]).await,
            Self::SaveMissed(delivery) => {
                let sql = sql!(
                    "INSERT INTO missed (endpoint, first_id, count, last_at) VALUES (?, ?, 1, ?) ON CONFLICT (endpoint) DO UPDATE SET count = missed.count + 1, last_at = excluded.last_at",
                    &delivery.endpoint,
                    &delivery.event_id,
                    delivery.updated_at.timestamp_millis(),
                );
                transaction.conn().execute(&sql).await?;
                save(transaction, &[delivery]).await
            }
            Self::ReportMissed(report) => {
                // Read the count in the same transaction, so that events missed since the decision to report are
                // included.
                let sql = sql!(
                    "DELETE FROM missed WHERE endpoint = ? RETURNING count",
                    &report.endpoint
                );
                let Some(row) = transaction.conn().first(&sql).await? else {
                    return Ok(0);
                };
                let mut report = report.clone();
                report.body = row.get::<i64>("count")?.to_string().into();
                save(transaction, &[&report]).await
            }
            Self::Change { statements, .. } => {
                let mut rows = 0;
                for sql in statements {
                    rows += transaction.conn().execute(sql).await?;
                }
                Ok(rows)
            }
            Self::Redeliver {
                letters, progress, ..
            } => {
                let queued = transaction.conn().execute(letters).await?;
                transaction.conn().execute(&progress(queued)).await?;
                Ok(queued)
            }
            Self::SaveCursor(row) => cursor_rows::save(transaction, std::slice::from_ref(row))
                .await
                .map(|()| 1),
            Self::Announced(keys) => outbox::note(transaction, keys).await,
        }
    }
}

/// # Errors
/// Each fails if the database write fails, or another dispatcher holds the lease.
impl Store {
    /// Stores the current state of a delivery. Returns once it is on disk.
    pub async fn save(&self, epoch: i64, delivery: Delivery) -> Result<(), Error> {
        let command = Command::Save(Box::new(delivery));
        self.writer.write(Some(epoch), command).await.map(drop)
    }

    /// Stores an expired delivery and counts it for the endpoint's summary of missed events.
    pub async fn save_missed(&self, epoch: i64, delivery: Delivery) -> Result<(), Error> {
        let command = Command::SaveMissed(Box::new(delivery));
        self.writer.write(Some(epoch), command).await.map(drop)
    }

    /// Queues a summary of missed events and resets the count.
    pub async fn report_missed(&self, epoch: i64, report: Delivery) -> Result<(), Error> {
        let command = Command::ReportMissed(Box::new(report));
        self.writer.write(Some(epoch), command).await.map(drop)
    }

    /// Marks outcomes as published.
    pub async fn mark_published(&self, keys: Vec<outbox::Key>) -> Result<(), Error> {
        let command = Command::Announced(keys);
        self.writer.write(None, command).await.map(drop)
    }
}
