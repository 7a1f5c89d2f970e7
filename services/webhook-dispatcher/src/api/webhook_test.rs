//! Tests and previews of an endpoint or a format, with a sample or a given event. Nothing is stored.

use std::sync::Arc;

use crate::delivery::post::{self, DeliveryContent};
use event_filter::{DecodedEvent, sample};
use event_message::attempt_outcome::Outcome;
use mesh_events::{Event, EventType, cloudevents};
use mesh_runtime::api::Caller;
use serde_json::Value;

use super::{ApiError, Preview, PreviewRequest, TestRequest, TestResult};
use crate::clock;
use crate::config::Endpoint;
use crate::delivery::worker_context::WorkerContext;
use event_message::format::{Format, ProviderState};
use event_message::test_job;

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
            let event = test_job::event(&shared.cluster, &endpoint.name, user, clock::now());
            let sent = DeliveryContent::test(endpoint, &event);
            (sent, Arc::new(event.into()), false)
        }
    };
    let kind = event.kind().map_err(ApiError::of("event"))?;
    let mut tested = TestResult {
        webhook: endpoint.name.clone(),
        event_id: event.id.clone(),
        matches: endpoint.filter.matches(kind, &event) && endpoint.format.takes(kind, &event),
        ..TestResult::default()
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
