//! Events from outside, by HTTP: signed by their senders, or published by people. Accepted when the bus has them.

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, JsonRejection};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use chrono::Utc;
use mesh_events::IncomingEvent;
use mesh_runtime::api::{Caller, Problem, Role};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::task::spawn_blocking;

use super::{Api, internal};
use crate::adapters;
use crate::config::secrets;
use crate::domain::message::{SourceMessage, named};
use crate::domain::signature::{Refusal, Request};
use crate::domain::source::{PUBLISHED, Signature, Source, Transport};
use crate::metrics;

/// Largest body of a request.
pub(super) const MAX_BODY_BYTES: usize = 256 * 1024;
/// Seconds after which a sender may try again.
const RETRY_AFTER: u64 = 5;

/// What people publish.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PublishRequest {
    /// Type of the event.
    r#type: String,
    /// Its data.
    #[serde(default)]
    data: Value,
    /// Its id. The same id is the same event.
    id: Option<String>,
    /// The job inside which it is published.
    job_id: Option<u32>,
}

/// Events that the bus has.
#[derive(Debug, Serialize)]
pub(super) struct Accepted {
    ids: Vec<String>,
}

type Answer = Result<(StatusCode, Json<Accepted>), Problem>;

/// A request of a source.
pub(super) async fn receive(
    State(api): State<Api>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Answer {
    let source = api.rules.borrow().source(&name).cloned();
    let http = source.as_deref().map(|source| (source, &source.transport));
    let Some((
        source,
        Transport::Http {
            signature,
            secret_file,
        },
    )) = http
    else {
        return Err(Problem::not_found(format!("no source {name:?}")));
    };
    let body = body.map_err(|error| Problem::new(error.status(), error.body_text()))?;
    let file = secret_file.clone();
    let secrets = spawn_blocking(move || secrets(&file)).await;
    let secrets = secrets.map_err(|error| Problem::internal(&error))?;
    let secrets = secrets.map_err(|error| {
        tracing::warn!(source = name, %error, "secret of source not readable, requests refused");
        Problem::unavailable("requests cannot be checked now", RETRY_AFTER)
    })?;
    let events = api.events(source, signature, &secrets, &headers, &body)?;
    api.publish(&events).await
}

/// An event of a person, or of a job.
pub(super) async fn publish(
    caller: Caller,
    State(api): State<Api>,
    request: Result<Json<PublishRequest>, JsonRejection>,
) -> Answer {
    let user = caller.users.first().cloned();
    let user = user.filter(|_| matches!(caller.role, Role::User | Role::Admin));
    let user = user.ok_or_else(|| Problem::forbidden("only Unix users publish events"))?;
    let Json(request) = request.map_err(|error| Problem::new(error.status(), error.body_text()))?;
    let kind = named("type", &request.r#type).map_err(Problem::bad_request)?;
    let id = match &request.id {
        Some(id) => named("id", id).map_err(Problem::bad_request)?.to_owned(),
        None => uuid::Uuid::new_v4().to_string(),
    };
    let id = format!("{user}:{id}");
    let mut event =
        IncomingEvent::new(&api.cluster, PUBLISHED, &id, kind, Utc::now(), request.data);
    // What a job publishes continues the job's chain.
    if let Some(job_id) = request.job_id {
        let chain = api.store.chain_of_job(&api.cluster, job_id, &user).await;
        if let Some(chain) = chain.map_err(internal)? {
            chain.continued_by(&mut event);
        }
    }
    event.user = user;
    api.publish(&[event]).await
}

impl Api {
    /// The events of a request, after the check of its signature.
    fn events(
        &self,
        source: &Source,
        signature: &Signature,
        secrets: &[String],
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<Vec<IncomingEvent>, Problem> {
        let header = |name: &str| single(headers, name);
        let request = Request {
            header: &header,
            body,
        };
        let secrets: Vec<&str> = secrets.iter().map(String::as_str).collect();
        let at = Utc::now();
        let id = signature.check(&secrets, &request, at);
        let id = id.map_err(|refusal: Refusal| {
            metrics::incoming("refused");
            // Anybody can cause it, so it must not fill the log.
            tracing::debug!(source = source.name, %refusal, "request of source refused");
            Problem::new(StatusCode::UNAUTHORIZED, refusal.to_string())
        })?;
        let message = SourceMessage {
            cluster: &self.cluster,
            source: &source.name,
            id: &id,
            r#type: match signature {
                Signature::Github => header("x-github-event"),
                Signature::Gitlab => header("x-gitlab-event"),
                Signature::Standard | Signature::Hmac { .. } | Signature::Bearer => None,
            },
            at,
            body,
        };
        message.events(source.format).map_err(|problem| {
            metrics::incoming("invalid");
            Problem::bad_request(problem)
        })
    }

    async fn publish(&self, events: &[IncomingEvent]) -> Answer {
        if let Err(error) = adapters::bus::publish(&self.bus, events).await {
            let error = mesh_runtime::error_chain(&error);
            tracing::warn!(error, "event from outside not stored, refused");
            metrics::incoming("unavailable");
            return Err(Problem::unavailable(
                "the bus does not store events now",
                RETRY_AFTER,
            ));
        }
        metrics::incoming("accepted");
        let ids = events.iter().map(|event| event.id.clone()).collect();
        Ok((StatusCode::ACCEPTED, Json(Accepted { ids })))
    }
}

/// A header that is there once. Of several, which one was signed is unclear.
fn single<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}
