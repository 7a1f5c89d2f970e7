//! An endpoint is tried: with a sample, or with an event that is given. Nothing is stored.

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{Confidence, Entity, Owner, Source};
use mesh_events::proto::mesh::job::v1::{Job, JobEvent};
use mesh_events::{Event, EventId, EventType, SCHEMA_VERSION, cloudevents, timestamp};
use mesh_runtime::api::Caller;

use super::{ApiError, Tested, Trial};
use crate::config::Endpoint;
use crate::domain::format::{Kept, Step};
use crate::domain::retry::Outcome;
use crate::lane::Shared;
use crate::post::{self, Told};

/// Sends once, now, and says what came of it.
pub(super) async fn run(
    shared: &Shared,
    caller: &Caller,
    endpoint: &Endpoint,
    trial: Trial,
) -> Result<Tested, ApiError> {
    let given = trial
        .event
        .map(|json| cloudevents::from_json(&json))
        .transpose()
        .map_err(|error| ApiError::invalid("event", mesh_runtime::chain(&error)))?;
    let user = caller.users.first().map_or("", String::as_str);
    let (told, event, is_given) = match given {
        Some(event) => {
            let told = Told::Event {
                event: Box::new(event.clone()),
                cost: None,
                replay: None,
            };
            (told, event, true)
        }
        None => {
            let event = sample(&shared.cluster, &endpoint.name, user, Utc::now());
            (Told::test(endpoint, &event), event, false)
        }
    };
    let kind = event
        .kind()
        .map_err(|error| ApiError::invalid("event", error.to_string()))?;
    let mut tested = Tested {
        webhook: endpoint.name.clone(),
        event_id: event.id.clone(),
        matches: endpoint.filter.matches(kind, &event) && endpoint.format.takes(kind, &event),
        delivered: false,
        status: 0,
        latency_ms: 0,
        error: String::new(),
        body: None,
    };
    if is_given || trial.dry_run {
        match endpoint
            .format
            .begin(&endpoint.url, &told.content(), &Kept::new())
        {
            Ok(Step::Send(request, _)) => tested.body = Some(request.body),
            Ok(Step::Done(_)) => {}
            Err(error) => tested.error = error.to_string(),
        }
    }
    if trial.dry_run {
        return Ok(tested);
    }
    let attempted = post::tell(&shared.http, endpoint, &told, &Kept::new(), None).await;
    tested.delivered = attempted.verdict.outcome == Outcome::Delivered;
    tested.status = attempted.status;
    tested.latency_ms = u64::try_from(attempted.elapsed.as_millis()).unwrap_or(u64::MAX);
    tested.error = attempted.verdict.error;
    Ok(tested)
}

/// A completed job that never was: job 0, which Slurm never gives to anyone.
fn sample(cluster: &str, endpoint: &str, user: &str, now: DateTime<Utc>) -> Event {
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
    Event {
        id: EventId::sampled(
            cluster,
            &format!("webhook-test/{endpoint}"),
            EventType::JobCompleted,
            n,
        )
        .to_string(),
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
