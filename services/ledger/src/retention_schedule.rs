//! Runs the configured retention, and publishes the audit entries of all archived and erased ranges.

use std::path::PathBuf;
use std::time::Duration;

use chrono::{DateTime, Days, TimeDelta, Utc};
use mesh_bus::Bus;
use mesh_events::subject;
use mesh_runtime::Condition;
use prost::Message as _;
use tokio::sync::watch::Sender;
use tokio::time::Instant;

use crate::adapters::Store;
use crate::error::Error;
use crate::metrics;
use crate::retention::{Retention, RetentionProgress, RetentionRequest};

/// Interval of publishing audit entries.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Interval of applying the retention.
const CHECK_INTERVAL: Duration = Duration::from_secs(3600);
const RETRY_DELAY: Duration = Duration::from_secs(60);
pub(crate) struct RetentionSchedule {
    pub retention: Retention,
    pub max_age: Duration,
    /// Folder for the archive files, `None` to erase.
    pub folder: Option<PathBuf>,
}

/// Applies the schedule and publishes audit entries. Never returns.
pub(crate) async fn run(
    store: &Store,
    bus: &Bus,
    cluster: &str,
    schedule: Option<&RetentionSchedule>,
    condition: &Condition,
) {
    let (mut published, mut due) = (0, Instant::now());
    let (mut problem, mut reported) = (None, None);
    loop {
        if let Some(schedule) = schedule
            && Instant::now() >= due
        {
            let next = match apply(schedule).await {
                Ok(()) => {
                    problem = None;
                    CHECK_INTERVAL
                }
                // Left to the replica that has the key.
                Err(error @ Error::Unsigned(_)) => {
                    let error = mesh_runtime::error_chain(&error);
                    tracing::debug!(error, "retention left to another replica");
                    problem = None;
                    CHECK_INTERVAL
                }
                Err(error) => {
                    problem = Some(mesh_runtime::error_chain(&error));
                    RETRY_DELAY
                }
            };
            due = Instant::now() + next;
        }
        let forged = match publish_audit(store, bus, cluster, &mut published).await {
            Ok(()) => None,
            Err(AuditError::Forged(text)) => Some(text),
            Err(AuditError::Failed(error)) => {
                tracing::debug!(error, "audit entry of archive not published, retrying");
                None
            }
        };
        let wrong = forged.or_else(|| problem.clone());
        match &wrong {
            None => condition.ok(),
            Some(text) => condition.fail(text),
        }
        if reported != wrong
            && let Some(error) = &wrong
        {
            tracing::error!(error, "retention failed");
        }
        reported = wrong;
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn apply(schedule: &RetentionSchedule) -> Result<(), Error> {
    let Some(before) = before(Utc::now(), schedule.max_age) else {
        return Ok(());
    };
    let request = RetentionRequest {
        before,
        folder: schedule.folder.clone(),
        made_by: String::new(),
    };
    let progress = Sender::new(RetentionProgress::default());
    schedule.retention.run(&request, &progress).await.map(drop)
}

/// Rounded to whole days, so that there is at most one file per day.
fn before(now: DateTime<Utc>, max_age: Duration) -> Option<DateTime<Utc>> {
    let max_age = TimeDelta::from_std(max_age).ok()?;
    let time = now.checked_sub_signed(max_age)?;
    let day = time.date_naive().and_hms_opt(0, 0, 0)?.and_utc();
    (day > DateTime::UNIX_EPOCH + Days::new(1)).then_some(day)
}

/// Why audit entries are missing.
enum AuditError {
    /// The ledger did not sign a range. Publishing it would confirm it.
    Forged(String),
    /// A temporary failure.
    Failed(String),
}

/// Publishes audit entries that the ledger lacks. `published` is the last range whose entry it has.
async fn publish_audit(
    store: &Store,
    bus: &Bus,
    cluster: &str,
    published: &mut i64,
) -> Result<(), AuditError> {
    let failed = |error: Error| AuditError::Failed(mesh_runtime::error_chain(&error));
    let archives = store.checked_archives(*published).await.map_err(failed)?;
    metrics::archived(store.archived_to().await.map_err(failed)?);
    let mut all = true;
    for checked in &archives {
        let archive = checked
            .authentic()
            .map_err(|error| AuditError::Forged(mesh_runtime::error_chain(&error)))?;
        if checked.audited {
            if all {
                *published = archive.number;
            }
            continue;
        }
        all = false;
        let entry = archive.audit_entry(cluster);
        let subject = subject::audit(&entry.cluster, &entry.kind);
        let sent = bus.publish_raw(subject, &entry.id, entry.encode_to_vec());
        sent.await
            .map_err(|error| AuditError::Failed(mesh_runtime::error_chain(&error)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_due_range_changes_once_a_day() {
        let at = |text: &str| text.parse::<DateTime<Utc>>().unwrap();
        let max_age = Duration::from_secs(30 * 86_400);
        for now in ["2026-11-22T00:00:00Z", "2026-11-22T23:59:59Z"] {
            assert_eq!(before(at(now), max_age), Some(at("2026-10-23T00:00:00Z")));
        }
        assert_eq!(before(at("2026-11-22T00:00:00Z"), Duration::MAX), None);
    }
}
