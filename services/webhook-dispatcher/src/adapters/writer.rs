//! Group commit: one transaction at a time, one task, and as many writes per transaction as came while the last one went to disk.
//!
//! A delivery's outcome must be on disk before its message is acknowledged, and a disk syncs a few hundred to a few thousand times a
//! second. So no write waits for a time-out, and none has a sync of its own under load.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use mesh_db::pool::{Access, Pool, Transaction};
use mesh_db::sql::Sql;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

pub(super) use super::command::Command;
use super::saves::Group;
use crate::error::Error;

/// Writes per transaction.
const BATCH_SIZE: usize = 512;
/// After a failed commit the database is tried again so soon, then half as often each time, down to `LONGEST_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Longest time of a transaction: detects a server that vanished silently.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(10);

/// A write, and the epoch of the lease it needs.
struct Write {
    epoch: Option<i64>,
    command: Command,
}

type Reply = oneshot::Sender<Result<u64, Error>>;

/// Hands writes to the task. Cheap to clone.
#[derive(Clone)]
pub(super) struct Writer {
    writes: mpsc::Sender<(Option<Write>, Reply)>,
    trouble: watch::Receiver<Option<String>>,
}

impl Writer {
    /// Writes through connections of this pool, one at a time.
    pub(super) fn start(pool: Pool) -> Self {
        let (writes, incoming) = mpsc::channel(2 * BATCH_SIZE);
        let (report, trouble) = watch::channel(None);
        let task = Task {
            pool,
            report,
            trouble: None,
        };
        tokio::spawn(task.run(incoming));
        Self { writes, trouble }
    }

    /// Why the database does not write; `None` while it does.
    pub(super) fn trouble(&self) -> watch::Receiver<Option<String>> {
        self.trouble.clone()
    }

    /// Returns the number of rows when the write is on disk.
    pub(super) async fn write(&self, epoch: Option<i64>, command: Command) -> Result<u64, Error> {
        let (reply, answer) = oneshot::channel();
        self.writes
            .send((Some(Write { epoch, command }), reply))
            .await
            .map_err(|_| Error::WriterStopped)?;
        answer.await.map_err(|_| Error::WriterStopped)?
    }

    /// Ends the task after everything before.
    pub(super) async fn close(&self) {
        let (reply, answer) = oneshot::channel();
        if self.writes.send((None, reply)).await.is_ok() {
            // An error means that the task has ended already.
            drop(answer.await);
        }
    }
}

/// Since the last commit failed.
struct WriteOutage {
    /// Outcomes that are not on disk. Their requests were made, so they are kept until they are written: forgotten, they would be made again.
    kept: Vec<Write>,
    pause: Duration,
    next_try: Instant,
}

struct Task {
    pool: Pool,
    report: watch::Sender<Option<String>>,
    trouble: Option<WriteOutage>,
}

