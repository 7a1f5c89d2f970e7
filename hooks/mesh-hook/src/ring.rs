//! Delivers a doorbell within the deadline, or spools it; delivers what waits.

use std::net::ToSocketAddrs;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use mesh_events::proto::mesh::hook::v1::Doorbell;
use prost::Message;

use crate::config::Config;
use crate::lines::{self, Folder};
use crate::nats::{self, Connection, Outgoing};
use crate::spool::{self, Spool};

/// Doorbells that are sent together.
const WINDOW: usize = 16;

/// What became of a doorbell.
#[derive(Debug)]
pub enum Outcome {
    /// JetStream has it on disk.
    Delivered {
        /// Its number in the stream.
        sequence: u64,
        /// For what waits.
        connection: Connection,
    },
    /// It waits on our disk, for this reason.
    Spooled(nats::Error),
    /// It is lost: neither NATS nor the disk took it. Ingest's sweep finds the job all the same.
    Lost(nats::Error, spool::Error),
}

/// Rings. Returns within the deadline and the time the disk takes for one small file.
pub fn ring(
    config: &Config,
    doorbell: &Doorbell,
    called_at: SystemTime,
    started: Instant,
) -> Outcome {
    let subject = mesh_events::subject::doorbell(&doorbell.cluster, &doorbell.hook);
    let deadline = started + config.deadline();
    let (send, answer) = mpsc::channel();
    let (task_config, task_subject, id, body) = (
        config.clone(),
        subject.clone(),
        doorbell.id.clone(),
        doorbell.encode_to_vec(),
    );
    // In a thread of its own, because looking up a host name cannot be told to stop. If there is no thread to be had, nobody sends an
    // answer, and the doorbell is spooled.
    drop(thread::Builder::new().spawn(move || {
        send.send(deliver(&task_config, &task_subject, &id, &body, deadline))
            .ok();
    }));
    let left = deadline.saturating_duration_since(Instant::now());
    match answer
        .recv_timeout(left)
        .unwrap_or(Err(nats::Error::Deadline))
    {
        Ok((sequence, connection)) => Outcome::Delivered {
            sequence,
            connection,
        },
        Err(error) => {
            let spooled = Doorbell {
                spooled: true,
                ..doorbell.clone()
            };
            let spool = Spool::new(&config.spool, config.max_spool_bytes);
            match spool.store(called_at, &doorbell.id, &subject, &spooled.encode_to_vec()) {
                Ok(()) => Outcome::Spooled(error),
                Err(lost) => Outcome::Lost(error, lost),
            }
        }
    }
}

fn deliver(
    config: &Config,
    subject: &str,
    id: &str,
    body: &[u8],
    deadline: Instant,
) -> Result<(u64, Connection), nats::Error> {
    let mut connection = connect(config, deadline)?;
    let mut results = connection.publish(&[Outgoing { subject, id, body }])?;
    let sequence = results
        .pop()
        .unwrap_or(Err(nats::Error::Protocol("no answer")))?;
    Ok((sequence, connection))
}

/// Connects to the first server that answers; each gets its share of the time that is left.
///
/// # Errors
/// Why the last one did not.
pub fn connect(config: &Config, deadline: Instant) -> Result<Connection, nats::Error> {
    let servers = config.servers().map_err(nats::Error::Refused)?;
    let mut last = nats::Error::Deadline;
    for (index, (host, port)) in servers.iter().enumerate() {
        let left = u32::try_from(servers.len() - index).unwrap_or(1);
        let until = Instant::now() + deadline.saturating_duration_since(Instant::now()) / left;
        let addresses = match (host.as_str(), *port).to_socket_addrs() {
            Ok(addresses) => addresses,
            Err(error) => {
                last = error.into();
                continue;
            }
        };
        for address in addresses {
            match Connection::open(address, config.login(), config.server_uid, until) {
                Ok(mut connection) => {
                    connection.set_deadline(deadline);
                    return Ok(connection);
                }
                Err(error) => last = error,
            }
        }
    }
    Err(last)
}

/// Delivers what waits: spooled doorbells, oldest first, then the lines of Slurm's Lua plugins, until the time is over or one is refused.
/// Returns how many doorbells went.
///
/// # Errors
/// If NATS or the disk refuses; what was not delivered stays.
pub fn flush(
    config: &Config,
    host: &str,
    connection: &mut Connection,
    until: Instant,
) -> Result<usize, FlushError> {
    connection.set_deadline(until);
    // A doorbell that is refused holds up the spool, not the lines.
    let bells = flush_spool(config, connection, until);
    let lines = flush_lines(config, host, connection);
    Ok(bells? + lines?)
}

