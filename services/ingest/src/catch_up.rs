//! What began and ended while nobody looked, from accounting; then `capture.caught_up` says that nothing more is coming.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::capture::v1::CaptureEvent;
use mesh_events::{EventType, timestamp};
use slurm_client::{AccountingRecord, Query, Slurm};
use slurm_types::UnixTime;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::collector::{Collector, Reading};
use crate::domain::fold;
use crate::envelope::Cause;
use crate::sources::SlurmSource;

/// Catches up from the last sweep that was told (`from`); at a first start with the history that is asked for, if any.
///
/// # Errors
/// If told to stop, or if another ingest took over.
pub async fn run(
    slurm: Slurm,
    collector: Collector,
    slurmdbd: Arc<SlurmSource>,
    from: Option<i64>,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let config = Arc::clone(&collector.config);
    let overlap = i64::try_from(config.catch_up_overlap.as_secs()).unwrap_or(i64::MAX);
    let history = config
        .history_since()
        .ok()
        .flatten()
        .map(|time| time.timestamp());
    let Some(start) = from
        .map(|watermark| watermark.saturating_sub(overlap))
        .or(history)
    else {
        return Ok(());
    };
    let mut recovered = 0;
    if config.accounting {
        let Some(rows) = window(&slurm, &slurmdbd, start, &shutdown).await? else {
            return Ok(());
        };
        // What ended before capture began is not told, unless history is asked for.
        let since = match from {
            Some(_) => collector
                .core()
                .await
                .meta
                .capture_since
                .min(history.unwrap_or(i64::MAX))
                .max(start),
            None => start,
        };
        let ended = fold(&collector.cluster, &rows)
            .into_iter()
            .filter(|run| run.end_kind().is_some() && run.end.is_some_and(|end| end >= since));
        let readings: Vec<Reading> = ended.map(Reading::new).collect();
        recovered = collector.count_new(&readings).await;
        collector.absorb(&Cause::Accounting, readings).await?;
        collector.flush().await?;
    }
    tracing::info!(recovered, since = start, "caught up");
    let (message, not_recoverable) = if config.accounting {
        ("caught up with accounting", "")
    } else {
        (
            "caught up without accounting",
            "jobs that began and ended meanwhile and that slurmctld has forgotten",
        )
    };
    let what = CaptureEvent {
        source: "slurmdbd".to_owned(),
        message: message.to_owned(),
        from: DateTime::from_timestamp(from.unwrap_or(start), 0).map(timestamp),
        to: Some(timestamp(Utc::now())),
        recovered,
        not_recoverable: not_recoverable.to_owned(),
    };
    collector.capture(EventType::CaptureCaughtUp, what).await
}

/// Asks accounting until it answers; `None` if told to stop.
async fn window(
    slurm: &Slurm,
    slurmdbd: &SlurmSource,
    start: i64,
    shutdown: &CancellationToken,
) -> Result<Option<Vec<AccountingRecord>>, Error> {
    loop {
        match slurm
            .accounting(&Query::Window {
                start: UnixTime::from_secs(start),
                end: None,
            })
            .await
        {
            Ok(rows) => {
                slurmdbd.up().await?;
                return Ok(Some(rows));
            }
            Err(error) => {
                let pause = slurmdbd.down(&error).await?;
                tokio::select! {
                    () = shutdown.cancelled() => return Ok(None),
                    () = tokio::time::sleep(pause) => {}
                }
            }
        }
    }
}
