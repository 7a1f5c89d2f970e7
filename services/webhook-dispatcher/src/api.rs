//! The Webhooks API: [`Webhooks`], with REST and gRPC as thin adapters.
//!
//! Permissions: administrators may do everything. Users create endpoints of their own, which receive their own events
//! only, and have full control over them; endpoints of other users do not exist for them. Auditors see everything
//! except secrets, and change nothing. Endpoints of `mesh.toml` have no owner and are changed there; the API can
//! pause and test them.

mod deliveries;
mod error;
mod grpc;
mod manage;
pub mod openapi;
mod patch;
mod responses;
mod rest;
mod rights;
mod test_limiter;
mod view;
mod webhook_test;

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use chrono::{DateTime, Utc};
use event_message::format::Previewed;
use mesh_runtime::api::{AuditedRead, Caller};
use serde::Serialize;
use serde_json::Value;
use tokio::sync::Mutex;
use utoipa::ToSchema;

use crate::delivery::worker_context::WorkerContext;
use crate::endpoint::registry::Registry;
use crate::endpoint::worker_pool::WorkerPool;
use crate::store::redeliveries::RedeliveryJob;
use crate::store::{Attempt, Delivery};

pub use error::ApiError;
pub use test_limiter::TestLimiter;
pub use view::{Circuit, Webhook};

/// The Webhooks API of a dispatcher.
pub struct Webhooks {
    /// Resources shared with the workers.
    pub shared: Arc<WorkerContext>,
    /// The endpoint definitions.
    pub registry: Arc<Registry>,
    /// Notified of changes.
    pub worker_pool: Arc<WorkerPool>,
    /// Path of the configuration with the operator's endpoints, for messages.
    pub config_file: String,
    /// Limits test deliveries.
    pub turns: TestLimiter,
    /// Held while an endpoint is created, so that concurrent requests to this dispatcher cannot exceed a user's
    /// quota.
    pub making: Mutex<()>,
}

/// A list of webhooks.
#[derive(Serialize, ToSchema)]
struct WebhookList {
    /// The webhooks, ordered by full name.
    webhooks: Vec<Webhook>,
}

/// A page of deliveries.
#[derive(Serialize, ToSchema)]
struct DeliveryList {
    /// Owner of the webhook.
    #[serde(skip)]
    owner: String,
    /// The deliveries, newest first.
    deliveries: Vec<Delivery>,
    /// `cursor` of the next page, to be sent with the same filters. Absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// A delivery with its event and attempts.
#[derive(Serialize, ToSchema)]
#[schema(as = WebhookDeliveryInFull)]
struct DeliveryWithAttempts {
    /// Owner of the webhook.
    #[serde(skip)]
    owner: String,
    #[serde(flatten)]
    delivery: Delivery,
    /// The last 50 attempts, oldest first.
    tried: Vec<Attempt>,
    /// The event as CloudEvents JSON, while the delivery is `waiting` or `dead`; otherwise null.
    #[schema(value_type = Option<Object>)]
    event: Option<Value>,
}

/// A list of redelivery jobs.
#[derive(Serialize, ToSchema)]
struct RedeliveryList {
    /// Owner of the webhook.
    #[serde(skip)]
    owner: String,
    /// The newest 100 jobs, newest first.
    redeliveries: Vec<RedeliveryJob>,
}

/// Which deliveries are listed.
#[derive(Clone, Debug, Default, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub struct Page {
    /// Owner of the webhook: a Unix user; empty for a webhook without an owner. Default: the caller's webhook of
    /// this name, otherwise one without an owner.
    pub owner: Option<String>,
    /// Page size, 1 to 500. Default: 50.
    #[param(minimum = 1, maximum = 500)]
    pub limit: Option<u32>,
    /// `next_cursor` of the previous page. Absent for the first page.
    pub cursor: Option<String>,
    /// Only deliveries in this state: `waiting`, `delivered`, `dead` or `expired`.
    pub state: Option<String>,
    /// Only deliveries of this event type, such as `job.failed`; `job.*` matches a whole category.
    #[serde(rename = "type")]
    #[param(rename = "type")]
    pub kind: Option<String>,
    /// Only deliveries whose last attempt failed with this cause: `refused`, `gone`, `address`, `tls`, `failing`,
    /// `limited`, `unreachable`, `timeout`, `proxy`, `content`, `internal` or `removed`.
    pub cause: Option<String>,
    /// Only deliveries changed at or after this time: RFC 3339, a date, or a duration before now such as `2h`, `7days`.
    #[serde(deserialize_with = "mesh_runtime::time_bound::deserialize")]
    #[param(value_type = Option<String>)]
    pub since: Option<DateTime<Utc>>,
    /// Only deliveries changed before this time; same formats as `since`.
    #[serde(deserialize_with = "mesh_runtime::time_bound::deserialize")]
    #[param(value_type = Option<String>)]
    pub until: Option<DateTime<Utc>>,
}

