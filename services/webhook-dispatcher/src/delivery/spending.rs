//! What the owner of an ended job has spent this month, for messages to them alone.
//!
//! cost-engine keeps it in a bucket, by Unix user. Only endpoints that write to owners ask for it, and only once they have the cost of
//! the run. A message waits a moment for a sum that includes the run, and is sent without one if none comes.

use std::time::Duration;

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
const READS: u32 = 10;
/// Pause between two reads.
const PAUSE: Duration = Duration::from_millis(200);

/// Adds what the owner has spent to the message about the end of a run.
pub async fn attach(sent: &mut DeliveryContent, bus: &Bus, format: &Format) {
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
    for read in 0..READS {
        if read > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        match of_owner(bus, event).await {
            Ok(Some(found)) if belongs(&found, event, clock::now()) => {
                *spending = Some(Box::new(found));
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
}

async fn of_owner(bus: &Bus, event: &Event) -> Result<Option<Spending>, mesh_bus::Error> {
    let user = event.owner.as_ref().map_or("", |owner| owner.user.as_str());
    let (cluster, user) = (subject::token(&event.cluster), subject::token(user));
    let bucket = bus.bucket(BUCKET_SPENDING).await?;
    let entry = bucket.get(&format!("{cluster}.user.{user}")).await?;
    Ok(entry.and_then(|entry| Spending::decode(entry.value).ok()))
}

/// True if the sum is of this month, of the person whom the message is for, and includes the run.
fn belongs(spending: &Spending, event: &Event, now: DateTime<Utc>) -> bool {
    let identity = event
        .owner
        .as_ref()
        .and_then(|owner| owner.identity.as_ref());
    let Some(identity) = identity else {
        return false;
    };
    let end = event.job().and_then(|job| job.end_time.as_ref());
    let end = end.or(event.occurred_at.as_ref());
    spending.person == format!("{}#{}", identity.issuer, identity.subject)
        && spending.month == now.format("%Y-%m").to_string()
        && end.is_some_and(|end| spending.newest_end >= end.seconds)
}

#[cfg(test)]
mod tests {
    use event_filter::sample;
    use mesh_events::EventType;
    use mesh_events::proto::mesh::event::v1::Identity;

    use super::*;

    #[test]
    fn a_sum_of_somebody_else_of_another_month_or_without_the_run_is_not_shown() {
        let mut event = sample::event(EventType::JobCompleted);
        event.owner.as_mut().unwrap().identity = Some(Identity {
            issuer: "https://id.example.org".into(),
            subject: "a".into(),
            ..Identity::default()
        });
        let end = event.job().unwrap().end_time.as_ref().unwrap().seconds;
        let now = DateTime::from_timestamp(end, 0).unwrap();
        let good = Spending {
            month: now.format("%Y-%m").to_string(),
            person: "https://id.example.org#a".into(),
            newest_end: end,
            ..Spending::default()
        };
        assert!(belongs(&good, &event, now));
        let others = [
            Spending {
                person: "https://id.example.org#b".into(),
                ..good.clone()
            },
            Spending {
                month: "2020-01".into(),
                ..good.clone()
            },
            Spending {
                newest_end: end - 1,
                ..good.clone()
            },
        ];
        for other in others {
            assert!(!belongs(&other, &event, now), "{other:?}");
        }
        event.owner.as_mut().unwrap().identity = None;
        assert!(!belongs(&good, &event, now));
    }
}
