//! `/v1/webhooks`: what endpoints there are, how they fare, and a test. For administrators and, but for the test, auditors:
//! endpoints say who is told what.
//!
//! Endpoints come from `mesh.toml`, so the API does not change them; it says where to.

use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::{get, post as posting};
use axum::{Extension, Json, Router};
use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::event::v1::{Confidence, Entity, Owner, Source};
use mesh_events::proto::mesh::job::v1::{Job, JobEvent};
use mesh_events::{Event, EventId, EventType, SCHEMA_VERSION, timestamp};
use mesh_runtime::api::{self, Caller, Problem};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::adapters::store::{Counts, Delivery};
use crate::domain::format::Kept;
use crate::domain::retry::Outcome;
use crate::error::Error;
use crate::lane::Lane;
use crate::post::{self, Told};

/// What the routes need.
pub struct Api {
    /// The endpoints.
    pub lanes: Vec<Arc<Lane>>,
    /// Where endpoints are written.
    pub config_file: String,
}

/// The routes.
pub fn router(api: Api) -> Router {
    let read_only = posting(refuse).put(refuse).patch(refuse).delete(refuse);
    Router::new()
        .route("/v1/webhooks", get(list).merge(read_only.clone()))
        .route("/v1/webhooks/{name}", get(show).merge(read_only))
        .route("/v1/webhooks/{name}/deliveries", get(deliveries))
        .route("/v1/webhooks/{name}/test", posting(test))
        // Endpoints and outcomes are of no person: deliveries name events, not whose they are.
        .layer(map_response(async |response: Response| {
            (Extension(api::Shown::nothing()), response)
        }))
        .with_state(Arc::new(api))
}

/// An endpoint as it may be shown.
#[derive(Serialize)]
struct Shown<'a> {
    name: &'a str,
    url: String,
    format: &'static str,
    signed: bool,
    types: &'a [String],
    counts: Counts,
}

impl Api {
    fn lane(&self, caller: &Caller, name: &str) -> Result<&Arc<Lane>, Problem> {
        reader(caller)?;
        let found = self.lanes.iter().find(|lane| lane.endpoint.name == name);
        found.ok_or_else(|| {
            Problem::not_found(format!("no webhook {name:?}; GET /v1/webhooks lists them"))
        })
    }
}

fn reader(caller: &Caller) -> Result<(), Problem> {
    if caller.sees_everything() {
        Ok(())
    } else {
        Err(Problem::forbidden(
            "webhooks are for administrators (mesh.api.admins) and auditors",
        ))
    }
}

fn writer(caller: &Caller) -> Result<(), Problem> {
    if caller.may_write() {
        Ok(())
    } else {
        Err(Problem::forbidden(
            "only administrators (mesh.api.admins) change or test webhooks",
        ))
    }
}

fn internal(error: Error) -> Problem {
    Problem::internal(&error)
}

async fn shown(lane: &Lane) -> Result<Value, Problem> {
    let endpoint = &lane.endpoint;
    let counts = lane
        .shared
        .store
        .counts(&endpoint.name)
        .await
        .map_err(internal)?;
    Ok(json!(Shown {
        name: &endpoint.name,
        url: endpoint.shown_url(),
        format: endpoint.format.as_str(),
        signed: endpoint.signer.is_some(),
        types: &endpoint.types,
        counts,
    }))
}

async fn list(State(api): State<Arc<Api>>, caller: Caller) -> Result<Json<Value>, Problem> {
    reader(&caller)?;
    let mut webhooks = Vec::with_capacity(api.lanes.len());
    for lane in &api.lanes {
        webhooks.push(shown(lane).await?);
    }
    Ok(Json(json!({ "webhooks": webhooks })))
}

async fn show(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<Value>, Problem> {
    shown(api.lane(&caller, &name)?).await.map(Json)
}

async fn refuse(State(api): State<Arc<Api>>, caller: Caller) -> Problem {
    if let Err(problem) = writer(&caller) {
        return problem;
    }
    let file = &api.config_file;
    Problem::new(
        StatusCode::CONFLICT,
        format!(
            "webhooks are written in {file}: change [[webhook-dispatcher.endpoints]] there and restart"
        ),
    )
}

#[derive(Deserialize)]
struct Page {
    limit: Option<u32>,
}

#[derive(Serialize)]
struct ShownDelivery {
    event_id: String,
    event_type: String,
    state: &'static str,
    attempts: u32,
    status: u16,
    error: String,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
    next_at: Option<DateTime<Utc>>,
}

impl From<Delivery> for ShownDelivery {
    fn from(delivery: Delivery) -> Self {
        Self {
            event_id: delivery.event_id,
            event_type: delivery.event_type,
            state: delivery.state.as_str(),
            attempts: delivery.attempts,
            status: delivery.status,
            error: delivery.error,
            created_at: delivery.created_at,
            updated_at: delivery.updated_at,
            next_at: delivery.next_at,
        }
    }
}

async fn deliveries(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(name): Path<String>,
    Query(page): Query<Page>,
) -> Result<Json<Value>, Problem> {
    let lane = api.lane(&caller, &name)?;
    let most = page.limit.unwrap_or(50).clamp(1, 500);
    let found = lane
        .shared
        .store
        .recent(&name, most)
        .await
        .map_err(internal)?;
    let deliveries: Vec<ShownDelivery> = found.into_iter().map(Into::into).collect();
    Ok(Json(json!({ "deliveries": deliveries })))
}

/// Sends a sample now, once, and says what came of it. Neither stored nor audited.
async fn test(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<Value>, Problem> {
    writer(&caller)?;
    let lane = api.lane(&caller, &name)?;
    let user = caller.users.first().map_or("", String::as_str);
    let sample = sample(&lane.shared.cluster, &name, user, Utc::now());
    let told = Told::test(&lane.endpoint, &sample);
    let attempted = post::tell(&lane.shared.http, &lane.endpoint, &told, &Kept::new(), None).await;
    Ok(Json(json!({
        "webhook": name,
        "event_id": sample.id,
        "delivered": attempted.verdict.outcome == Outcome::Delivered,
        "status": attempted.status,
        "latency_ms": u64::try_from(attempted.elapsed.as_millis()).unwrap_or(u64::MAX),
        "error": attempted.verdict.error,
    })))
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