fn flush_spool(
    config: &Config,
    connection: &mut Connection,
    until: Instant,
) -> Result<usize, FlushError> {
    let spool = Spool::new(&config.spool, config.max_spool_bytes);
    let disk = |source| spool::Error::Io {
        path: config.spool.clone(),
        source,
    };
    let Some(lock) = spool.lock().map_err(disk)? else {
        return Ok(0);
    };
    let mut flushed = 0;
    while Instant::now() < until {
        let bells = spool.oldest(&lock, WINDOW).map_err(disk)?;
        if bells.is_empty() {
            break;
        }
        let messages: Vec<_> = bells
            .iter()
            .map(|bell| Outgoing {
                subject: &bell.subject,
                id: &bell.id,
                body: &bell.body,
            })
            .collect();
        for (bell, result) in bells.iter().zip(connection.publish(&messages)?) {
            // Stop at the first that stays: the order is a promise.
            result?;
            spool.remove(&lock, bell).map_err(disk)?;
            flushed += 1;
        }
    }
    Ok(flushed)
}

fn flush_lines(
    config: &Config,
    host: &str,
    connection: &mut Connection,
) -> Result<usize, FlushError> {
    let Some(path) = &config.lines else {
        return Ok(0);
    };
    let disk = |source| FlushError::Lines {
        path: path.clone(),
        source,
    };
    let folder = Folder::new(path);
    let Some(_lock) = folder.lock().map_err(disk)? else {
        return Ok(0);
    };
    let mut flushed = 0;
    for (name, mode) in lines::FILES {
        let Some(mut taken) = folder.take(name, *mode).map_err(disk)? else {
            continue;
        };
        loop {
            let text = taken.read().map_err(disk)?;
            // Nothing was written while the last part was delivered: nobody has this file open any more.
            if text.is_empty() {
                break;
            }
            let bells = lines::doorbells(&config.cluster, host, &text);
            for window in bells.chunks(WINDOW) {
                flushed += publish(connection, window)?;
            }
        }
        taken.forget().map_err(disk)?;
    }
    Ok(flushed)
}

fn publish(connection: &mut Connection, bells: &[Doorbell]) -> Result<usize, nats::Error> {
    let encoded: Vec<_> = bells
        .iter()
        .map(|bell| {
            let subject = mesh_events::subject::doorbell(&bell.cluster, &bell.hook);
            (subject, bell.encode_to_vec())
        })
        .collect();
    let messages: Vec<_> = bells
        .iter()
        .zip(&encoded)
        .map(|(bell, (subject, body))| Outgoing {
            subject,
            id: &bell.id,
            body,
        })
        .collect();
    for result in connection.publish(&messages)? {
        result?;
    }
    Ok(bells.len())
}

/// What a flush did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    /// Doorbells that went.
    pub delivered: usize,
    /// Doorbells that stay in the spool.
    pub stay: usize,
}

/// Delivers all that waits, for `--flush`.
///
/// # Errors
/// If NATS cannot be reached or the disk refuses.
pub fn flush_all(config: &Config, host: &str, patience: Duration) -> Result<Flushed, FlushError> {
    let spool = Spool::new(&config.spool, config.max_spool_bytes);
    let count = || {
        spool.len().map_err(|source| spool::Error::Io {
            path: config.spool.clone(),
            source,
        })
    };
    let lines = config.lines.as_ref().map(Folder::new);
    if count()? == 0 && lines.is_none_or(|lines| lines.is_empty()) {
        return Ok(Flushed::default());
    }
    let until = Instant::now() + patience;
    let mut connection = connect(config, until)?;
    let delivered = flush(config, host, &mut connection, until)?;
    Ok(Flushed {
        delivered,
        stay: count()?,
    })
}

/// Why not everything could be delivered.
#[derive(Debug, thiserror::Error)]
pub enum FlushError {
    /// NATS.
    #[error(transparent)]
    Nats(#[from] nats::Error),
    /// The spool.
    #[error(transparent)]
    Spool(#[from] spool::Error),
    /// The lines of Slurm's Lua plugins.
    #[error("read lines in {path}: {source}")]
    Lines {
        /// Their folder.
        path: std::path::PathBuf,
        /// Cause.
        source: std::io::Error,
    },
}
