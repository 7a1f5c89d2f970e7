//! Metrics of the monitor, as a file for node_exporter's textfile collector.

use std::fmt::Write as _;
use std::path::Path;

use chrono::Utc;
use ledger::domain::checkpoint::Checkpoint;

use super::published::Progress;
use crate::error::Error;
use crate::known_ledgers::KnownLedger;

/// Writes the file.
pub(super) fn write(
    path: Option<&Path>,
    known: Option<&KnownLedger>,
    published: Option<&Progress>,
    contradicted: bool,
) -> Result<(), Error> {
    let Some(path) = path else { return Ok(()) };
    let checkpoint = known.and_then(|known| Checkpoint::unverified(&known.checkpoint).ok());
    let (origin, size) = checkpoint.map_or_else(Default::default, |one| (one.origin, one.size));
    let origin = origin.replace('\\', "\\\\").replace('"', "\\\"");
    let mut gauges = vec![
        (
            "smesh_ledger_monitor_contradicted",
            "1 if the ledger contradicts an earlier or published checkpoint: act.",
            i64::from(contradicted),
        ),
        (
            "smesh_ledger_monitor_checkpoint_size",
            "Number of entries of the newest checkpoint seen.",
            size.cast_signed(),
        ),
        (
            "smesh_ledger_monitor_compared_seconds",
            "Time of the last comparison, in seconds since 1970.",
            Utc::now().timestamp(),
        ),
    ];
    if let Some(published) = published {
        gauges.push((
            "smesh_ledger_monitor_published_compared_seconds",
            "Time of the last comparison with published checkpoints, in seconds since 1970; 0 if there was none.",
            published.compared_at,
        ));
        gauges.extend(published.size.map(|size| {
            (
                "smesh_ledger_monitor_published_size",
                "Number of entries of the largest published checkpoint seen since the start.",
                size.cast_signed(),
            )
        }));
    }
    let mut text = String::new();
    for (name, help, value) in gauges {
        let labels = format!("{{origin=\"{origin}\"}}");
        let written = writeln!(
            text,
            "# HELP {name} {help}\n# TYPE {name} gauge\n{name}{labels} {value}"
        );
        written.map_err(|error| Error::Failed(error.to_string()))?;
    }
    let new = path.with_extension("new");
    std::fs::write(&new, text)
        .and_then(|()| std::fs::rename(&new, path))
        .map_err(|source| Error::io("write", path, source))
}