/// A webhook with its new signing secret.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct WebhookWithSecret {
    /// The webhook.
    pub webhook: Webhook,
    /// Signing secret (`whsec_…`), returned only in this response. Absent if requests are not signed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// Replacement of the signing secret.
#[derive(Clone, Debug, Default, serde::Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Rotation {
    /// New secret: `whsec_` and 24 to 64 bytes in base64. Generated if absent.
    pub secret: Option<String>,
    /// How long the old secret signs in addition to the new one, such as `1d`; at most `7d`. Default: the
    /// dispatcher's `secret_overlap`.
    #[serde(with = "humantime_serde")]
    #[schema(value_type = Option<String>, example = "1d")]
    pub overlap: Option<std::time::Duration>,
}

/// A test delivery.
#[derive(Clone, Debug, Default, serde::Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TestRequest {
    /// Event to send, as CloudEvents JSON from a webhook or `/v1/events`. Default: a sample event.
    #[schema(value_type = Option<Object>)]
    pub event: Option<Value>,
    /// Renders the request without sending it. Default: false.
    pub dry_run: bool,
}

/// Result of a test delivery.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct TestResult {
    /// Full name of the webhook.
    pub webhook: String,
    /// Id of the event.
    pub event_id: String,
    /// True if the webhook's filter and format accept the event. A test is sent even if they do not.
    pub matches: bool,
    /// True if the receiver accepted the request. False for a dry run.
    pub delivered: bool,
    /// HTTP status of the response; 0 without a response.
    pub status: u16,
    /// Duration of the attempt in milliseconds.
    pub latency_ms: u64,
    /// Error message; empty on success.
    pub error: String,
    /// Body of the first request. Present for a given event and for a dry run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
}

/// What to render. Exactly one of `webhook` and `format` is required, and at most one of `event` and `type`.
#[derive(Clone, Debug, Default, serde::Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = WebhookDraft)]
pub struct PreviewRequest {
    /// Name of a webhook, whose format and filter are used.
    pub webhook: Option<String>,
    /// A format as in a webhook: its name, or an object whose `type` is the name.
    #[schema(value_type = Option<Object>)]
    pub format: Option<Value>,
    /// Event to render, as CloudEvents JSON from a webhook or `/v1/events`.
    #[schema(value_type = Option<Object>)]
    pub event: Option<Value>,
    /// Event type of a sample to render if `event` is absent. Default: `job.failed`.
    #[serde(rename = "type")]
    #[schema(example = "job.failed")]
    pub kind: Option<String>,
}

/// Requests that a delivery would send.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = WebhookPreview)]
pub struct Preview {
    /// Id of the event.
    pub event_id: String,
    /// True if the filter and the format accept the event, so that it would be sent.
    pub matches: bool,
    /// The requests in order, assuming that each one succeeds.
    pub requests: Vec<Previewed>,
}

/// A response, by the owners of its rows. One without personal data has none.
trait HasOwners {
    fn owners(&self) -> Vec<&str> {
        Vec::new()
    }

    /// The record of the data of others that it shows this caller.
    fn read_by(&self, caller: &Caller) -> AuditedRead {
        let mut read = AuditedRead::to(caller);
        self.owners().into_iter().for_each(|owner| read.row(owner));
        read
    }
}

impl HasOwners for () {}
impl HasOwners for TestResult {}
impl HasOwners for Preview {}
impl HasOwners for RedeliveryJob {}

impl HasOwners for Webhook {
    fn owners(&self) -> Vec<&str> {
        vec![&self.owner]
    }
}

impl HasOwners for WebhookWithSecret {
    fn owners(&self) -> Vec<&str> {
        self.webhook.owners()
    }
}

impl HasOwners for WebhookList {
    fn owners(&self) -> Vec<&str> {
        self.webhooks.iter().flat_map(HasOwners::owners).collect()
    }
}

impl HasOwners for DeliveryList {
    fn owners(&self) -> Vec<&str> {
        vec![&self.owner; self.deliveries.len()]
    }
}

impl HasOwners for DeliveryWithAttempts {
    fn owners(&self) -> Vec<&str> {
        vec![&self.owner]
    }
}

impl HasOwners for RedeliveryList {
    fn owners(&self) -> Vec<&str> {
        vec![&self.owner; self.redeliveries.len()]
    }
}

/// REST and gRPC routes of an API.
pub fn router(api: Arc<Webhooks>) -> Router {
    rest::router(Arc::clone(&api))
        .route("/v1/webhooks/openapi.json", get(openapi::serve))
        .merge(grpc::router(api))
}
