//! The Webhooks API: one trait, with REST and gRPC as thin adapters.
//!
//! Permissions: administrators may do everything. Users create endpoints of their own, which receive their own events
//! only, and have full control over them; endpoints of other users do not exist for them. Auditors see everything
//! except secrets, and change nothing. Endpoints of `mesh.toml` have no owner and are changed there; the API can
//! pause and test them.

mod deliveries;
mod grpc;
mod manage;
pub mod openapi;
mod patch;
mod rest;
mod rights;
mod test_limiter;
mod view;
mod webhook_test;

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use chrono::{DateTime, Utc};
use mesh_runtime::api::{AuditedRead, Caller};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::adapters::redeliveries::{RedeliverRequest, RedeliveryJob};
use crate::adapters::store::{Attempt, Delivery};
use crate::config::Fault;
use crate::domain::format::Previewed;
use crate::error::Error;

pub use manage::Webhooks;
pub use test_limiter::TestLimiter;
pub use view::{Circuit, Hold, Webhook};

/// Operations on endpoints and their deliveries.
pub trait WebhooksApi: Send + Sync + 'static {
    /// Lists the endpoints that the caller may see.
    fn list(&self, caller: &Caller) -> impl Future<Output = Result<Vec<Webhook>, ApiError>> + Send;

    /// Reads an endpoint.
    fn get(
        &self,
        caller: &Caller,
        name: &str,
    ) -> impl Future<Output = Result<Webhook, ApiError>> + Send;

    /// Creates an endpoint.
    fn create(
        &self,
        caller: &Caller,
        spec: Value,
    ) -> impl Future<Output = Result<WebhookWithSecret, ApiError>> + Send;

    /// Changes an endpoint by a JSON merge patch.
    fn edit(
        &self,
        caller: &Caller,
        name: &str,
        patch: Value,
    ) -> impl Future<Output = Result<Webhook, ApiError>> + Send;

    /// Removes an endpoint.
    fn remove(
        &self,
        caller: &Caller,
        name: &str,
    ) -> impl Future<Output = Result<(), ApiError>> + Send;

    /// Pauses an endpoint.
    fn pause(
        &self,
        caller: &Caller,
        name: &str,
        reason: &str,
    ) -> impl Future<Output = Result<Webhook, ApiError>> + Send;

    /// Resumes an endpoint.
    fn resume(
        &self,
        caller: &Caller,
        name: &str,
    ) -> impl Future<Output = Result<Webhook, ApiError>> + Send;

    /// Replaces the signing secret.
    fn rotate(
        &self,
        caller: &Caller,
        name: &str,
        rotation: Rotation,
    ) -> impl Future<Output = Result<WebhookWithSecret, ApiError>> + Send;

    /// Sends a sample, or a given event.
    fn test(
        &self,
        caller: &Caller,
        name: &str,
        test_request: TestRequest,
    ) -> impl Future<Output = Result<TestResult, ApiError>> + Send;

    /// Renders a delivery without sending it.
    fn preview(
        &self,
        caller: &Caller,
        draft: PreviewRequest,
    ) -> impl Future<Output = Result<Preview, ApiError>> + Send;

    /// Lists deliveries of an endpoint, newest first.
    fn deliveries(
        &self,
        caller: &Caller,
        name: &str,
        page: Page,
    ) -> impl Future<Output = Result<DeliveryPage, ApiError>> + Send;

    /// Reads a delivery with its attempts, and the owner of its endpoint.
    fn delivery(
        &self,
        caller: &Caller,
        name: &str,
        event_id: &str,
    ) -> impl Future<Output = Result<(String, Delivery, Vec<Attempt>), ApiError>> + Send;

    /// Starts a redelivery of dead letters.
    fn redeliver(
        &self,
        caller: &Caller,
        name: &str,
        again: RedeliverRequest,
    ) -> impl Future<Output = Result<RedeliveryJob, ApiError>> + Send;

    /// Lists redelivery jobs of an endpoint, with the endpoint's owner.
    fn redeliveries(
        &self,
        caller: &Caller,
        name: &str,
    ) -> impl Future<Output = Result<(String, Vec<RedeliveryJob>), ApiError>> + Send;
}

/// A page of an endpoint's deliveries.
#[derive(Debug)]
pub struct DeliveryPage {
    /// Owner of the endpoint.
    pub owner: String,
    /// The deliveries, newest first.
    pub deliveries: Vec<Delivery>,
    /// Start of the next page. `None` on the last one.
    pub next_cursor: Option<String>,
}

/// Which deliveries are listed.
#[derive(Clone, Debug, Default, serde::Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub struct Page {
    /// Whose webhook it is; empty for one of no user. The caller's, or else of no user, if not given.
    pub owner: Option<String>,
    /// How many, at most 500; 50 if not given.
    #[param(minimum = 1, maximum = 500)]
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
    /// Only those in this state: `waiting`, `delivered`, `dead` or `expired`.
    pub state: Option<String>,
    /// Only those of this type; `job.*` for all of a category.
    #[serde(rename = "type")]
    #[param(rename = "type")]
    pub kind: Option<String>,
    /// Only those whose last attempt failed for this reason: `refused`, `gone`, `address`, `tls`, `failing`, `limited`, `unreachable`,
    /// `timeout`, `proxy`, `content`, `internal` or `removed`.
    pub cause: Option<String>,
    /// Only those that changed then or later: RFC 3339, a day, or how long ago such as `2h`, `7days`.
    #[serde(deserialize_with = "mesh_runtime::time_bound::deserialize")]
    #[param(value_type = Option<String>)]
    pub since: Option<DateTime<Utc>>,
    /// Only those that changed before.
    #[serde(deserialize_with = "mesh_runtime::time_bound::deserialize")]
    #[param(value_type = Option<String>)]
    pub until: Option<DateTime<Utc>>,
}

