//! Reads `mesh.toml` again when it changes.

use std::collections::BTreeSet;

use crate::telemetry::LogFilter;
use crate::{Context, ReloadTimer, error_chain, return_freed_memory};

/// Key of the log filter, which takes effect at once.
const LOG_FILTER: &str = "mesh.telemetry.log_filter";

/// Reads `mesh.toml` again when it changes, and reports what changed. The log filter takes effect, and services take their
/// [live keys](crate::Service::LIVE_KEYS) themselves; other keys take effect at a restart. A file that cannot be used changes nothing.
pub(crate) async fn follow_configuration(context: Context, log_filter: LogFilter) {
    let mut files = context.watched_config();
    let note = context.health.note("configuration");
    let mut known = context.config().clone();
    // The services have what they need.
    known.release();
    return_freed_memory();
    let mut pending = BTreeSet::new();
    let mut timer = ReloadTimer::new(context.shutdown.clone());
    while timer.changed(&mut files).await {
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
