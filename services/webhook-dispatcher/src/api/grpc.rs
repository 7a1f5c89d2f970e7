//! gRPC: `mesh.webhook.v1.WebhooksService`.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use event_message::format::Previewed;
use mesh_api::webhook::webhooks_service_server::{
    SERVICE_NAME, WebhooksService, WebhooksServiceServer,
};
use mesh_events::proto::mesh::webhook::v1::{
    CreateWebhookRequest, CreateWebhookResponse, DeleteWebhookRequest, DeleteWebhookResponse,
    DeliveryCounts, GetDeliveryRequest, GetDeliveryResponse, GetWebhookRequest, GetWebhookResponse,
    ListDeliveriesRequest, ListDeliveriesResponse, ListRedeliveriesRequest,
    ListRedeliveriesResponse, ListWebhooksRequest, ListWebhooksResponse, PauseWebhookRequest,
    PauseWebhookResponse, PreviewWebhookRequest, PreviewWebhookResponse, RedeliverRequest,
    RedeliverResponse, Redelivery, ResumeWebhookRequest, ResumeWebhookResponse,
    RotateSecretRequest, RotateSecretResponse, TestWebhookRequest, TestWebhookResponse,
    UpdateWebhookRequest, UpdateWebhookResponse, Webhook as WebhookMessage, WebhookAttempt,
    WebhookCircuit, WebhookDelivery, WebhookHold, WebhookMissed, WebhookRequest,
};
use mesh_events::{from_timestamp, timestamp};
use mesh_runtime::api::grpc::{audited_response, caller, failure};
use pbjson_types::Struct;
use serde_json::Value;
use tonic::{Request, Response, Status};

use super::{ApiError, HasOwners, Page, PreviewRequest, Rotation, TestRequest, Webhook, Webhooks};
use crate::attempt::cause::Cause;
use crate::store::redeliveries::{self, RedeliveryJob};
use crate::store::{Attempt, Delivery};

pub(super) fn router(api: Arc<Webhooks>) -> Router {
    let service = WebhooksServiceServer::new(Adapter(api));
    Router::new().route_service(&format!("/{SERVICE_NAME}/{{*method}}"), service)
}

struct Adapter(Arc<Webhooks>);

/// Implements the service: each method asks the API for the caller, and turns the answer into a message.
macro_rules! service {
    (($api:ident, $caller:ident) $(
        $method:ident($Request:ident $fields:tt): $call:expr => |$answer:ident| $Response:ident $message:tt
    )*) => {
        #[tonic::async_trait]
        impl WebhooksService for Adapter {$(
            async fn $method(
                &self,
                request: Request<$Request>,
            ) -> Result<Response<$Response>, Status> {
                let ($api, $caller) = (&self.0, &caller(&request)?);
                let $Request $fields = request.into_inner();
                let $answer = $call.await.map_err(status)?;
                let read = $answer.read_by($caller);
                Ok(audited_response($Response $message, read))
            }
        )*}
    };
}

