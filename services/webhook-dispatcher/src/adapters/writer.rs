//! Group commit: one connection, one task, and as many writes per transaction as came while the last one went to disk.
//!
//! A delivery's outcome must be on disk before its message is acknowledged, and a disk syncs a few hundred to a few thousand times a
//! second. So no write waits for a time-out, and none has a sync of its own under load.

use std::collections::BTreeSet;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::store::{Delivery, State};
use crate::error::Error;

/// Writes per transaction.
const BATCH: usize = 512;
/// After a failed commit the database is tried again so soon, then half as often each time, down to `LONGEST_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

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
    /// End what waits for endpoints that are gone, and forget old outcomes.
    Forget {
        configured: BTreeSet<String>,
        before: DateTime<Utc>,
        now: DateTime<Utc>,
    },
}

type Reply = oneshot::Sender<Result<u64, Error>>;

/// Hands writes to the task. Cheap to clone.
#[derive(Clone)]
pub(super) struct Writer {
    commands: mpsc::Sender<(Option<Command>, Reply)>,
    trouble: watch::Receiver<Option<String>>,
}

impl Writer {
    /// Writes through this connection, and through new ones of these options after trouble.
    pub(super) fn start(connection: SqliteConnection, options: SqliteConnectOptions) -> Self {
        let (commands, incoming) = mpsc::channel(2 * BATCH);
        let (report, trouble) = watch::channel(None);
        let task = Task {
            connection: Some(connection),
            options,
            report,
            trouble: None,
        };
        tokio::spawn(task.run(incoming));
        Self { commands, trouble }
    }

    /// Why the database does not write; `None` while it does.
    pub(super) fn trouble(&self) -> watch::Receiver<Option<String>> {
        self.trouble.clone()
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

/// Since the last commit failed.
struct Trouble {
    /// Outcomes that are not on disk. Their requests were made, so they are kept until they are written: forgotten, they would be made again.
    kept: Vec<Command>,
    pause: Duration,
    next_try: Instant,
}

struct Task {
    connection: Option<SqliteConnection>,
    options: SqliteConnectOptions,
    report: watch::Sender<Option<String>>,
    trouble: Option<Trouble>,
}

impl Task {
    async fn run(mut self, mut incoming: mpsc::Receiver<(Option<Command>, Reply)>) {
        let mut batch = Vec::with_capacity(BATCH);
        let mut closing = None;
        while closing.is_none() {
            let next_try = self.trouble.as_ref().map(|trouble| trouble.next_try);
            tokio::select! {
                count = incoming.recv_many(&mut batch, BATCH) => if count == 0 { break },
                () = at(next_try) => {}
            }
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
            match self.commit(&commands).await {
                Ok(rows) => {
                    self.recovered();
                    replies
                        .into_iter()
                        .zip(rows)
                        .for_each(|(reply, rows)| answer(reply, Ok(rows)));
                }
                Err(error) => {
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        writes = replies.len(),
                        "write deliveries"
                    );
                    self.failed(&error, commands);
                    replies
                        .into_iter()
                        .for_each(|reply| answer(reply, Err(Error::Write(error.to_string()))));
                }
            }
        }
        if let Some(connection) = self.connection
            && let Err(error) = connection.close().await
        {
            tracing::warn!(error = &error as &dyn std::error::Error, "close database");
        }
        if let Some(reply) = closing {
            answer(reply, Ok(0));
        }
    }

    /// One transaction of these, and in trouble of a probe and what was kept before them.
    async fn commit(&mut self, commands: &[Command]) -> Result<Vec<u64>, sqlx::Error> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => self.connection.insert(self.options.connect().await?),
        };
        let mut transaction = connection.begin().await?;
        if let Some(trouble) = &self.trouble {
            probe(&mut transaction).await?;
            for command in &trouble.kept {
                apply(&mut transaction, command).await?;
            }
        }
        let mut rows = Vec::with_capacity(commands.len());
        for command in commands {
            rows.push(apply(&mut transaction, command).await?);
        }
        transaction.commit().await?;
        Ok(rows)
    }

    fn failed(&mut self, error: &sqlx::Error, commands: Vec<Command>) {
        // SQLite may have ended the transaction by itself (a full disk), and sqlx would not know: what followed might not be committed.
        self.connection = None;
        let trouble = self.trouble.get_or_insert_with(|| Trouble {
            kept: Vec::new(),
            pause: FIRST_PAUSE / 2,
            next_try: Instant::now(),
        });
        // The others are asked for again by those who wanted them.
        trouble.kept.extend(
            commands
                .into_iter()
                .filter(|command| matches!(command, Command::Save(_) | Command::SaveMissed(_))),
        );
        trouble.pause = (trouble.pause * 2).min(LONGEST_PAUSE);
        trouble.next_try = Instant::now() + trouble.pause;
        self.report.send_replace(Some(error.to_string()));
    }

    fn recovered(&mut self) {
        if let Some(trouble) = self.trouble.take() {
            tracing::info!(
                outcomes = trouble.kept.len(),
                "the database writes again, outcomes that were kept are on disk"
            );
            self.report.send_replace(None);
        }
    }
}

/// Waits until then; for ever without a time.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Changes nothing but makes the commit write: without it one of no changes would succeed on a full disk.
async fn probe(connection: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    // No endpoint has an empty name.
    sqlx::query("INSERT INTO away (endpoint, first_id, count, last_at) VALUES ('', '', 0, 0)")
        .execute(&mut *connection)
        .await?;
    sqlx::query("DELETE FROM away WHERE endpoint = ''")
        .execute(connection)
        .await
        .map(drop)
}

/// Callers that are gone need no answer.
fn answer(reply: Reply, result: Result<u64, Error>) {
    drop(reply.send(result));
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
        Command::Forget {
            configured,
            before,
            now,
        } => {
            end_removed(connection, configured, *now).await?;
            let done = sqlx::query(
                "DELETE FROM deliveries WHERE updated_at < ? AND state <> 'waiting' AND announced = 1",
            )
            .bind(before.timestamp_millis())
            .execute(connection)
            .await?;
            Ok(done.rows_affected())
        }
    }
}

/// What waits for endpoints that are in the configuration no more ends as dead letters; what waits for the others is never given up here,
/// however long the dispatcher was off.
async fn end_removed(
    connection: &mut SqliteConnection,
    configured: &BTreeSet<String>,
    now: DateTime<Utc>,
) -> Result<(), sqlx::Error> {
    let waiting: Vec<String> =
        sqlx::query_scalar("SELECT DISTINCT endpoint FROM deliveries WHERE state = 'waiting'")
            .fetch_all(&mut *connection)
            .await?;
    for endpoint in waiting {
        if configured.contains(&endpoint) {
            continue;
        }
        let ended = sqlx::query(
            "UPDATE deliveries SET state = 'dead', error = ltrim(error || ' (the endpoint was removed from the configuration)'),
                 next_at = NULL, pair = NULL, updated_at = ?
             WHERE endpoint = ? AND state = 'waiting'",
        )
        .bind(now.timestamp_millis())
        .bind(&endpoint)
        .execute(&mut *connection)
        .await?;
        tracing::warn!(
            endpoint,
            deliveries = ended.rows_affected(),
            "endpoint was removed, what waited for it is kept as dead letters"
        );
    }
    Ok(())
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