/// An endpoint with its new secret.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct WebhookWithSecret {
    /// The endpoint.
    pub webhook: Webhook,
    /// Its signing secret, shown now and never again; absent if it is not signed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// A new secret.
#[derive(Clone, Debug, Default, serde::Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Rotation {
    /// The secret, `whsec_…`; one is made if it is absent.
    pub secret: Option<String>,
    /// How long the old one signs beside it, as `1d`; at most `7d`.
    #[serde(with = "humantime_serde")]
    #[schema(value_type = Option<String>, example = "1d")]
    pub overlap: Option<std::time::Duration>,
}

/// What is tried.
#[derive(Clone, Debug, Default, serde::Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TestRequest {
    /// An event as webhooks and `/v1/events` give it (CloudEvents JSON); a sample if it is absent.
    #[schema(value_type = Option<Object>)]
    pub event: Option<Value>,
    /// See what would be sent, and send nothing.
    pub dry_run: bool,
}

/// What came of a test.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TestResult {
    /// Name of the endpoint.
    pub webhook: String,
    /// Id of the event.
    pub event_id: String,
    /// Whether the endpoint would get this event: its filter and its format take it.
    pub matches: bool,
    /// Whether it was sent and arrived.
    pub delivered: bool,
    /// HTTP status; 0 without an answer.
    pub status: u16,
    /// How long it took.
    pub latency_ms: u64,
    /// What went wrong; empty if nothing did.
    pub error: String,
    /// Body of the first request, for an event that was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
}

/// What is to be shown: what an endpoint would be sent, or what a format makes, of an event or a sample.
#[derive(Clone, Debug, Default, serde::Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[schema(as = WebhookDraft)]
pub struct PreviewRequest {
    /// Name of an endpoint. Or:
    pub webhook: Option<String>,
    /// A format as endpoints have it: its name, or an object whose `type` names it.
    #[schema(value_type = Option<Object>)]
    pub format: Option<Value>,
    /// An event as webhooks and `/v1/events` give it (CloudEvents JSON). Or:
    #[schema(value_type = Option<Object>)]
    pub event: Option<Value>,
    /// Type of the sample that is shown instead; `job.failed` if it is absent, too.
    #[serde(rename = "type")]
    #[schema(example = "job.failed")]
    pub kind: Option<String>,
}

/// What would be sent.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = WebhookPreview)]
pub struct Preview {
    /// Id of the event.
    pub event_id: String,
    /// Whether it would be sent: the filter and the format take such an event.
    pub matches: bool,
    /// One request after the other, as if each were answered well.
    pub requests: Vec<Previewed>,
}

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The endpoint does not exist, or the caller may not see it.
    #[error("no webhook {0:?}; GET /v1/webhooks lists them, and another user's is OWNER/NAME")]
    NotFound(String),
    /// The delivery does not exist, or its retention has ended.
    #[error("no delivery {0:?} at this webhook")]
    NoDelivery(String),
    /// The caller lacks the permission.
    #[error("{0}")]
    Forbidden(String),
    /// The endpoint's current state does not permit it.
    #[error("{0}")]
    Conflict(String),
    /// The request is invalid.
    #[error("{}", faults(.0))]
    Invalid(Vec<Fault>),
    /// A limit is reached for the moment.
    #[error("{problem}; try again in {after} s")]
    TooMany {
        /// The limit that is reached.
        problem: String,
        /// Seconds until the request may be repeated.
        after: u64,
    },
    /// The operator must configure something first.
    #[error("{0}")]
    Unprepared(String),
    /// Internal error.
    #[error(transparent)]
    Internal(#[from] Error),
}

impl ApiError {
    fn invalid(key: &'static str, problem: impl Into<String>) -> Self {
        Self::Invalid(vec![Fault {
            endpoint: String::new(),
            key,
            problem: problem.into(),
        }])
    }
}

fn faults(faults: &[Fault]) -> String {
    let sent: Vec<String> = faults
        .iter()
        .map(|fault| match fault.key {
            "" => fault.problem.clone(),
            key => format!("{key}: {}", fault.problem),
        })
        .collect();
    sent.join("; ")
}

/// The owners whose data a response contains, for the audit: endpoints reveal who is notified of what.
fn shown<'a>(caller: &Caller, owners: impl IntoIterator<Item = &'a str>) -> AuditedRead {
    let mut shown = AuditedRead::to(caller);
    owners.into_iter().for_each(|owner| shown.row(owner));
    shown
}

/// REST and gRPC routes of an API.
pub fn router<A: WebhooksApi>(api: Arc<A>) -> Router {
    rest::router(Arc::clone(&api)).merge(grpc::router(api))
}
