//! Retention as the configuration says, and the audit's entries about every range, whoever had it archived or erased.

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
use crate::retention::{Progress, Retention, Wish};

/// How often it is looked whether there is something to tell.
const LOOK: Duration = Duration::from_secs(5);
/// How often it is looked whether something is old enough.
const DUE: Duration = Duration::from_secs(3600);
/// After a failure, sooner.
const AGAIN: Duration = Duration::from_secs(60);

/// What the configuration says.
pub(crate) struct Policy {
    pub retention: Retention,
    pub keep: Duration,
    /// Where archives go; `None` to erase.
    pub folder: Option<PathBuf>,
}

/// Keeps to a policy, and tells the audit. Never ends.
pub(crate) async fn keep(
    store: &Store,
    bus: &Bus,
    cluster: &str,
    policy: Option<&Policy>,
    condition: &Condition,
) {
    let (mut told, mut due) = (0, Instant::now());
    let (mut problem, mut said) = (None, None);
    loop {
        if let Some(policy) = policy
            && Instant::now() >= due
        {
            let next = match apply(policy).await {
                Ok(()) => {
                    problem = None;
                    DUE
                }
                // The replica that has the key does it.
                Err(error @ Error::Unsigned(_)) => {
                    let error = mesh_runtime::chain(&error);
                    tracing::debug!(error, "old payloads are left to another replica");
                    problem = None;
                    DUE
                }
                Err(error) => {
                    problem = Some(mesh_runtime::chain(&error));
                    AGAIN
                }
            };
            due = Instant::now() + next;
        }
        let forged = match tell(store, bus, cluster, &mut told).await {
            Ok(()) => None,
            Err(Untold::Forged(text)) => Some(text),
            Err(Untold::Failed(error)) => {
                tracing::debug!(error, "tell the audit of archives, trying again");
                None
            }
        };
        let wrong = forged.or_else(|| problem.clone());
        match &wrong {
            None => condition.ok(),
            Some(text) => condition.fail(text),
        }
        if said != wrong
            && let Some(error) = &wrong
        {
            tracing::error!(error, "archives of the ledger need a look");
        }
        said = wrong;
        tokio::time::sleep(LOOK).await;
    }
}

async fn apply(policy: &Policy) -> Result<(), Error> {
    let Some(before) = before(Utc::now(), policy.keep) else {
        return Ok(());
    };
    let wish = Wish {
        before,
        folder: policy.folder.clone(),
        made_by: String::new(),
    };
    let progress = Sender::new(Progress::default());
    policy.retention.run(&wish, &progress).await.map(drop)
}

/// Whole days, so that there is one file a day at most.
fn before(now: DateTime<Utc>, keep: Duration) -> Option<DateTime<Utc>> {
    let keep = TimeDelta::from_std(keep).ok()?;
    let time = now.checked_sub_signed(keep)?;
    let day = time.date_naive().and_hms_opt(0, 0, 0)?.and_utc();
    (day > DateTime::UNIX_EPOCH + Days::new(1)).then_some(day)
}

/// Why the audit does not have everything.
enum Untold {
    /// A range that the ledger did not archive: to tell it would make it true.
    Forged(String),
    /// Something is away.
    Failed(String),
}

/// Publishes the entries that the ledger does not have yet. `told`: the range up to which it has them.
async fn tell(store: &Store, bus: &Bus, cluster: &str, told: &mut i64) -> Result<(), Untold> {
    let failed = |error: Error| Untold::Failed(mesh_runtime::chain(&error));
    let archives = store.checked_archives(*told).await.map_err(failed)?;
    metrics::archived(store.archived_to().await.map_err(failed)?);
    let mut all = true;
    for checked in &archives {
        let archive = checked
            .authentic()
            .map_err(|error| Untold::Forged(mesh_runtime::chain(&error)))?;
        if checked.audited {
            if all {
                *told = archive.number;
            }
            continue;
        }
        all = false;
        let entry = archive.audit_entry(cluster);
        let subject = subject::audit(&entry.cluster, &entry.kind);
        let sent = bus.publish_raw(subject, &entry.id, entry.encode_to_vec());
        sent.await
            .map_err(|error| Untold::Failed(mesh_runtime::chain(&error)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_changes_once_a_day() {
        let at = |text: &str| text.parse::<DateTime<Utc>>().unwrap();
        let keep = Duration::from_secs(30 * 86_400);
        for now in ["2026-11-22T00:00:00Z", "2026-11-22T23:59:59Z"] {
            assert_eq!(before(at(now), keep), Some(at("2026-10-23T00:00:00Z")));
        }
        assert_eq!(before(at("2026-11-22T00:00:00Z"), Duration::MAX), None);
    }
}
