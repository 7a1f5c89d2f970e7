//! Group commit: one task runs one transaction at a time, with all writes that arrived during the previous commit.
//!
//! An outcome must be on disk before its message is acknowledged, and a disk syncs a few hundred to a few thousand
//! times a second. Batching needs no timer: a single write commits immediately, and under load many writes share a
//! sync.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use mesh_db::pool::WriteTransaction;
use mesh_db::{Database, sql};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::error::Error;
pub(super) use crate::store::command::Command;
use crate::store::delivery::Delivery;
use crate::store::saves::save;

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
    writes: mpsc::Sender<(Write, Reply)>,
    stop: CancellationToken,
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
        let stop = CancellationToken::new();
        tokio::spawn(task.run(incoming, stop.clone()));
        Self {
            writes,
            stop,
            trouble,
        }
    }

    /// Performs a write. Returns the number of rows once it is on disk.
    pub(super) async fn write(&self, epoch: Option<i64>, command: Command) -> Result<u64, Error> {
        let write = Write { epoch, command };
        let answer = mesh_runtime::ask(&self.writes, |reply| (write, reply)).await;
        answer.ok_or(Error::WriterStopped)?
    }

    /// Ends the task after all earlier writes.
    pub(super) async fn close(&self) {
        let nothing = Command::Change {
            endpoint: None,
            statements: Vec::new(),
        };
        // An error: the database is not writable, or the task has already ended.
        drop(self.write(None, nothing).await);
        self.stop.cancel();
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
    async fn run(mut self, mut incoming: mpsc::Receiver<(Write, Reply)>, stop: CancellationToken) {
        let mut batch = Vec::with_capacity(BATCH_SIZE);
        loop {
            let next_try = self.trouble.as_ref().map(|trouble| trouble.next_try);
            tokio::select! {
                count = incoming.recv_many(&mut batch, BATCH_SIZE) => if count == 0 { break },
                () = sleep_until(next_try.unwrap_or_else(Instant::now)), if next_try.is_some() => {}
                () = stop.cancelled() => break,
            }
            let (writes, replies): (Vec<_>, Vec<_>) = batch.drain(..).unzip();
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

/// Applies writes in order, skipping those whose lease another dispatcher holds. Consecutive stores of deliveries are
/// combined.
async fn apply(
    writes: &[Write],
    transaction: &mut WriteTransaction,
    epochs: &HashMap<String, i64>,
) -> Result<Vec<Result<u64, Error>>, sqlx::Error> {
    let mut results = Vec::with_capacity(writes.len());
    let mut group = BTreeMap::new();
    for write in writes {
        if let Err(error) = write.check(epochs) {
            results.push(Err(error));
            continue;
        }
        if let Command::Save(delivery) = &write.command {
            let key = (&*delivery.endpoint, &*delivery.event_id);
            if group.contains_key(&key) {
                save_all(transaction, &mut group).await?;
            }
            group.insert(key, &**delivery);
            results.push(Ok(1));
        } else {
            save_all(transaction, &mut group).await?;
            results.push(Ok(write.command.apply(transaction).await?));
        }
    }
    save_all(transaction, &mut group).await?;
    Ok(results)
}

/// Stores different deliveries in one statement, and empties the group. Their order does not matter.
async fn save_all(
    transaction: &mut WriteTransaction,
    group: &mut BTreeMap<(&str, &str), &Delivery>,
) -> Result<(), sqlx::Error> {
    let deliveries: Vec<&Delivery> = std::mem::take(group).into_values().collect();
    save(transaction, &deliveries).await.map(drop)
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
