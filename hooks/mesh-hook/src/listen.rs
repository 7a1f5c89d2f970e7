//! `mesh-hook --listen SOCKET`: takes the reports of the SPANK plugin and delivers them as doorbells. A process of its own on each node,
//! since slurmstepd must wait for nothing.
//!
//! Only root reports: the socket is for its owner alone, and the kernel says who wrote. Reports wait in memory while a window is
//! delivered, and in the spool while NATS is unavailable. What finds both full is dropped and counted. At SIGTERM the process takes no more
//! reports and ends once those that it has are delivered or spooled.

use std::fmt::Display;
use std::fs;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use mesh_events::proto::mesh::hook::v1::Doorbell;
use prost::Message as _;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix,
    SocketFlags, SocketType, recvmsg,
};

use crate::args::Options;
use crate::config::Config;
use crate::report::{report, warn};
use crate::spool::{Spool, State};
use crate::{flush, privilege, ring, sender, spank};

/// Reports that wait in memory.
const MAX_WAITING: usize = 10_000;
/// Reports that are published together.
const WINDOW: usize = 64;
/// Time limit for publishing a window while NATS is available. Nobody waits for it, unlike a hook; spooling is a synced file for each report.
const WINDOW_PATIENCE: Duration = Duration::from_secs(2);
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

/// Listens until a signal asks the process to end, and delivers or spools all reports that it has then.
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
    // Both before there are threads.
    privilege::become_owner_of(&config.spool).map_err(failed)?;
    let termination = unix_process::termination::descriptor().map_err(failed)?;
    let (send, reports) = mpsc::sync_channel(MAX_WAITING);
    let (cluster, host) = (config.cluster.clone(), sender::host());
    let stopping = Arc::new(AtomicBool::new(false));
    let deliverer = Deliverer {
        spool: Spool::new(&config.spool, config.max_spool_bytes),
        config,
        stopping: stopping.clone(),
        is_unavailable: false,
    };
    let delivering = thread::Builder::new()
        .spawn(move || deliverer.run(&reports))
        .map_err(failed)?;
    let receiver = Receiving {
        socket,
        own,
        cluster,
        host,
        send,
        dropped: 0,
        has_refused: false,
    };
    let received = receiver.run(&termination);
    stopping.store(true, Ordering::Relaxed);
    let delivered = delivering.join();
    received.map_err(failed)?;
    delivered.map_err(|_| failed(io::Error::other("the thread that delivers has failed")))
}

/// A socket to which only root and this user can write.
fn bind(path: &Path) -> io::Result<UnixDatagram> {
    // One that an earlier process left.
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        fs::remove_file(path)?;
    }
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // Before it has a name: a report that comes earlier would not say who wrote it, and would be refused.
    rustix::net::sockopt::set_socket_passcred(&socket, true)?;
    let address = SocketAddrUnix::new(path)?;
    let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let bound = rustix::net::bind(&socket, &address);
    rustix::process::umask(before);
    bound?;
    Ok(socket.into())
}

/// Takes reports as fast as they come: the kernel holds few of them (`net.unix.max_dgram_qlen`).
struct Receiving {
    socket: UnixDatagram,
    /// User of the process when it began.
    own: u32,
    cluster: String,
    host: String,
    send: SyncSender<Doorbell>,
    dropped: u64,
    has_refused: bool,
}

impl Receiving {
    /// Receives until a signal. Then takes what the kernel holds.
    fn run(mut self, termination: &OwnedFd) -> io::Result<()> {
        loop {
            let mut polled = [
                PollFd::new(termination, PollFlags::IN),
                PollFd::new(&self.socket, PollFlags::IN),
            ];
            match poll(&mut polled, None) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            if !polled[0].revents().is_empty() {
                break;
            }
            self.receive()?;
        }
        // Whoever sends from here on knows that the report is lost, and counts it.
        self.socket.shutdown(Shutdown::Read)?;
        while self.receive()? {}
        Ok(())
    }

