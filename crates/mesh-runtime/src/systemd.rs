//! What systemd is notified of in a unit with `Type=notify`: the process is up, why it is not ready, and that it is not stuck.
//!
//! The protocol is a datagram of `KEY=value` lines (sd_notify(3)). It is written here so that the socket is an argument: crates for it take the
//! address from the environment only, which a test cannot change for itself.
//!
//! Up means that databases are open and the API listens. A NATS or Slurm that is away is no failed start: it is the unit's status.

use std::env;
use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use crate::{Context, Health};

/// Longest time until a changed status is reported.
const STATUS_INTERVAL: Duration = Duration::from_secs(5);

/// The socket of the unit that started this process.
struct Notifier {
    socket: UnixDatagram,
    /// systemd ends the process if it does not hear from it for this long.
    watchdog: Option<Duration>,
}

/// Notifies systemd until the shutdown. Does nothing in a process that no such unit started.
pub(crate) async fn notify(context: Context) {
    let Some(address) = env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let number = |name| env::var(name).ok()?.parse::<u64>().ok();
    let own = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    let watchdog = number("WATCHDOG_USEC")
        .filter(|_| own)
        .map(Duration::from_micros);
    match Notifier::connect(&address, watchdog) {
        Ok(notifier) => {
            let shutdown = context.shutdown.cancelled();
            notifier.follow(&context.health, shutdown).await;
        }
        Err(error) => tracing::warn!(%error, "systemd cannot be notified"),
    }
}

impl Notifier {
    fn connect(address: &OsStr, watchdog: Option<Duration>) -> std::io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        let address = match address.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(address)?,
        };
        socket.connect_addr(&address)?;
        Ok(Self { socket, watchdog })
    }

    async fn follow(&self, health: &Health, shutdown: impl Future<Output = ()>) {
        let mut shutdown = std::pin::pin!(shutdown);
        // Half of the time that systemd waits, as sd_watchdog_enabled(3) recommends.
        let interval = self
            .watchdog
            .map_or(STATUS_INTERVAL, |limit| STATUS_INTERVAL.min(limit / 2));
        let mut known = status(health);
        self.send(&format!("READY=1\nSTATUS={known}"));
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                () = tokio::time::sleep(interval) => {}
            }
            if self.watchdog.is_some() {
                self.send("WATCHDOG=1");
            }
            let found = status(health);
            if found != known {
                self.send(&format!("STATUS={found}"));
                known = found;
            }
        }
        self.send("STOPPING=1\nSTATUS=finishing pending work");
    }

    fn send(&self, message: &str) {
        if let Err(error) = self.socket.send(message.as_bytes()) {
            tracing::debug!(%error, "systemd not notified");
        }
    }
}

/// One line: `ready`, or each condition that does not hold.
fn status(health: &Health) -> String {
    let problems = health.problems();
    if problems.is_empty() {
        return "ready".to_owned();
    }
    let problems: Vec<String> = problems
        .iter()
        .map(|(name, reason)| format!("{name}: {}", reason.replace('\n', " ")))
        .collect();
    format!("not ready: {}", problems.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    use tokio_util::sync::CancellationToken;

    #[tokio::test]
    async fn systemd_hears_of_start_status_and_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let systemd = tokio::net::UnixDatagram::bind(&path).unwrap();
        let health = Health::default();
        let nats = health.condition("ledger.nats");
        nats.fail("connection\nrefused");
        let shutdown = CancellationToken::new();
        let following = {
            let (health, shutdown) = (health.clone(), shutdown.clone());
            let notifier =
                Notifier::connect(path.as_os_str(), Some(Duration::from_millis(20))).unwrap();
            tokio::spawn(async move { notifier.follow(&health, shutdown.cancelled()).await })
        };
        let receive = async || {
            let mut buffer = [0; 512];
            let length = systemd.recv(&mut buffer).await.unwrap();
            String::from_utf8_lossy(&buffer[..length]).into_owned()
        };
        let until = async |message: &str| {
            loop {
                let received = receive().await;
                if received == message {
                    break;
                }
                assert_eq!(received, "WATCHDOG=1");
            }
        };
        let first = "READY=1\nSTATUS=not ready: ledger.nats: connection refused";
        assert_eq!(receive().await, first);
        nats.ok();
        until("STATUS=ready").await;
        assert_eq!(receive().await, "WATCHDOG=1");
        shutdown.cancel();
        until("STOPPING=1\nSTATUS=finishing pending work").await;
        following.await.unwrap();
    }
}
