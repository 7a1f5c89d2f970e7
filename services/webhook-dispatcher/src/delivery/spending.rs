//! What the owner of an ended job has spent this month, for messages to them alone.
//!
//! cost-engine writes it to a bucket, by Unix user. Only endpoints that write to owners ask for it, and only once they have the cost of
//! the run. The first attempt waits a moment for a sum that includes the run. The message is sent without one if none comes, and then others
//! do not wait for some minutes, because cost-engine is probably down.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use event_message::format::Format;
use mesh_bus::Bus;
use mesh_events::catalogue::BUCKET_SPENDING;
use mesh_events::proto::mesh::cost::v1::Spending;
use mesh_events::{Event, subject};
use prost::Message as _;

use crate::clock;
use crate::delivery::post::DeliveryContent;

/// Reads of the bucket until the sum includes the run.
const MAX_READS: u32 = 10;
/// Pause between two reads.
const READ_INTERVAL: Duration = Duration::from_millis(200);
/// How long no message waits after one has waited in vain.
const PAUSE_AFTER_MISS: Duration = Duration::from_secs(300);

/// When a message last waited in vain. Shared by all endpoints.
#[derive(Debug, Default)]
pub struct SpendingWait {
    missed: Mutex<Option<Instant>>,
}

impl SpendingWait {
    /// Number of reads of an attempt.
    fn reads(&self, attempt: u32, now: Instant) -> u32 {
        let is_missed = |at: Instant| now.saturating_duration_since(at) < PAUSE_AFTER_MISS;
        match attempt == 1 && !self.missed().is_some_and(is_missed) {
            true => MAX_READS,
            false => 1,
        }
    }

    fn missed(&self) -> MutexGuard<'_, Option<Instant>> {
        self.missed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds what the owner has spent to the message about the end of a run.
pub async fn attach(
    sent: &mut DeliveryContent,
    bus: &Bus,
    wait: &SpendingWait,
    format: &Format,
    attempt: u32,
) {
    let DeliveryContent::Event {
        event,
        cost: Some(_),
        spending,
        ..
    } = sent
    else {
        return;
    };
    if !format.writes_to_owners() || !event.kind().is_ok_and(|kind| kind.is_end()) {
        return;
    }
    let Some(person) = person_of(event) else {
        return;
    };
    let reads = wait.reads(attempt, Instant::now());
    for read in 0..reads {
        if read > 0 {
            tokio::time::sleep(READ_INTERVAL).await;
        }
        match of_owner(bus, event).await {
            Ok(Some(found)) if found.person != person => return,
            Ok(Some(found)) if includes(&found, event, clock::now()) => {
                *spending = Some(Box::new(found));
                *wait.missed() = None;
                return;
            }
            Ok(_) => {}
            Err(error) => {
                let error = mesh_runtime::error_chain(&error);
                tracing::debug!(error, "sum of the month not read, sent without it");
                return;
            }
        }
    }
    if reads > 1 {
        *wait.missed() = Some(Instant::now());
    }
}

/// The person whom the message is for, as the sum names them.
fn person_of(event: &Event) -> Option<String> {
    let owner = event.owner.as_ref()?;
    let identity = owner.identity.as_ref()?;
    Some(format!("{}#{}", identity.issuer, identity.subject))
}

async fn of_owner(bus: &Bus, event: &Event) -> Result<Option<Spending>, mesh_bus::Error> {
    let user = event.owner.as_ref().map_or("", |owner| owner.user.as_str());
    let (cluster, user) = (subject::token(&event.cluster), subject::token(user));
    let bucket = bus.bucket(BUCKET_SPENDING).await?;
    let entry = bucket.get(&format!("{cluster}.user.{user}")).await?;
    Ok(entry.and_then(|entry| Spending::decode(entry.value).ok()))
}

/// True if the sum is of this month and includes the run.
fn includes(spending: &Spending, event: &Event, now: DateTime<Utc>) -> bool {
    let run = event.entity.as_ref().map(|entity| &entity.key);
    spending.month == now.format("%Y-%m").to_string()
        && run.is_some_and(|run| spending.newest_runs.contains(run))
}

#[cfg(test)]
mod tests {
    use event_filter::sample;
    use mesh_events::EventType;
    use mesh_events::proto::mesh::event::v1::Identity;

    use super::*;

    #[test]
    fn a_sum_of_another_month_or_without_the_run_is_not_shown() {
        let mut event = sample::event(EventType::JobCompleted);
        let run = event.entity.as_ref().unwrap().key.clone();
        let now = clock::now();
        let good = Spending {
            month: now.format("%Y-%m").to_string(),
            newest_runs: vec!["job/another".into(), run],
            // Also if a run with a later end was committed before this one.
            ..Spending::default()
        };
        assert!(includes(&good, &event, now));
        let others = [
            Spending {
                month: "2020-01".into(),
                ..good.clone()
            },
            Spending {
                newest_runs: vec!["job/another".into()],
                ..good.clone()
            },
        ];
        for other in others {
            assert!(!includes(&other, &event, now), "{other:?}");
        }
        event.entity = None;
        assert!(!includes(&good, &event, now));
    }

    #[test]
    fn a_person_is_known_from_the_identity_alone() {
        let mut event = sample::event(EventType::JobCompleted);
        event.owner.as_mut().unwrap().identity = None;
        assert_eq!(person_of(&event), None);
        event.owner.as_mut().unwrap().identity = Some(Identity {
            issuer: "https://id.example.org".into(),
            subject: "a".into(),
            ..Identity::default()
        });
        assert_eq!(
            person_of(&event).as_deref(),
            Some("https://id.example.org#a")
        );
    }

    #[test]
    fn only_first_attempts_wait_and_none_for_some_minutes_after_a_miss() {
        let wait = SpendingWait::default();
        let now = Instant::now();
        assert_eq!(wait.reads(1, now), MAX_READS);
        assert_eq!(wait.reads(2, now), 1);
        *wait.missed() = Some(now);
        assert_eq!(wait.reads(1, now + PAUSE_AFTER_MISS / 2), 1);
        assert_eq!(wait.reads(1, now + PAUSE_AFTER_MISS), MAX_READS);
    }
}