    /// Takes a report. False if there is none.
    fn receive(&mut self) -> io::Result<bool> {
        let mut bytes = [0; spank::MAX_BYTES + 1];
        let (length, uid) = match next(&self.socket, &mut bytes) {
            Ok((0, None)) => return Ok(false),
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        };
        if uid.is_none_or(|uid| uid != 0 && uid != self.own) {
            if !std::mem::replace(&mut self.has_refused, true) {
                report(format_args!("a report of user {uid:?} was refused"));
            }
            return Ok(true);
        }
        let Some(doorbell) = spank::doorbell(&self.cluster, &self.host, &bytes[..length]) else {
            warn("a report that is none of the SPANK plugin's was refused");
            return Ok(true);
        };
        match self.send.try_send(doorbell) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                self.dropped += 1;
                if self.dropped.is_power_of_two() {
                    report(format_args!(
                        "reports of steps come faster than they are delivered; {} lost",
                        self.dropped
                    ));
                }
            }
            Err(TrySendError::Disconnected(_)) => {
                return Err(io::Error::other("the thread that delivers has ended"));
            }
        }
        Ok(true)
    }
}

/// The next datagram's length, and the user who wrote it. Does not wait.
fn next(socket: &UnixDatagram, bytes: &mut [u8]) -> io::Result<(usize, Option<u32>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(bytes)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
    )?;
    let uid = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmCredentials(credentials) => Some(credentials.uid.as_raw()),
        _ => None,
    });
    Ok((received.bytes, uid))
}

/// Delivers reports.
struct Deliverer {
    config: Config,
    spool: Spool,
    /// No more reports come; those that are left must be safe soon.
    stopping: Arc<AtomicBool>,
    /// NATS did not take a report since then.
    is_unavailable: bool,
}

impl Deliverer {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Delivers until no more reports can come and all are delivered or spooled.
    fn run(mut self, reports: &Receiver<Doorbell>) {
        let mut flush_at = Instant::now();
        loop {
            let wait = flush_at.saturating_duration_since(Instant::now());
            if wait.is_zero() && !self.is_stopping() {
                // What cannot be delivered stays where it is.
                sender::flush(&self.config, FLUSH_PATIENCE, false).ok();
                flush_at = Instant::now() + FLUSH_INTERVAL;
                continue;
            }
            match reports.recv_timeout(wait) {
                Ok(first) => {
                    let mut window = vec![first];
                    window.extend(reports.try_iter().take(WINDOW - 1));
                    self.deliver(&window);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Publishes, or spools. While the process stops, NATS gets no second chance: each would take as long as it may answer.
    fn deliver(&mut self, window: &[Doorbell]) {
        if self.is_stopping() && self.is_unavailable {
            return self.store_all(window, &"stopping");
        }
        let patience = if self.is_unavailable {
            self.config.deadline()
        } else {
            self.config.deadline().max(WINDOW_PATIENCE)
        };
        let published = ring::connect(&self.config, Instant::now() + patience)
            .map_err(flush::Error::from)
            .and_then(|mut connection| flush::publish(&mut connection, &self.spool, window));
        self.is_unavailable = published.is_err();
        if let Err(error) = published {
            self.store_all(window, &error);
        }
    }

    fn store_all(&self, window: &[Doorbell], error: &dyn Display) {
        if self.spool.begins(State::Unavailable) {
            report(format_args!(
                "reports of steps are spooled to {} until NATS accepts them: {error}",
                self.config.spool.display()
            ));
        }
        for doorbell in window {
            let subject = mesh_events::subject::doorbell(&doorbell.cluster, &doorbell.hook);
            let spooled = Doorbell {
                spooled: true,
                ..doorbell.clone()
            };
            // One that was published before the connection failed has the same id, so JetStream recognises it.
            let stored = self.spool.store(
                SystemTime::now(),
                &doorbell.id,
                &subject,
                &spooled.encode_to_vec(),
            );
            if let Err(lost) = stored
                && self.spool.begins(State::Full)
            {
                report(format_args!(
                    "reports of steps are lost until this is fixed: {error}; {lost}"
                ));
            }
        }
    }
}
