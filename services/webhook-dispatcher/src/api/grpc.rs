//! gRPC: `mesh.webhook.v1.WebhooksService`.

use std::sync::Arc;

use axum::Router;
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
use mesh_runtime::api::{AuditedRead, Caller};
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

#[tonic::async_trait]
impl WebhooksService for Adapter {
    async fn list_webhooks(
        &self,
        request: Request<ListWebhooksRequest>,
    ) -> Result<Response<ListWebhooksResponse>, Status> {
        let caller = caller(&request)?;
        answer(&caller, self.0.list(&caller).await, |list| {
            let webhooks = list.webhooks.into_iter().map(message);
            let webhooks = webhooks.filter_map(Result::transpose);
            Ok(ListWebhooksResponse {
                webhooks: webhooks.collect::<Result<_, _>>()?,
            })
        })
    }

    async fn get_webhook(
        &self,
        request: Request<GetWebhookRequest>,
    ) -> Result<Response<GetWebhookResponse>, Status> {
        let caller = caller(&request)?;
        let found = self.0.get(&caller, &request.into_inner().name).await;
        answer(&caller, found, |it| {
            Ok(GetWebhookResponse {
                webhook: message(it)?,
            })
        })
    }

    async fn create_webhook(
        &self,
        request: Request<CreateWebhookRequest>,
    ) -> Result<Response<CreateWebhookResponse>, Status> {
        let caller = caller(&request)?;
        let spec = json(request.into_inner().spec)?;
        answer(&caller, self.0.create(&caller, spec).await, |made| {
            Ok(CreateWebhookResponse {
                webhook: message(made.webhook)?,
                secret: made.secret.unwrap_or_default(),
            })
        })
    }

    async fn update_webhook(
        &self,
        request: Request<UpdateWebhookRequest>,
    ) -> Result<Response<UpdateWebhookResponse>, Status> {
        let caller = caller(&request)?;
        let UpdateWebhookRequest { name, patch } = request.into_inner();
        let changed = self.0.edit(&caller, &name, json(patch)?).await;
        answer(&caller, changed, |it| {
            Ok(UpdateWebhookResponse {
                webhook: message(it)?,
            })
        })
    }

    async fn delete_webhook(
        &self,
        request: Request<DeleteWebhookRequest>,
    ) -> Result<Response<DeleteWebhookResponse>, Status> {
        let caller = caller(&request)?;
        let removed = self.0.remove(&caller, &request.into_inner().name).await;
        removed.map_err(status)?;
        Ok(audited_response(
            DeleteWebhookResponse {},
            AuditedRead::nothing(),
        ))
    }

    async fn pause_webhook(
        &self,
        request: Request<PauseWebhookRequest>,
    ) -> Result<Response<PauseWebhookResponse>, Status> {
        let caller = caller(&request)?;
        let PauseWebhookRequest { name, reason } = request.into_inner();
        let paused = self.0.pause(&caller, &name, &reason).await;
        answer(&caller, paused, |it| {
            Ok(PauseWebhookResponse {
                webhook: message(it)?,
            })
        })
    }

    async fn resume_webhook(
        &self,
        request: Request<ResumeWebhookRequest>,
    ) -> Result<Response<ResumeWebhookResponse>, Status> {
        let caller = caller(&request)?;
        let resumed = self.0.resume(&caller, &request.into_inner().name).await;
        answer(&caller, resumed, |it| {
            Ok(ResumeWebhookResponse {
                webhook: message(it)?,
            })
        })
    }

    async fn test_webhook(
        &self,
        request: Request<TestWebhookRequest>,
    ) -> Result<Response<TestWebhookResponse>, Status> {
        let caller = caller(&request)?;
        let TestWebhookRequest {
            name,
            event,
            dry_run,
        } = request.into_inner();
        let event = event.map(|event| json(Some(event))).transpose()?;
        let test_request = TestRequest { event, dry_run };
        let tested = self.0.test(&caller, &name, test_request).await;
        answer(&caller, tested, |tested| {
            let latency = std::time::Duration::from_millis(tested.latency_ms);
            Ok(TestWebhookResponse {
                event_id: tested.event_id,
                matches: tested.matches,
                delivered: tested.delivered,
                status: tested.status.into(),
                latency: Some(latency.into()),
                error: tested.error,
                body: tested.body.unwrap_or_default(),
            })
        })
    }

    async fn preview_webhook(
        &self,
        request: Request<PreviewWebhookRequest>,
    ) -> Result<Response<PreviewWebhookResponse>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let draft = PreviewRequest {
            webhook: given(request.webhook),
            format: request
                .format
                .map(|format| json(Some(format)))
                .transpose()?,
            event: request.event.map(|event| json(Some(event))).transpose()?,
            kind: given(request.r#type),
        };
        answer(&caller, self.0.preview(&caller, draft).await, |shown| {
            let requests = shown.requests.into_iter().map(|request| WebhookRequest {
                method: request.method.to_owned(),
                url: request.url,
                content_type: request.content_type,
                body: request.body,
            });
            Ok(PreviewWebhookResponse {
                event_id: shown.event_id,
                matches: shown.matches,
                requests: requests.collect(),
            })
        })
    }

