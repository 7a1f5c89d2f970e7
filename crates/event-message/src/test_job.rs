//! The event that a test of a webhook sends.

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{Confidence, Entity, IdSource, Owner, Source};
use mesh_events::proto::mesh::job::v1::{Job, JobEvent};
use mesh_events::{Event, EventId, EventType, SCHEMA_VERSION, timestamp};

/// A completed sample job with id 0, which Slurm never assigns.
pub fn event(cluster: &str, endpoint: &str, user: &str, now: DateTime<Utc>) -> Event {
    let at = Some(timestamp(now));
    let key = format!("job/0/{}", now.timestamp());
    let job = Job {
        display_id: "0".into(),
        run: key.clone(),
        name: format!("slurm-mesh test of webhook {endpoint}"),
        state: "COMPLETED".into(),
        submit_time: at,
        start_time: at,
        end_time: at,
        ..Job::default()
    };
    let n = u64::try_from(now.timestamp_micros()).unwrap_or_default();
    let counted_for = format!("webhook-test/{endpoint}");
    let id = EventId::sampled(cluster, &counted_for, EventType::JobCompleted, n);
    Event {
        id: id.to_string(),
        id_source: IdSource::sampled_for(&counted_for, n),
        cluster: cluster.to_owned(),
        r#type: EventType::JobCompleted.to_string(),
        occurred_at: at,
        observed_at: at,
        source: Source::Derived.into(),
        source_detail: "webhook test".into(),
        confidence: Confidence::Inferred.into(),
        owner: Some(Owner {
            user: user.to_owned(),
            ..Owner::default()
        }),
        entity: Some(Entity {
            kind: "job".into(),
            key,
        }),
        schema_version: SCHEMA_VERSION,
        payload: Some(Payload::Job(JobEvent {
            job: Some(job),
            ..JobEvent::default()
        })),
        ..Event::default()
    }
}