impl Task {
    async fn run(mut self, mut incoming: mpsc::Receiver<(Option<Write>, Reply)>) {
        let mut batch = Vec::with_capacity(BATCH_SIZE);
        let mut closing = None;
        while closing.is_none() {
            let next_try = self.trouble.as_ref().map(|trouble| trouble.next_try);
            tokio::select! {
                count = incoming.recv_many(&mut batch, BATCH_SIZE) => if count == 0 { break },
                () = at(next_try) => {}
            }
            let mut replies = Vec::with_capacity(batch.len());
            let mut writes = Vec::with_capacity(batch.len());
            for (write, reply) in batch.drain(..) {
                match write {
                    Some(write) => {
                        writes.push(write);
                        replies.push(reply);
                    }
                    None => closing = Some(reply),
                }
            }
            match self.commit(&writes).await {
                Ok(results) => {
                    self.recovered();
                    replies
                        .into_iter()
                        .zip(results)
                        .for_each(|(reply, result)| answer(reply, result));
                }
                Err(error) => {
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        writes = replies.len(),
                        "write deliveries"
                    );
                    self.failed(&error, writes);
                    replies
                        .into_iter()
                        .for_each(|reply| answer(reply, Err(Error::Write(error.to_string()))));
                }
            }
        }
        if let Some(reply) = closing {
            answer(reply, Ok(0));
        }
    }

    /// One transaction of these, and in trouble of a probe and what was kept before them.
    async fn commit(&mut self, writes: &[Write]) -> Result<Vec<Result<u64, Error>>, sqlx::Error> {
        let mut connection = self.pool.acquire().await?;
        let kept = self.trouble.as_ref().map(|trouble| trouble.kept.as_slice());
        let attempt = async {
            let mut transaction = connection.begin(Access::Write).await?;
            if kept.is_some() {
                probe(&mut transaction).await?;
            }
            let kept = kept.unwrap_or_default();
            let epochs = epochs(&mut transaction, kept.iter().chain(writes)).await?;
            for result in apply(kept, &mut transaction, &epochs).await? {
                if let Err(error) = result {
                    tracing::warn!(
                        error = mesh_runtime::error_chain(&error),
                        "outcome is not stored"
                    );
                }
            }
            let results = apply(writes, &mut transaction, &epochs).await?;
            transaction.commit().await?;
            Ok(results)
        };
        let committed = tokio::time::timeout(TRANSACTION_TIMEOUT, attempt)
            .await
            .unwrap_or(Err(sqlx::Error::PoolTimedOut));
        if committed.is_err() {
            // SQLite may have ended the transaction by itself (a full disk), and sqlx would not know: what followed might not be
            // committed. One to a server may be in the middle of an answer.
            connection.close_on_drop();
        }
        committed
    }

    fn failed(&mut self, error: &sqlx::Error, writes: Vec<Write>) {
        let trouble = self.trouble.get_or_insert_with(|| WriteOutage {
            kept: Vec::new(),
            pause: FIRST_PAUSE / 2,
            next_try: Instant::now(),
        });
        // The others are asked for again by those who wanted them.
        trouble.kept.extend(
            writes
                .into_iter()
                .filter(|write| write.command.is_outcome()),
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

/// Performs writes in their order, those that only store deliveries together; not those whose lease is another's by now.
async fn apply(
    writes: &[Write],
    transaction: &mut Transaction<'_>,
    epochs: &HashMap<String, i64>,
) -> Result<Vec<Result<u64, Error>>, sqlx::Error> {
    let mut results = Vec::with_capacity(writes.len());
    let mut group = Group::default();
    for write in writes {
        if let Err(error) = write.check(epochs) {
            results.push(Err(error));
            continue;
        }
        if let Command::Save(delivery) = &write.command {
            if !group.add(delivery) {
                group.store(transaction).await?;
                group.add(delivery);
            }
            results.push(Ok(1));
        } else {
            group.store(transaction).await?;
            results.push(Ok(write.command.apply(transaction).await?));
        }
    }
    group.store(transaction).await?;
    Ok(results)
}

impl Write {
    /// Whether the lease is still that of whoever asked.
    fn check(&self, epochs: &HashMap<String, i64>) -> Result<(), Error> {
        match (self.epoch, self.command.endpoint()) {
            (Some(epoch), Some(endpoint)) if epochs.get(endpoint) != Some(&epoch) => {
                Err(Error::NotOurs(endpoint.to_owned()))
            }
            _ => Ok(()),
        }
    }
}

/// The epochs of the leases that these writes need. They stay so until the transaction ends: who wants to take one over waits.
async fn epochs<'a>(
    transaction: &mut Transaction<'_>,
    writes: impl Iterator<Item = &'a Write>,
) -> Result<HashMap<String, i64>, sqlx::Error> {
    let endpoints: BTreeSet<&str> = writes
        .filter(|write| write.epoch.is_some())
        .filter_map(|write| write.command.endpoint())
        .collect();
    if endpoints.is_empty() {
        return Ok(HashMap::new());
    }
    let endpoints: Vec<String> = endpoints.into_iter().map(str::to_owned).collect();
    // In one order, so that two who hold several never wait for each other.
    let sql = Sql::new("SELECT endpoint, epoch FROM leases WHERE endpoint")
        .any_of(endpoints)
        .push(" ORDER BY endpoint")
        .either("", " FOR SHARE");
    let rows = transaction.conn().rows(&sql).await?;
    rows.iter()
        .map(|row| Ok((row.get("endpoint")?, row.get("epoch")?)))
        .collect()
}

/// Changes nothing but makes the commit write: without it one of no changes would succeed on a full disk.
async fn probe(transaction: &mut Transaction<'_>) -> Result<(), sqlx::Error> {
    // No endpoint has an empty name.
    for sql in [
        "DELETE FROM missed WHERE endpoint = ''",
        "INSERT INTO missed (endpoint, first_id, count, last_at) VALUES ('', '', 0, 0)",
        "DELETE FROM missed WHERE endpoint = ''",
    ] {
        transaction.conn().execute(&Sql::new(sql)).await?;
    }
    Ok(())
}

/// Callers that are gone need no answer.
fn answer(reply: Reply, result: Result<u64, Error>) {
    drop(reply.send(result));
}
