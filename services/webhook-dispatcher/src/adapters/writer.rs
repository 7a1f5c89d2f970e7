//! Group commit: one connection, one task, and as many writes per transaction as came while the last one went to disk.
//!
//! A delivery's outcome must be on disk before its message is acknowledged, and a disk syncs a few hundred to a few thousand times a
//! second. So no write waits for a time-out, and none has a sync of its own under load.

use chrono::{DateTime, Utc};
use sqlx::{Connection as _, SqliteConnection};
use tokio::sync::{mpsc, oneshot};

use super::store::{Delivery, State};
use crate::error::Error;

/// Writes per transaction.
const BATCH: usize = 512;

/// A write.
pub(super) enum Command {
    /// Store a delivery as it stands.
    Save(Box<Delivery>),
    /// Store an expired delivery and count it.
    SaveMissed(Box<Delivery>),
    /// Hand a cost to the delivery that waits for it, and make that due.
    JoinCost {
        endpoint: String,
        pair: String,
        cost: Vec<u8>,
        now: DateTime<Utc>,
    },
    /// Queue a message about missed events and count anew.
    ReportMissed(Box<Delivery>),
    /// Outcomes were announced.
    Announced(Vec<(String, String)>),
    /// Forget old outcomes.
    Forget { before: DateTime<Utc> },
}

type Reply = oneshot::Sender<Result<u64, Error>>;

/// Hands writes to the task. Cheap to clone.
#[derive(Clone)]
pub(super) struct Writer {
    commands: mpsc::Sender<(Option<Command>, Reply)>,
}

impl Writer {
    pub(super) fn start(connection: SqliteConnection) -> Self {
        let (commands, incoming) = mpsc::channel(2 * BATCH);
        tokio::spawn(run(connection, incoming));
        Self { commands }
    }

    /// Returns the number of rows when the write is on disk.
    pub(super) async fn write(&self, command: Command) -> Result<u64, Error> {
        let (reply, answer) = oneshot::channel();
        self.commands
            .send((Some(command), reply))
            .await
            .map_err(|_| Error::WriterStopped)?;
        answer.await.map_err(|_| Error::WriterStopped)?
    }

    /// Ends the task after everything before.
    pub(super) async fn close(&self) {
        let (reply, answer) = oneshot::channel();
        if self.commands.send((None, reply)).await.is_ok() {
            // An error means that the task has ended already.
            drop(answer.await);
        }
    }
}

async fn run(
    mut connection: SqliteConnection,
    mut incoming: mpsc::Receiver<(Option<Command>, Reply)>,
) {
    let mut batch = Vec::with_capacity(BATCH);
    let mut closing = None;
    while closing.is_none() && incoming.recv_many(&mut batch, BATCH).await > 0 {
        let mut replies = Vec::with_capacity(batch.len());
        let mut commands = Vec::with_capacity(batch.len());
        for (command, reply) in batch.drain(..) {
            match command {
                Some(command) => {
                    commands.push(command);
                    replies.push(reply);
                }
                None => closing = Some(reply),
            }
        }
        match commit(&mut connection, &commands).await {
            Ok(rows) => replies
                .into_iter()
                .zip(rows)
                .for_each(|(reply, rows)| answer(reply, Ok(rows))),
            Err(error) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    writes = replies.len(),
                    "write deliveries"
                );
                replies
                    .into_iter()
                    .for_each(|reply| answer(reply, Err(Error::Write(error.to_string()))));
            }
        }
    }
    if let Err(error) = connection.close().await {
        tracing::warn!(error = &error as &dyn std::error::Error, "close database");
    }
    if let Some(reply) = closing {
        answer(reply, Ok(0));
    }
}

/// Callers that are gone need no answer.
fn answer(reply: Reply, result: Result<u64, Error>) {
    drop(reply.send(result));
}

async fn commit(
    connection: &mut SqliteConnection,
    commands: &[Command],
) -> Result<Vec<u64>, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    let mut rows = Vec::with_capacity(commands.len());
    for command in commands {
        rows.push(apply(&mut transaction, command).await?);
    }
    transaction.commit().await?;
    Ok(rows)
}

