//! Tests and previews of an endpoint or a format, with a sample or a given event. Nothing is stored.

use std::sync::Arc;

use crate::delivery::post::{self, DeliveryContent};
use chrono::{DateTime, Utc};
use event_filter::{DecodedEvent, sample};
use event_message::attempt_outcome::Outcome;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{Confidence, Entity, IdSource, Owner, Source};
use mesh_events::proto::mesh::job::v1::{Job, JobEvent};
use mesh_events::{Event, EventId, EventType, SCHEMA_VERSION, cloudevents, timestamp};
use mesh_runtime::api::Caller;
use serde_json::Value;

use super::{ApiError, Preview, PreviewRequest, TestRequest, TestResult};
use crate::clock;
use crate::config::Endpoint;
use crate::delivery::worker_context::WorkerContext;
use event_message::format::{Format, ProviderState};

/// Sends one test delivery immediately and returns the result.
pub(super) async fn run(
    shared: &WorkerContext,
    caller: &Caller,
    endpoint: &Endpoint,
    test_request: TestRequest,
) -> Result<TestResult, ApiError> {
    let given = test_request.event.as_ref().map(read).transpose()?;
    let user = caller.users.first().map_or("", String::as_str);
    let (sent, event, is_given) = match given {
        Some(event) => {
            let event = Arc::new(DecodedEvent::from(event));
            let sent = DeliveryContent::event(Arc::clone(&event), None);
            (sent, event, true)
        }
        None => {
            let event = test_job(&shared.cluster, &endpoint.name, user, clock::now());
            let sent = DeliveryContent::test(endpoint, &event);
            (sent, Arc::new(event.into()), false)
        }
    };
    let kind = event.kind().map_err(ApiError::of("event"))?;
    let mut tested = TestResult {
        webhook: endpoint.name.clone(),
        event_id: event.id.clone(),
        matches: endpoint.filter.matches(kind, &event) && endpoint.format.takes(kind, &event),
        delivered: false,
        status: 0,
        latency_ms: 0,
        error: String::new(),
        body: None,
    };
    if is_given || test_request.dry_run {
        match endpoint.format.preview(&endpoint.url, &sent.content()) {
            Ok(requests) => tested.body = requests.into_iter().next().map(|request| request.body),
            Err(error) => tested.error = error.to_string(),
        }
    }
    if test_request.dry_run {
        return Ok(tested);
    }
    let attempted =
        post::send_content(&shared.http, endpoint, &sent, &ProviderState::new(), None).await;
    tested.delivered = attempted.verdict.outcome == Outcome::Delivered;
    tested.status = attempted.status;
    tested.latency_ms = u64::try_from(attempted.elapsed.as_millis()).unwrap_or(u64::MAX);
    tested.error = attempted.verdict.error;
    Ok(tested)
}

/// Renders a delivery for an endpoint, or for a format that no endpoint uses yet.
pub(super) fn preview(
    shared: &WorkerContext,
    caller: &Caller,
    endpoint: Option<&Endpoint>,
    draft: PreviewRequest,
) -> Result<Preview, ApiError> {
    let (event, cost) = match (&draft.event, draft.kind.as_deref()) {
        (Some(_), Some(_)) => {
            return Err(ApiError::invalid(
                "type",
                "applies to samples only, not together with an event",
            ));
        }
        (Some(json), None) => (read(json)?, None),
        (None, kind) => {
            let kind = kind.unwrap_or("job.failed").parse::<EventType>();
            let kind = kind.map_err(ApiError::of("type"))?;
            let mut event = sample::example(kind);
            event.cluster.clone_from(&shared.cluster);
            if let (Some(owner), Some(user)) = (&mut event.owner, caller.users.first()) {
                owner.user.clone_from(user);
            }
            (event, Some(Box::new(sample::cost())))
        }
    };
    let event = Arc::new(DecodedEvent::from(event));
    let kind = event.kind().map_err(ApiError::of("event"))?;
    let given;
    let (format, address, passes) = match endpoint {
        Some(endpoint) => (
            &endpoint.format,
            endpoint.url.clone(),
            endpoint.filter.matches(kind, &event),
        ),
        None => {
            let format = draft.format.unwrap_or_default();
            given = serde_json::from_value::<Format>(format).map_err(ApiError::of("format"))?;
            let address = given.address().unwrap_or("https://example.org/");
            let address = address
                .parse()
                .map_err(|_| ApiError::invalid("format", "has no address"))?;
            (&given, address, true)
        }
    };
    let sent = DeliveryContent::event(Arc::clone(&event), cost);
    let requests = format
        .preview(&address, &sent.content())
        .map_err(ApiError::of("format"))?;
    Ok(Preview {
        matches: passes && format.takes(kind, &event),
        event_id: event.id.clone(),
        requests,
    })
}

fn read(json: &Value) -> Result<Event, ApiError> {
    cloudevents::from_json(json)
        .map_err(|error| ApiError::invalid("event", mesh_runtime::error_chain(&error)))
}

/// A completed sample job with id 0, which Slurm never assigns.
fn test_job(cluster: &str, endpoint: &str, user: &str, now: DateTime<Utc>) -> Event {
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