    async fn rotate_secret(
        &self,
        request: Request<RotateSecretRequest>,
    ) -> Result<Response<RotateSecretResponse>, Status> {
        let caller = caller(&request)?;
        let RotateSecretRequest {
            name,
            secret,
            overlap,
        } = request.into_inner();
        let overlap = overlap
            .map(std::time::Duration::try_from)
            .transpose()
            .map_err(|_| Status::invalid_argument("overlap: at most 7d, and not negative"))?;
        let rotation = Rotation {
            secret: Some(secret).filter(|secret| !secret.is_empty()),
            overlap,
        };
        let rotated = self.0.rotate(&caller, &name, rotation).await;
        answer(&caller, rotated, |rotated| {
            Ok(RotateSecretResponse {
                webhook: message(rotated.webhook)?,
                secret: rotated.secret.unwrap_or_default(),
            })
        })
    }

    async fn list_deliveries(
        &self,
        request: Request<ListDeliveriesRequest>,
    ) -> Result<Response<ListDeliveriesResponse>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let page = Page {
            // The name includes the owner.
            owner: None,
            limit: (request.limit > 0).then_some(request.limit),
            cursor: given(request.cursor),
            state: given(request.state),
            kind: given(request.r#type),
            cause: given(request.cause),
            since: request.since.as_ref().and_then(from_timestamp),
            until: request.until.as_ref().and_then(from_timestamp),
        };
        let found = self.0.deliveries(&caller, &request.name, page).await;
        answer(&caller, found, |listed| {
            Ok(ListDeliveriesResponse {
                deliveries: listed.deliveries.into_iter().map(delivery).collect(),
                next_cursor: listed.next_cursor.unwrap_or_default(),
            })
        })
    }

    async fn get_delivery(
        &self,
        request: Request<GetDeliveryRequest>,
    ) -> Result<Response<GetDeliveryResponse>, Status> {
        let caller = caller(&request)?;
        let GetDeliveryRequest { name, event_id } = request.into_inner();
        let found = self.0.delivery(&caller, &name, &event_id).await;
        answer(&caller, found, |found| {
            Ok(GetDeliveryResponse {
                event: found.event.map(object).transpose()?,
                delivery: Some(delivery(found.delivery)),
                attempts: found.tried.into_iter().map(attempt).collect(),
            })
        })
    }

    async fn redeliver(
        &self,
        request: Request<RedeliverRequest>,
    ) -> Result<Response<RedeliverResponse>, Status> {
        let caller = caller(&request)?;
        let request = request.into_inner();
        let again = redeliveries::RedeliverRequest {
            ids: request.ids,
            all: request.all,
            kind: given(request.r#type),
            cause: given(request.cause),
            since: request.since.as_ref().and_then(from_timestamp),
            until: request.until.as_ref().and_then(from_timestamp),
            rate: (request.rate > 0).then_some(request.rate),
        };
        let job = self.0.redeliver(&caller, &request.name, again).await;
        answer(&caller, job, |job| {
            let redelivery = Some(redelivery(job)?);
            Ok(RedeliverResponse { redelivery })
        })
    }

    async fn list_redeliveries(
        &self,
        request: Request<ListRedeliveriesRequest>,
    ) -> Result<Response<ListRedeliveriesResponse>, Status> {
        let caller = caller(&request)?;
        let name = request.into_inner().name;
        answer(&caller, self.0.redeliveries(&caller, &name).await, |list| {
            let jobs = list.redeliveries.into_iter().map(redelivery);
            Ok(ListRedeliveriesResponse {
                redeliveries: jobs.collect::<Result<_, _>>()?,
            })
        })
    }
}

fn answer<T: HasOwners, M>(
    caller: &Caller,
    body: Result<T, ApiError>,
    message: impl FnOnce(T) -> Result<M, Status>,
) -> Result<Response<M>, Status> {
    let body = body.map_err(status)?;
    let read = body.read_by(caller);
    Ok(audited_response(message(body)?, read))
}

fn message(webhook: Webhook) -> Result<Option<WebhookMessage>, Status> {
    let counts = webhook.counts;
    Ok(Some(WebhookMessage {
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
    }))
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
        latency: Some(std::time::Duration::from_millis(attempt.latency_ms).into()),
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
fn json(value: Option<Struct>) -> Result<Value, Status> {
    let value = serde_json::to_value(value.unwrap_or_default())
        .map_err(|error| Status::invalid_argument(error.to_string()))?;
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
