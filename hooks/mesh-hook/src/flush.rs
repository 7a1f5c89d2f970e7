//! Delivers spooled doorbells, oldest first, then the lines of Slurm's Lua plugins.
//!
//! NATS may refuse a single doorbell: it is too large, or the user may not publish to its subject. Such a doorbell is put aside so
//! that it does not block the others; `smesh hooks flush` retries it.
//! While NATS accepts nothing (unavailable, stream full), all doorbells stay in place and in order.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use mesh_events::proto::mesh::hook::v1::Doorbell;
use prost::Message;

use crate::config::Config;
use crate::lines::{self, Folder, Source};
use crate::nats::{self, Connection, Outgoing};
use crate::report::warn;
use crate::ring::connect;
use crate::spool::{self, FlushLock, Spool, Spooled};

/// Doorbells that are published together.
const MAX_IN_FLIGHT: usize = 16;

/// Result of a flush.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    /// Doorbells that were delivered.
    pub delivered: usize,
    /// Doorbells still in the spool.
    pub remaining: usize,
    /// Doorbells that NATS refuses. They are put aside until an operator retries them.
    pub refused: usize,
    /// Reason of the last refusal, if this flush saw one.
    pub reason: Option<String>,
    /// Why the lines of Slurm's Lua plugins are not read, if so.
    pub lines: Option<String>,
}

impl Flushed {
    /// True if nothing is left to deliver.
    pub const fn is_all(&self) -> bool {
        self.remaining == 0 && self.refused == 0 && self.lines.is_none()
    }
}

impl fmt::Display for Flushed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} delivered, {} left in the spool",
            self.delivered, self.remaining
        )?;
        if self.refused > 0 {
            write!(f, ", {} refused", self.refused)?;
        }
        if let Some(reason) = &self.reason {
            write!(f, ": {reason}")?;
        }
        match &self.lines {
            Some(problem) => write!(f, "; lines of Lua plugins not read: {problem}"),
            None => Ok(()),
        }
    }
}

