//! `mesh-hook --listen SOCKET`: takes the reports of the SPANK plugin and delivers them as doorbells. A process of its own on each node,
//! since slurmstepd must wait for nothing.
//!
//! Only root reports: the socket is for its owner alone, and the kernel says who wrote. Reports wait in memory while a window is
//! delivered, and in the spool while NATS is unavailable. What finds both full is dropped and counted.

use std::fs;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use mesh_events::proto::mesh::hook::v1::Doorbell;
use prost::Message as _;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::args::Options;
use crate::config::Config;
use crate::report::{report, warn};
use crate::spool::{Spool, State};
use crate::{flush, privilege, ring, sender, spank};

/// Reports that wait in memory.
const MAX_WAITING: usize = 10_000;
/// Reports that are published together.
const WINDOW: usize = 64;
/// How often the spool is delivered.
const FLUSH_INTERVAL: Duration = Duration::from_secs(5);
/// Time limit for delivering the backlog.
const FLUSH_PATIENCE: Duration = Duration::from_secs(10);

/// Errors that end the listener; the service manager starts it again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] crate::config::Error),
    /// The socket.
    #[error("listen on {path}: {source}")]
    Socket {
        /// Its path.
        path: String,
        /// Cause.
        source: io::Error,
    },
}

/// Listens until the process is ended.
///
/// # Errors
/// If the configuration or the socket cannot be used.
pub fn run(options: &Options, path: &Path) -> Result<(), Error> {
    let config = Config::load(sender::config_path(options))?;
    let failed = |source| Error::Socket {
        path: path.display().to_string(),
        source,
    };
    let socket = bind(path).map_err(failed)?;
    let own = rustix::process::geteuid().as_raw();
    // Before there are threads.
    privilege::become_owner_of(&config.spool).map_err(failed)?;
    let (send, reports) = mpsc::sync_channel(MAX_WAITING);
    let (cluster, host) = (config.cluster.clone(), sender::host());
    let deliverer = config;
    thread::Builder::new()
        .spawn(move || deliver_all(&deliverer, &reports))
        .map_err(failed)?;
    receive(&socket, own, &cluster, &host, &send).map_err(failed)
}

/// A socket to which only root and this user can write.
fn bind(path: &Path) -> io::Result<UnixDatagram> {
    // One that an earlier process left.
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        fs::remove_file(path)?;
    }
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let socket = UnixDatagram::bind(path);
    rustix::process::umask(before);
    let socket = socket?;
    rustix::net::sockopt::set_socket_passcred(&socket, true)?;
    Ok(socket)
}

/// Takes reports as fast as they come: the kernel holds few of them (`net.unix.max_dgram_qlen`).
fn receive(
    socket: &UnixDatagram,
    own: u32,
    cluster: &str,
    host: &str,
    send: &SyncSender<Doorbell>,
) -> io::Result<()> {
    let (mut dropped, mut refused) = (0_u64, false);
    loop {
        let mut bytes = [0; spank::MAX_BYTES + 1];
        let (length, uid) = match next(socket, &mut bytes) {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if uid.is_none_or(|uid| uid != 0 && uid != own) {
            if !std::mem::replace(&mut refused, true) {
                report(format_args!("a report of user {uid:?} was refused"));
            }
            continue;
        }
        let Some(doorbell) = spank::doorbell(cluster, host, &bytes[..length]) else {
            warn("a report that is none of the SPANK plugin's was refused");
            continue;
        };
        match send.try_send(doorbell) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                dropped += 1;
                if dropped.is_power_of_two() {
                    report(format_args!(
                        "reports of steps come faster than they are delivered; {dropped} lost"
                    ));
                }
            }
            Err(TrySendError::Disconnected(_)) => {
                return Err(io::Error::other("the thread that delivers has ended"));
            }
        }
    }
}

/// The next datagram's length, and the user who wrote it.
fn next(socket: &UnixDatagram, bytes: &mut [u8]) -> io::Result<(usize, Option<u32>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(bytes)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let uid = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmCredentials(credentials) => Some(credentials.uid.as_raw()),
        _ => None,
    });
    Ok((received.bytes, uid))
}

fn deliver_all(config: &Config, reports: &Receiver<Doorbell>) {
    let spool = Spool::new(&config.spool, config.max_spool_bytes);
    let mut flush_at = Instant::now();
    loop {
        let wait = flush_at.saturating_duration_since(Instant::now());
        if wait.is_zero() {
            // What cannot be delivered stays where it is.
            sender::flush(config, FLUSH_PATIENCE, false).ok();
            flush_at = Instant::now() + FLUSH_INTERVAL;
            continue;
        }
        match reports.recv_timeout(wait) {
            Ok(first) => {
                let mut window = vec![first];
                window.extend(reports.try_iter().take(WINDOW - 1));
                deliver(config, &spool, &window);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Publishes, or spools.
fn deliver(config: &Config, spool: &Spool, window: &[Doorbell]) {
    let published = ring::connect(config, Instant::now() + config.deadline())
        .map_err(flush::Error::from)
        .and_then(|mut connection| flush::publish(&mut connection, spool, window));
    let Err(error) = published else {
        return;
    };
    if spool.begins(State::Unavailable) {
        report(format_args!(
            "reports of steps are spooled to {} until NATS accepts them: {error}",
            config.spool.display()
        ));
    }
    for doorbell in window {
        let subject = mesh_events::subject::doorbell(&doorbell.cluster, &doorbell.hook);
        let spooled = Doorbell {
            spooled: true,
            ..doorbell.clone()
        };
        // One that was published before the connection failed has the same id, so JetStream recognises it.
        let stored = spool.store(
            SystemTime::now(),
            &doorbell.id,
            &subject,
            &spooled.encode_to_vec(),
        );
        if let Err(lost) = stored
            && spool.begins(State::Full)
        {
            report(format_args!(
                "reports of steps are lost until this is fixed: {error}; {lost}"
            ));
        }
    }
}
