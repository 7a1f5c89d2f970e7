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

use crate::adapters::endpoints::Stored;
use crate::adapters::store::Delivery;
use crate::domain::format::Kept;
use crate::domain::retry::Outcome;
use crate::error::Error;
use crate::lane::Shared;
use crate::post::{self, Told};
use crate::registry::Registry;

/// What the routes need.
pub struct Api {
    /// Bus, database and HTTP clients.
    pub shared: Arc<Shared>,
    /// What each endpoint is.
    pub registry: Arc<Registry>,
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

impl Api {
    async fn stored(&self, caller: &Caller, name: &str) -> Result<Stored, Problem> {
        reader(caller)?;
        let found = self.shared.store.endpoint(name).await.map_err(internal)?;
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

async fn shown(api: &Api, stored: Stored) -> Result<Value, Problem> {
    let counts = api.shared.store.counts(&stored.name).await;
    let mut shown = stored.spec;
    shown["name"] = stored.name.into();
    shown["counts"] = json!(counts.map_err(internal)?);
    Ok(shown)
}

async fn list(State(api): State<Arc<Api>>, caller: Caller) -> Result<Json<Value>, Problem> {
    reader(&caller)?;
    let mut webhooks = Vec::new();
    for stored in api.shared.store.endpoints().await.map_err(internal)? {
        webhooks.push(shown(&api, stored).await?);
    }
    Ok(Json(json!({ "webhooks": webhooks })))
}

async fn show(
    State(api): State<Arc<Api>>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<Value>, Problem> {
    let stored = api.stored(&caller, &name).await?;
    shown(&api, stored).await.map(Json)
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
    api.stored(&caller, &name).await?;
    let most = page.limit.unwrap_or(50).clamp(1, 500);
    let found = api.shared.store.recent(&name, most).await;
    let found = found.map_err(internal)?;
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
    api.stored(&caller, &name).await?;
    let endpoint = api.registry.endpoint(&api.shared.store, &name).await;
    let endpoint = endpoint.map_err(internal)?;
    let user = caller.users.first().map_or("", String::as_str);
    let sample = sample(&api.shared.cluster, &name, user, Utc::now());
    let told = Told::test(&endpoint, &sample);
    let attempted = post::tell(&api.shared.http, &endpoint, &told, &Kept::new(), None).await;
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