/// Errors of a flush.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// NATS.
    #[error(transparent)]
    Nats(#[from] nats::Error),
    /// The spool.
    #[error(transparent)]
    Spool(#[from] spool::Error),
    /// Reading lines that were already taken from their file.
    #[error(transparent)]
    Lines(#[from] lines::Error),
    /// Reading lines that were taken from their file.
    #[error("read lines in {path}: {source}")]
    PendingLines {
        /// Their folder.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
}

/// Delivers spooled doorbells and lines until the deadline.
///
/// # Errors
/// If NATS or the disk accepts nothing now. Undelivered doorbells stay in the spool.
pub fn flush(
    config: &Config,
    host: &str,
    connection: &mut Connection,
    until: Instant,
) -> Result<Flushed, Error> {
    connection.set_deadline(until);
    let mut flush = Flush {
        config,
        spool: Spool::new(&config.spool, config.max_spool_bytes),
        connection,
        until,
        delivered: 0,
        reason: None,
        problem: None,
    };
    let doorbells = flush.doorbells();
    // A fault of the spool does not block the lines.
    let lines = flush.lines(host);
    doorbells.and(lines)?;
    Ok(Flushed {
        delivered: flush.delivered,
        remaining: flush.spool.len().map_err(|error| flush.disk(error))?,
        refused: flush.spool.refused().map_err(|error| flush.disk(error))?,
        reason: flush.reason,
        lines: flush.problem,
    })
}

/// Delivers everything in the spool. With `retry_refused`, refused doorbells are retried once.
///
/// # Errors
/// If NATS is unreachable or the disk refuses.
pub fn flush_all(
    config: &Config,
    host: &str,
    patience: Duration,
    retry_refused: bool,
) -> Result<Flushed, Error> {
    let spool = Spool::new(&config.spool, config.max_spool_bytes);
    let disk = |source| spool::Error::Io {
        path: config.spool.clone(),
        source,
    };
    let refused = spool.refused().map_err(disk)?;
    let nothing = spool.is_empty().map_err(disk)? && (refused == 0 || !retry_refused);
    let lines = config.lines.as_ref().map(Folder::new);
    // The plugins write only into files that already exist.
    let prepared = lines.as_ref().map(|lines| {
        let prepared = Source::ALL.map(|source| lines.prepare(source).map(drop));
        prepared.into_iter().collect::<Result<(), _>>()
    });
    let problem = prepared
        .and_then(Result::err)
        .map(|error| error.to_string());
    if nothing && lines.is_none_or(|lines| lines.is_empty()) {
        return Ok(Flushed {
            refused,
            lines: problem,
            ..Flushed::default()
        });
    }
    let until = Instant::now() + patience;
    let mut connection = connect(config, until)?;
    if retry_refused && let Some(lock) = spool.lock().map_err(disk)? {
        spool.take_back(&lock).map_err(disk)?;
    }
    flush(config, host, &mut connection, until)
}

struct Flush<'a> {
    config: &'a Config,
    spool: Spool,
    connection: &'a mut Connection,
    until: Instant,
    delivered: usize,
    reason: Option<String>,
    problem: Option<String>,
}

impl Flush<'_> {
    fn disk(&self, source: std::io::Error) -> Error {
        Error::Spool(spool::Error::Io {
            path: self.config.spool.clone(),
            source,
        })
    }

    fn doorbells(&mut self) -> Result<(), Error> {
        let Some(lock) = self.spool.lock().map_err(|error| self.disk(error))? else {
            return Ok(());
        };
        // Lists the folder once for the present files, and again for those that arrived meanwhile.
        let mut tried: HashSet<String> = HashSet::new();
        loop {
            let mut names = self
                .spool
                .waiting(&lock)
                .map_err(|error| self.disk(error))?;
            names.retain(|name| !tried.contains(name));
            if names.is_empty() {
                return Ok(());
            }
            for window in names.chunks(MAX_IN_FLIGHT) {
                if Instant::now() >= self.until {
                    return Ok(());
                }
                let doorbells = self
                    .spool
                    .read(&lock, window)
                    .map_err(|error| self.disk(error))?;
                self.window(&lock, &doorbells)?;
            }
            tried.extend(names);
        }
    }

    fn window(&mut self, lock: &FlushLock, doorbells: &[Spooled]) -> Result<(), Error> {
        let messages: Vec<_> = doorbells
            .iter()
            .map(|doorbell| Outgoing {
                subject: &doorbell.subject,
                id: &doorbell.id,
                body: &doorbell.body,
            })
            .collect();
        let mut first_error = None;
        for (doorbell, result) in doorbells.iter().zip(self.connection.publish(&messages)?) {
            match result {
                Ok(_) => {
                    self.spool
                        .remove(lock, doorbell)
                        .map_err(|error| self.disk(error))?;
                    self.delivered += 1;
                }
                Err(error) if error.is_of_one_message() => {
                    self.spool
                        .mark_refused(lock, doorbell)
                        .map_err(|error| self.disk(error))?;
                    warn(format_args!(
                        "{} set aside: {error}",
                        doorbell.path.display()
                    ));
                    self.reason = Some(error.to_string());
                }
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        first_error.map_or(Ok(()), |error| Err(error.into()))
    }

    fn lines(&mut self, host: &str) -> Result<(), Error> {
        let Some(path) = &self.config.lines else {
            return Ok(());
        };
        let folder = Folder::new(path);
        // A fault of slurmctld's lines does not block users' lines, nor the reverse.
        let results = Source::ALL.map(|source| self.lines_of(&folder, source, path, host));
        results.into_iter().collect()
    }

    fn lines_of(
        &mut self,
        folder: &Folder,
        source: Source,
        path: &Path,
        host: &str,
    ) -> Result<(), Error> {
        let failed = |source| Error::PendingLines {
            path: path.to_owned(),
            source,
        };
        let lock = match folder.lock(source) {
            Ok(lock) => lock,
            // Not a fault of the spool; a retry would not change it.
            Err(error) => {
                self.problem = Some(error.to_string());
                return Ok(());
            }
        };
        let Some(lock) = lock else {
            return Ok(());
        };
        let Some(mut pending) = folder.take(&lock, source)? else {
            return Ok(());
        };
        loop {
            let text = pending.read().map_err(failed)?;
            // Nothing was written while the last part was delivered, so no process has this file open any more.
            if text.is_empty() {
                break;
            }
            let doorbells = lines::doorbells(&self.config.cluster, host, &text);
            for window in doorbells.chunks(MAX_IN_FLIGHT) {
                self.publish_lines(window)?;
            }
        }
        pending.discard().map_err(failed)
    }

    fn publish_lines(&mut self, doorbells: &[Doorbell]) -> Result<(), Error> {
        self.delivered += publish(self.connection, &self.spool, doorbells)?;
        Ok(())
    }
}

/// Publishes doorbells that are in no file yet, and returns how many were delivered.
///
/// # Errors
/// If NATS accepts nothing now.
pub fn publish(
    connection: &mut Connection,
    spool: &Spool,
    doorbells: &[Doorbell],
) -> Result<usize, Error> {
    let encoded: Vec<_> = doorbells
        .iter()
        .map(|doorbell| {
            let subject = mesh_events::subject::doorbell(&doorbell.cluster, &doorbell.hook);
            (subject, doorbell.encode_to_vec())
        })
        .collect();
    let messages: Vec<_> = doorbells
        .iter()
        .zip(&encoded)
        .map(|(doorbell, (subject, body))| Outgoing {
            subject,
            id: &doorbell.id,
            body,
        })
        .collect();
    let mut delivered = 0;
    for (message, result) in messages.iter().zip(connection.publish(&messages)?) {
        match result {
            Ok(_) => delivered += 1,
            // Spooled as a file, which the next flush puts aside. The following doorbells are not blocked.
            Err(error) if error.is_of_one_message() => {
                let Outgoing { subject, id, body } = *message;
                spool.store(SystemTime::now(), id, subject, body)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(delivered)
}
