//! Ports and signals for programs that start their own cluster.

use std::net::TcpListener;
use std::sync::{Mutex, PoisonError};

use tokio::signal::unix::{SignalKind, signal};

use crate::Error;

/// Ranges of a hundred ports to try, by their number.
const BASE_PORTS: std::ops::Range<u16> = 250..290;

/// Listeners that mark a range of ports as taken.
static RESERVED_PORTS: Mutex<Vec<TcpListener>> = Mutex::new(Vec::new());

/// The first range of a hundred free ports.
///
/// # Errors
/// If there is none.
pub fn free_ports() -> Result<u16, Error> {
    let is_free = |base: &u16| {
        // slurmctld, slurmdbd, MariaDB, the first node.
        [0, 1, 3, 11]
            .iter()
            .all(|offset| TcpListener::bind(("127.0.0.1", base + offset)).is_ok())
    };
    // Other programs may search at the same time. So the last port of the range, which no cluster uses, stays bound while this program
    // runs.
    let is_taken = |base: &u16| match TcpListener::bind(("127.0.0.1", base + 99)) {
        Ok(port) => {
            RESERVED_PORTS
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(port);
            true
        }
        Err(_) => false,
    };
    BASE_PORTS
        .map(|hundred| hundred * 100)
        .find(|base| is_free(base) && is_taken(base))
        .ok_or_else(|| Error::Machine("no hundred free ports between 25000 and 29000".into()))
}

/// Waits for Ctrl-C or SIGTERM.
pub async fn interrupted() {
    match (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    ) {
        (Ok(mut interrupt), Ok(mut terminate)) => {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        }
        _ => std::future::pending().await,
    }
}
