//! Delivers a doorbell within the deadline, or spools it.

use std::net::ToSocketAddrs;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use mesh_events::proto::mesh::hook::v1::Doorbell;
use prost::Message;

use crate::config::Config;
use crate::nats::{self, Connection, Outgoing};
use crate::spool::{self, Spool};

/// Spooled doorbells that are sent together.
const WINDOW: usize = 16;

/// What became of a doorbell.
#[derive(Debug)]
pub enum Outcome {
    /// JetStream has it on disk; so many spooled ones went along.
    Delivered {
        /// Spooled doorbells that were delivered too.
        flushed: usize,
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
    let (send, answers) = mpsc::channel();
    let (task_config, task_subject, id, body) = (
        config.clone(),
        subject.clone(),
        doorbell.id.clone(),
        doorbell.encode_to_vec(),
    );
    // In a thread of its own, because looking up a host name cannot be told to stop. If there is no thread to be had, nobody sends an
    // answer, and the doorbell is spooled.
    drop(thread::Builder::new().spawn(move || {
        let delivered = deliver(&task_config, &task_subject, &id, &body, deadline);
        match delivered {
            Ok(mut connection) => {
                send.send(Ok(0)).ok();
                // A quarter of the deadline at most: a job start waits for this.
                let until = deadline.min(Instant::now() + task_config.deadline() / 4);
                send.send(Ok(flush(&task_config, &mut connection, until)))
                    .ok();
            }
            Err(error) => {
                send.send(Err(error)).ok();
            }
        }
    }));
    let wait = || deadline.saturating_duration_since(Instant::now());
    match answers
        .recv_timeout(wait())
        .unwrap_or(Err(nats::Error::Deadline))
    {
        Ok(_) => Outcome::Delivered {
            flushed: answers
                .recv_timeout(wait())
                .ok()
                .and_then(Result::ok)
                .unwrap_or_default(),
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
) -> Result<Connection, nats::Error> {
    let mut connection = connect(config, deadline)?;
    let mut results = connection.publish(&[Outgoing { subject, id, body }])?;
    results
        .pop()
        .unwrap_or(Err(nats::Error::Protocol("no answer")))?;
    Ok(connection)
}

/// Connects to the first server that answers; each gets its share of the time that is left.
fn connect(config: &Config, deadline: Instant) -> Result<Connection, nats::Error> {
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

/// Delivers spooled doorbells, oldest first, until the time is over, the spool is empty, or one is refused. Returns how many went.
fn flush(config: &Config, connection: &mut Connection, until: Instant) -> usize {
    let spool = Spool::new(&config.spool, config.max_spool_bytes);
    let Ok(Some(lock)) = spool.lock() else {
        return 0;
    };
    connection.set_deadline(until);
    let mut flushed = 0;
    while Instant::now() < until {
        let Ok(bells) = spool.oldest(&lock, WINDOW) else {
            break;
        };
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
        let Ok(results) = connection.publish(&messages) else {
            break;
        };
        for (bell, result) in bells.iter().zip(&results) {
            // Stop at the first that stays: the order is a promise.
            if result.is_err() || spool.remove(&lock, bell).is_err() {
                return flushed;
            }
            flushed += 1;
        }
    }
    flushed
}

/// Delivers the whole spool, for `--flush`: returns how many went and how many stay.
///
/// # Errors
/// If NATS cannot be reached or the spool cannot be read.
pub fn flush_all(config: &Config, patience: Duration) -> Result<(usize, usize), FlushError> {
    let spool = Spool::new(&config.spool, config.max_spool_bytes);
    let count = || {
        spool.len().map_err(|source| spool::Error::Io {
            path: config.spool.clone(),
            source,
        })
    };
    if count()? == 0 {
        return Ok((0, 0));
    }
    let until = Instant::now() + patience;
    let mut connection = connect(config, until)?;
    let flushed = flush(config, &mut connection, until);
    Ok((flushed, count()?))
}

/// Why the spool could not be emptied.
#[derive(Debug, thiserror::Error)]
pub enum FlushError {
    /// NATS.
    #[error(transparent)]
    Nats(#[from] nats::Error),
    /// The folder.
    #[error(transparent)]
    Spool(#[from] spool::Error),
}