service! {
    (api, caller)

    list_webhooks(ListWebhooksRequest {}): api.list(caller) => |list| ListWebhooksResponse {
        webhooks: all(list.webhooks, message)?,
    }

    get_webhook(GetWebhookRequest { name }): api.get(caller, &name) => |it| GetWebhookResponse {
        webhook: Some(message(it)?),
    }

    create_webhook(CreateWebhookRequest { spec }): api.create(caller, json(spec.unwrap_or_default())?) => |made| CreateWebhookResponse {
        webhook: Some(message(made.webhook)?),
        secret: made.secret.unwrap_or_default(),
    }

    update_webhook(UpdateWebhookRequest { name, patch }): api.edit(caller, &name, json(patch.unwrap_or_default())?) => |it| UpdateWebhookResponse {
        webhook: Some(message(it)?),
    }

    delete_webhook(DeleteWebhookRequest { name }): api.remove(caller, &name) => |nothing| DeleteWebhookResponse {}

    pause_webhook(PauseWebhookRequest { name, reason }): api.pause(caller, &name, &reason) => |it| PauseWebhookResponse {
        webhook: Some(message(it)?),
    }

    resume_webhook(ResumeWebhookRequest { name }): api.resume(caller, &name) => |it| ResumeWebhookResponse {
        webhook: Some(message(it)?),
    }

    test_webhook(TestWebhookRequest { name, event, dry_run }): {
        let event = event.map(json).transpose()?;
        api.test(caller, &name, TestRequest { event, dry_run })
    } => |tested| TestWebhookResponse {
        event_id: tested.event_id,
        matches: tested.matches,
        delivered: tested.delivered,
        status: tested.status.into(),
        latency: Some(Duration::from_millis(tested.latency_ms).into()),
        error: tested.error,
        body: tested.body.unwrap_or_default(),
    }

    preview_webhook(PreviewWebhookRequest { webhook, format, event, r#type }): api.preview(caller, PreviewRequest {
        webhook: given(webhook),
        format: format.map(json).transpose()?,
        event: event.map(json).transpose()?,
        kind: given(r#type),
    }) => |shown| PreviewWebhookResponse {
        event_id: shown.event_id,
        matches: shown.matches,
        requests: shown.requests.into_iter().map(request).collect(),
    }

    rotate_secret(RotateSecretRequest { name, secret, overlap }): {
        let overlap = overlap.map(Duration::try_from).transpose();
        let overlap = overlap.map_err(|_| Status::invalid_argument("overlap: at most 7d, and not negative"))?;
        api.rotate(caller, &name, Rotation { secret: given(secret), overlap })
    } => |rotated| RotateSecretResponse {
        webhook: Some(message(rotated.webhook)?),
        secret: rotated.secret.unwrap_or_default(),
    }

    list_deliveries(ListDeliveriesRequest { name, limit, cursor, state, r#type, cause, since, until }): api.deliveries(caller, &name, Page {
        // The name includes the owner.
        owner: None,
        limit: (limit > 0).then_some(limit),
        cursor: given(cursor),
        state: given(state),
        kind: given(r#type),
        cause: given(cause),
        since: since.as_ref().and_then(from_timestamp),
        until: until.as_ref().and_then(from_timestamp),
    }) => |listed| ListDeliveriesResponse {
        deliveries: listed.deliveries.into_iter().map(delivery).collect(),
        next_cursor: listed.next_cursor.unwrap_or_default(),
    }

    get_delivery(GetDeliveryRequest { name, event_id }): api.delivery(caller, &name, &event_id) => |found| GetDeliveryResponse {
        event: found.event.map(object).transpose()?,
        delivery: Some(delivery(found.delivery)),
        attempts: found.tried.into_iter().map(attempt).collect(),
    }

    redeliver(RedeliverRequest { name, ids, all, r#type, cause, since, until, rate }): api.redeliver(caller, &name, redeliveries::RedeliverRequest {
        ids,
        all,
        kind: given(r#type),
        cause: given(cause),
        since: since.as_ref().and_then(from_timestamp),
        until: until.as_ref().and_then(from_timestamp),
        rate: (rate > 0).then_some(rate),
    }) => |job| RedeliverResponse {
        redelivery: Some(redelivery(job)?),
    }

    list_redeliveries(ListRedeliveriesRequest { name }): api.redeliveries(caller, &name) => |list| ListRedeliveriesResponse {
        redeliveries: all(list.redeliveries, redelivery)?,
    }
}

/// The messages of a list.
fn all<T, M>(list: Vec<T>, message: fn(T) -> Result<M, Status>) -> Result<Vec<M>, Status> {
    list.into_iter().map(message).collect()
}

fn request(request: Previewed) -> WebhookRequest {
    WebhookRequest {
        method: request.method.to_owned(),
        url: request.url,
        content_type: request.content_type,
        body: request.body,
    }
}

fn message(webhook: Webhook) -> Result<WebhookMessage, Status> {
    let counts = webhook.counts;
    Ok(WebhookMessage {
        name: webhook.name,
        full_name: webhook.full_name,
        owner: webhook.owner,
        source: webhook.source.to_owned(),
        state: webhook.state.to_owned(),
        reason: webhook.reason,
        since: Some(timestamp(webhook.since)),
        created_at: Some(timestamp(webhook.created_at)),
        updated_at: Some(timestamp(webhook.updated_at)),
        spec: Some(object(Value::Object(webhook.spec))?),
        counts: Some(DeliveryCounts {
            delivered: counts.delivered,
            waiting: counts.waiting,
            dead: counts.dead,
            expired: counts.expired,
            last_error: counts.last_error,
        }),
        circuit: Some(WebhookCircuit {
            state: webhook.circuit.state.to_owned(),
            since: webhook.circuit.since.map(timestamp),
            probe_at: webhook.circuit.probe_at.map(timestamp),
            reason: webhook.circuit.reason,
        }),
        held: webhook.held.map(|held| WebhookHold {
            since: Some(timestamp(held.since)),
            until: Some(timestamp(held.until)),
            reason: held.reason,
        }),
        missed: webhook.missed.map(|missed| WebhookMissed {
            count: missed.count,
            first_sequence: missed.first_sequence,
            last_sequence: missed.last_sequence,
            at: Some(timestamp(missed.at)),
        }),
    })
}

fn delivery(delivery: Delivery) -> WebhookDelivery {
    WebhookDelivery {
        event_id: delivery.event_id,
        event_type: delivery.event_type,
        state: delivery.state.as_str().to_owned(),
        attempts: delivery.attempts,
        status: delivery.status.into(),
        error: delivery.error,
        created_at: Some(timestamp(delivery.created_at)),
        updated_at: Some(timestamp(delivery.updated_at)),
        next_at: delivery.next_at.map(timestamp),
        cause: Cause::str_of(delivery.cause).to_owned(),
        round: delivery.round,
    }
}

fn attempt(attempt: Attempt) -> WebhookAttempt {
    WebhookAttempt {
        number: attempt.n,
        at: Some(timestamp(attempt.at)),
        status: attempt.status.into(),
        latency: Some(Duration::from_millis(attempt.latency_ms).into()),
        cause: Cause::str_of(attempt.cause).to_owned(),
        error: attempt.error,
        snippet: attempt.snippet,
        next_at: attempt.next_at.map(timestamp),
    }
}

fn redelivery(job: RedeliveryJob) -> Result<Redelivery, Status> {
    Ok(Redelivery {
        id: job.id,
        webhook: job.webhook,
        filter: Some(object(serde_json::json!(job.filter))?),
        state: job.state,
        queued: job.queued,
        by: job.by,
        created_at: Some(timestamp(job.created_at)),
        updated_at: Some(timestamp(job.updated_at)),
    })
}

fn given(text: String) -> Option<String> {
    Some(text).filter(|text| !text.is_empty())
}

fn object(value: Value) -> Result<Struct, Status> {
    serde_json::from_value(value).map_err(|error| Status::internal(error.to_string()))
}

/// Converts a protobuf struct to JSON. Its numbers are doubles; whole ones become integers.
fn json(value: Struct) -> Result<Value, Status> {
    let value =
        serde_json::to_value(value).map_err(|error| Status::invalid_argument(error.to_string()))?;
    Ok(whole(value))
}

fn whole(value: Value) -> Value {
    match value {
        Value::Number(number) => match number.as_f64() {
            // Whole, and exact as a double.
            Some(float) if float.fract() == 0.0 && float.abs() < 9e15 => format!("{float:.0}")
                .parse::<i64>()
                .map_or(Value::Number(number), Value::from),
            _ => Value::Number(number),
        },
        Value::Array(values) => values.into_iter().map(whole).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(key, value)| (key, whole(value)))
            .collect(),
        other => other,
    }
}

fn status(error: ApiError) -> Status {
    let text = error.to_string();
    match &error {
        ApiError::NotFound(_) | ApiError::NoDelivery(_) => Status::not_found(text),
        ApiError::Forbidden(_) => Status::permission_denied(text),
        ApiError::Conflict(_) => Status::failed_precondition(text),
        ApiError::Invalid(_) => Status::invalid_argument(text),
        ApiError::TooMany { .. } => Status::resource_exhausted(text),
        ApiError::Unprepared(_) => Status::unavailable(text),
        ApiError::Internal(error) => failure(error, error.is_unavailable()),
    }
}
