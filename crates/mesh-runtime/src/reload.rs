//! When files are read again: every two seconds if they have changed, at SIGHUP at once.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use secret_file::FileStamp;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::telemetry::LogFilter;
use crate::{Context, error_chain, return_freed_memory};

/// Longest delay until a changed file takes effect.
const RELOAD_INTERVAL: Duration = Duration::from_secs(2);

/// Waits until files are due to be compared.
pub struct ReloadTimer {
    /// `None` if the process may not handle signals.
    hangup: Option<Signal>,
    interval: Duration,
    shutdown: CancellationToken,
}

impl ReloadTimer {
    /// A timer that ends at shutdown.
    pub fn new(shutdown: CancellationToken) -> Self {
        Self::every(RELOAD_INTERVAL, shutdown)
    }

    /// A timer with its own interval.
    pub fn every(interval: Duration, shutdown: CancellationToken) -> Self {
        Self {
            hangup: signal(SignalKind::hangup()).ok(),
            interval,
            shutdown,
        }
    }

    /// Waits for the next comparison. Returns false at shutdown.
    pub async fn due(&mut self) -> bool {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => drop(hangup.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.shutdown.cancelled() => return false,
            () = hangup => {}
            () = tokio::time::sleep(self.interval) => {}
        }
        true
    }
}

/// Key of the log filter, which takes effect at once.
const LOG_FILTER: &str = "mesh.telemetry.log_filter";

/// Reads `mesh.toml` again when it changes, and reports what changed. The log filter takes effect, and services take their
/// [live keys](crate::Service::LIVE_KEYS) themselves; other keys take effect at a restart. A file that cannot be used changes nothing.
pub(crate) async fn follow_configuration(context: Context, log_filter: LogFilter) {
    let Some(path) = context.config().path().map(Path::to_owned) else {
        return;
    };
    let note = context.health.note("configuration");
    let mut known = context.config().clone();
    // The services have what they need.
    known.release();
    return_freed_memory();
    let mut seen = context.config_stamp();
    let mut pending = BTreeSet::new();
    let mut timer = ReloadTimer::new(context.shutdown.clone());
    while timer.due().await {
        let found = FileStamp::of(&path);
        if found == seen {
            continue;
        }
        seen = found;
        let read = match context.read_again() {
            Ok(read) => read,
            Err(error) => {
                let error = error_chain(&error);
                tracing::warn!(
                    error,
                    "changed configuration not usable, the former one stays"
                );
                note.say(format!("{error}; the former configuration stays in use"));
                continue;
            }
        };
        let changed = known.changed_keys(read.config());
        let mut problem = None;
        if changed.iter().any(|key| key == LOG_FILTER)
            && let Err(fault) = log_filter.set(&read.mesh.telemetry.log_filter)
        {
            problem = Some(format!(
                "{LOG_FILTER}: {fault}; the former one stays in use"
            ));
        }
        known = read.config().clone();
        known.release();
        let is_live = |key: &str| key == LOG_FILTER || known.is_live(key);
        pending.extend(changed.iter().filter(|key| !is_live(key)).cloned());
        let at_restart: Vec<&str> = pending.iter().map(String::as_str).collect();
        let at_restart = at_restart.join(", ");
        tracing::info!(
            changed = changed.join(", "),
            at_restart,
            "configuration read again"
        );
        if !at_restart.is_empty() {
            problem.get_or_insert(format!(
                "changed keys take effect at a restart: {at_restart}"
            ));
        }
        match problem {
            Some(problem) => note.say(problem),
            None => note.clear(),
        }
        drop(read);
        return_freed_memory();
    }
}