async fn apply(connection: &mut SqliteConnection, command: &Command) -> Result<u64, sqlx::Error> {
    match command {
        Command::Save(delivery) => save(connection, delivery).await,
        Command::SaveMissed(delivery) => {
            sqlx::query(
                "INSERT INTO away (endpoint, first_id, count, last_at) VALUES (?, ?, 1, ?)
                 ON CONFLICT (endpoint) DO UPDATE SET count = away.count + 1, last_at = excluded.last_at",
            )
            .bind(&delivery.endpoint)
            .bind(&delivery.event_id)
            .bind(delivery.updated_at.timestamp_millis())
            .execute(&mut *connection)
            .await?;
            save(connection, delivery).await
        }
        Command::JoinCost {
            endpoint,
            pair,
            cost,
            now,
        } => {
            let done = sqlx::query(
                "UPDATE deliveries SET cost = ?, next_at = ?, pair = NULL WHERE endpoint = ? AND pair = ? AND state = 'waiting' AND attempts = 0",
            )
            .bind(cost)
            .bind(now.timestamp_millis())
            .bind(endpoint)
            .bind(pair)
            .execute(connection)
            .await?;
            Ok(done.rows_affected())
        }
        Command::ReportMissed(report) => {
            // Counted in the same transaction: what came since the report was decided on belongs to it.
            let count: i64 =
                sqlx::query_scalar("DELETE FROM away WHERE endpoint = ? RETURNING count")
                    .bind(&report.endpoint)
                    .fetch_optional(&mut *connection)
                    .await?
                    .unwrap_or_default();
            if count == 0 {
                return Ok(0);
            }
            let mut report = report.clone();
            report.body = count.to_string().into_bytes();
            save(connection, &report).await
        }
        Command::Announced(keys) => {
            for (endpoint, event_id) in keys {
                sqlx::query(
                    "UPDATE deliveries SET announced = 1 WHERE endpoint = ? AND event_id = ?",
                )
                .bind(endpoint)
                .bind(event_id)
                .execute(&mut *connection)
                .await?;
            }
            Ok(keys.len() as u64)
        }
        Command::Forget { before } => {
            // What waits is kept, unless it was due so long ago that its endpoint must be gone.
            let done = sqlx::query(
                "DELETE FROM deliveries WHERE updated_at < ? AND ((state <> 'waiting' AND announced = 1) OR (state = 'waiting' AND next_at < ?))",
            )
            .bind(before.timestamp_millis())
            .bind(before.timestamp_millis())
            .execute(connection)
            .await?;
            Ok(done.rows_affected())
        }
    }
}

/// Inserts or updates. What came in between stays: the cost of a waiting delivery is set by [`Command::JoinCost`] alone.
async fn save(connection: &mut SqliteConnection, delivery: &Delivery) -> Result<u64, sqlx::Error> {
    let needed = matches!(delivery.state, State::Waiting | State::Dead);
    let done = sqlx::query(
        "INSERT INTO deliveries (endpoint, event_id, event_type, state, attempts, next_at, status, error, created_at, updated_at, subject,
             stream_sequence, trace, pair, body, cost)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT (endpoint, event_id) DO UPDATE SET state = excluded.state, attempts = excluded.attempts, next_at = excluded.next_at,
             status = excluded.status, error = excluded.error, updated_at = excluded.updated_at, pair = excluded.pair, body = excluded.body
         WHERE deliveries.state = 'waiting'",
    )
    .bind(&delivery.endpoint)
    .bind(&delivery.event_id)
    .bind(&delivery.event_type)
    .bind(delivery.state.as_str())
    .bind(delivery.attempts)
    .bind(delivery.next_at.map(|at| at.timestamp_millis()))
    .bind(delivery.status)
    .bind(&delivery.error)
    .bind(delivery.created_at.timestamp_millis())
    .bind(delivery.updated_at.timestamp_millis())
    .bind(&delivery.subject)
    .bind(i64::try_from(delivery.stream_sequence).unwrap_or(i64::MAX))
    .bind(&delivery.trace)
    .bind(&delivery.pair)
    .bind(needed.then_some(&delivery.body))
    .bind(&delivery.cost)
    .execute(connection)
    .await?;
    Ok(done.rows_affected())
}
