//! Signals for programs that start their own cluster.

use tokio::signal::unix::{SignalKind, signal};

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
