//! Delivers a doorbell within the deadline, or spools it.

use std::net::ToSocketAddrs;
use std::sync::mpsc;
use std::thread;
use std::time::{Instant, SystemTime};

use mesh_events::proto::mesh::hook::v1::Doorbell;
use prost::Message;

use crate::config::Config;
use crate::nats::{self, Connection, Outgoing};
use crate::spool::{self, Spool};

/// Fate of a doorbell.
#[derive(Debug)]
pub enum Outcome {
    /// JetStream has stored it.
    Delivered {
        /// Sequence in the stream.
        sequence: u64,
        /// Open connection, for delivering the backlog.
        connection: Connection,
    },
    /// Stored in the spool, because of this error.
    Spooled(nats::Error),
    /// Lost: neither NATS nor the disk accepted it. Ingest still finds the job in its next poll.
    Lost(nats::Error, spool::Error),
}

/// Delivers or spools a doorbell. Returns within the deadline plus the time of writing one small file.
pub fn ring(
    config: &Config,
    doorbell: &Doorbell,
    called_at: SystemTime,
    started: Instant,
) -> Outcome {
    match send(config, doorbell, started) {
        Ok((sequence, connection)) => Outcome::Delivered {
            sequence,
            connection,
        },
        Err(error) => {
            let spooled = Doorbell {
                spooled: true,
                ..doorbell.clone()
            };
            let subject = mesh_events::subject::doorbell(&doorbell.cluster, &doorbell.hook);
            let spool = Spool::new(&config.spool, config.max_spool_bytes);
            match spool.store(called_at, &doorbell.id, &subject, &spooled.encode_to_vec()) {
                Ok(()) => Outcome::Spooled(error),
                Err(lost) => Outcome::Lost(error, lost),
            }
        }
    }
}

/// Delivers a doorbell within the deadline.
///
/// # Errors
/// If NATS does not accept it in time.
pub fn send(
    config: &Config,
    doorbell: &Doorbell,
    started: Instant,
) -> Result<(u64, Connection), nats::Error> {
    let subject = mesh_events::subject::doorbell(&doorbell.cluster, &doorbell.hook);
    let deadline = started + config.deadline();
    let (send, answer) = mpsc::channel();
    let (config, id, body) = (
        config.clone(),
        doorbell.id.clone(),
        doorbell.encode_to_vec(),
    );
    // In its own thread, because a host name lookup cannot be cancelled. If no thread can be started, no answer arrives.
    drop(thread::Builder::new().spawn(move || {
        send.send(deliver(&config, &subject, &id, &body, deadline))
            .ok();
    }));
    let left = deadline.saturating_duration_since(Instant::now());
    answer
        .recv_timeout(left)
        .unwrap_or(Err(nats::Error::Deadline))
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

/// Connects to the first server that answers. The remaining time is divided among the servers.
///
/// # Errors
/// The error of the last server.
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
