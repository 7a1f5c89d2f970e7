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
