//! Group commit: one task runs one transaction at a time, with all writes that arrived during the previous commit.
//!
//! An outcome must be on disk before its message is acknowledged, and a disk syncs a few hundred to a few thousand
//! times a second. Batching needs no timer: a single write commits immediately, and under load many writes share a
//! sync.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use mesh_db::pool::WriteTransaction;
use mesh_db::{Database, sql};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::error::Error;
pub(super) use crate::store::command::Command;
use crate::store::saves::Group;

/// Maximum writes per transaction.
const BATCH_SIZE: usize = 512;
/// Pause after a failed commit. It doubles with each failure, up to `LONGEST_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Maximum duration of a transaction. Detects a server that vanished silently.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(10);

/// A write, and the epoch of the lease it requires.
struct Write {
    epoch: Option<i64>,
    command: Command,
}

type Reply = oneshot::Sender<Result<u64, Error>>;

/// Sends writes to the task. Cheap to clone.
#[derive(Clone)]
pub(super) struct Writer {
    writes: mpsc::Sender<(Option<Write>, Reply)>,
    /// Why writes fail. `None` while they succeed.
    pub(super) trouble: watch::Receiver<Option<String>>,
}

impl Writer {
    /// Starts the task, which has one transaction at a time.
    pub(super) fn start(database: Database) -> Self {
        let (writes, incoming) = mpsc::channel(2 * BATCH_SIZE);
        let (report, trouble) = watch::channel(None);
        let task = Task {
            database,
            report,
            trouble: None,
        };
        tokio::spawn(task.run(incoming));
        Self { writes, trouble }
    }

    /// Performs a write. Returns the number of rows once it is on disk.
    pub(super) async fn write(&self, epoch: Option<i64>, command: Command) -> Result<u64, Error> {
        let write = Some(Write { epoch, command });
        let answer = mesh_runtime::ask(&self.writes, |reply| (write, reply)).await;
        answer.ok_or(Error::WriterStopped)?
    }

    /// Ends the task after all earlier writes.
    pub(super) async fn close(&self) {
        // No answer: the task has already ended.
        drop(mesh_runtime::ask(&self.writes, |reply| (None, reply)).await);
    }
}

/// State since the last failed commit.
struct WriteOutage {
    /// Outcomes that are not on disk yet. Their requests were made and would be repeated if these writes were lost.
    unwritten: Vec<Write>,
    pause: Duration,
    next_try: Instant,
}

struct Task {
    database: Database,
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
                        "database write failed"
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

    /// Commits these writes. During an outage the transaction starts with a probe and the outcomes left from before.
    async fn commit(&mut self, writes: &[Write]) -> Result<Vec<Result<u64, Error>>, sqlx::Error> {
        let unwritten = self
            .trouble
            .as_ref()
            .map(|trouble| trouble.unwritten.as_slice());
        let attempt = async {
            let mut transaction = self.database.begin().await?;
            if unwritten.is_some() {
                probe(&mut transaction).await?;
            }
            let unwritten = unwritten.unwrap_or_default();
            let epochs = epochs(&mut transaction, unwritten.iter().chain(writes)).await?;
            for result in apply(unwritten, &mut transaction, &epochs).await? {
                if let Err(error) = result {
                    tracing::warn!(
                        error = mesh_runtime::error_chain(&error),
                        "outcome discarded: another dispatcher holds the lease"
                    );
                }
            }
            let results = apply(writes, &mut transaction, &epochs).await?;
            transaction.commit().await?;
            Ok(results)
        };
        tokio::time::timeout(TRANSACTION_TIMEOUT, attempt)
            .await
            .unwrap_or(Err(sqlx::Error::PoolTimedOut))
    }

    fn failed(&mut self, error: &sqlx::Error, writes: Vec<Write>) {
        let trouble = self.trouble.get_or_insert_with(|| WriteOutage {
            unwritten: Vec::new(),
            pause: FIRST_PAUSE / 2,
            next_try: Instant::now(),
        });
        // The callers retry all other writes.
        trouble.unwritten.extend(
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
                outcomes = trouble.unwritten.len(),
                "database is writable again, buffered outcomes stored"
            );
            self.report.send_replace(None);
        }
    }
}

/// Sleeps until then, or forever without a time.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Applies writes in order, skipping those whose lease another dispatcher holds. Consecutive stores of deliveries are
/// combined.
async fn apply(
    writes: &[Write],
    transaction: &mut WriteTransaction,
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
    /// Checks that the caller still holds the lease.
    fn check(&self, epochs: &HashMap<String, i64>) -> Result<(), Error> {
        match (self.epoch, self.command.endpoint()) {
            (Some(epoch), Some(endpoint)) if epochs.get(endpoint) != Some(&epoch) => {
                Err(Error::NotOurs(endpoint.to_owned()))
            }
            _ => Ok(()),
        }
    }
}

/// Reads the epochs of the leases these writes require. They are locked until the transaction ends: a takeover has to
/// wait.
async fn epochs<'a>(
    transaction: &mut WriteTransaction,
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
    // Lock in a fixed order to avoid deadlocks.
    let sql = sql!(
        "SELECT endpoint, epoch FROM leases WHERE endpoint IN ? ORDER BY endpoint{| FOR SHARE}",
        endpoints,
    );
    let rows = transaction.conn().rows(&sql).await?;
    rows.iter()
        .map(|row| Ok((row.get("endpoint")?, row.get("epoch")?)))
        .collect()
}

/// Changes nothing, but makes the commit write to disk. An empty commit would succeed on a full disk.
async fn probe(transaction: &mut WriteTransaction) -> Result<(), sqlx::Error> {
    // No endpoint has an empty name.
    for sql in [
        "DELETE FROM missed WHERE endpoint = ''",
        "INSERT INTO missed (endpoint, first_id, count, last_at) VALUES ('', '', 0, 0)",
        "DELETE FROM missed WHERE endpoint = ''",
    ] {
        transaction.conn().execute(&sql!(sql)).await?;
    }
    Ok(())
}

/// The caller may be gone.
fn answer(reply: Reply, result: Result<u64, Error>) {
    drop(reply.send(result));
}
