//! Events from outside, by HTTP: signed by their senders, or published by people. Accepted when the bus has them.

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, JsonRejection};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::{Extension, Json};
use chrono::Utc;
use mesh_events::IncomingEvent;
use mesh_runtime::api::{AuditedRead, Caller, Problem, Role};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use utoipa::ToSchema;

use super::allowance::{Exceeded, Need, Sender};
use super::{Api, responses};
use crate::adapters;
use crate::config::secrets;
use crate::domain::message::{SourceMessage, named};
use crate::domain::signature::{Refusal, Request};
use crate::domain::source::{PUBLISHED, Signature, Source, Transport};
use crate::error::Error;
use crate::metrics;

/// Largest body of a request.
pub(super) const MAX_BODY_BYTES: usize = 256 * 1024;
/// Largest data of an event that is published: as much as an object of a store or a result of a step needs, not the object.
const MAX_DATA_BYTES: usize = 64 * 1024;
/// Seconds after which a sender may try again if events have to expire first.
const RETRY_AFTER_EXPIRY: u64 = 3_600;

/// An event that a person or a job publishes.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = PublishRequest)]
#[serde(deny_unknown_fields)]
pub(super) struct PublishRequest {
    /// Type of the event, 1 to 200 bytes, without control characters.
    #[schema(example = "reads.aligned")]
    r#type: String,
    /// Its data, at most 64 KiB of JSON.
    #[serde(default)]
    data: Value,
    /// Its id; as `type`. The same id of a user is the same event. Default: a new id.
    id: Option<String>,
    /// The job inside which it is published. The event continues the chain of the rule that started this job.
    job_id: Option<u32>,
}

/// Events that the bus has stored.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AcceptedEvents)]
pub(super) struct Accepted {
    /// Their ids.
    ids: Vec<String>,
}

type Answer = Result<(StatusCode, Extension<AuditedRead>, Json<Accepted>), Problem>;

/// Takes a request of a source.
///
/// Its signature is checked as the source's `signature` in mesh.toml says; no token of this API is needed. A repeated event fires a rule once.
#[utoipa::path(post, operation_id = "receiveEvents", path = "/v1/in/{name}", tag = "events", params(("name" = String, Path, description = "Name of the source")),
    security(()), request_body(content = Value, description = "A message of the source's `format`, at most 256 KiB"), responses(
    (status = 202, description = "The bus has stored the events", body = Accepted), (status = 400, response = responses::BadRequest),
    (status = 401, response = responses::Unsigned), (status = 404, response = responses::NotFound), (status = 413, response = responses::TooLarge),
    (status = 429, response = responses::TooMany), (status = 503, response = responses::Unavailable),
))]
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
        Problem::unavailable("requests cannot be checked now")
    })?;
    let events = api.events(source, signature, &secrets, &headers, &body)?;
    let (sender, need) = (Sender::Source(&name), Need::of(&events));
    api.allow(sender, need)?;
    api.publish(&events).await
}

/// Publishes an event, for rules with `source = "publish"`. Only Unix users.
#[utoipa::path(post, operation_id = "publishEvent", path = "/v1/in", tag = "events", request_body = PublishRequest, responses(
    (status = 202, description = "The bus has stored the event", body = Accepted), (status = 400, response = responses::BadRequest),
    (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden), (status = 413, response = responses::TooLarge),
    (status = 415, response = responses::NotJson), (status = 422, response = responses::Unprocessable), (status = 429, response = responses::TooMany),
    (status = 503, response = responses::Unavailable),
))]
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
    let bytes = request.data.to_string().len();
    if bytes > MAX_DATA_BYTES {
        metrics::incoming("invalid");
        let problem =
            format!("data: {bytes} bytes, at most {MAX_DATA_BYTES}; publish where it is stored");
        return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, problem));
    }
    let id = match &request.id {
        Some(id) => named("id", id).map_err(Problem::bad_request)?.to_owned(),
        None => uuid::Uuid::new_v4().to_string(),
    };
    let id = format!("{user}:{id}");
    let event = IncomingEvent::new(&api.cluster, PUBLISHED, &id, kind, Utc::now(), request.data);
    let (sender, need) = (Sender::User(&user), Need::of(std::slice::from_ref(&event)));
    // Before the bus and the database are asked: who sends too much costs them nothing.
    api.allow(sender, need)?;
    let prepared = api.prepare(&user, request.job_id, event).await;
    // It is refused before it is on the bus. What an answer of the bus may have missed is counted.
    let event = prepared.inspect_err(|_| api.allowances.give_back(sender, need))?;
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

    /// Refuses what exceeds the sender's limits.
    fn allow(&self, sender: Sender<'_>, need: Need) -> Result<(), Problem> {
        let taken = self.allowances.take(sender, need, Instant::now());
        taken.map_err(|exceeded| {
            metrics::incoming("limited");
            let whose = match sender {
                Sender::User(_) => "user",
                Sender::Source(_) => "source",
            };
            let (problem, wait) = match exceeded {
                Exceeded::Rate(wait) => (
                    format!("too many events or bytes: see workflow-trigger.limits.{whose}_events_per_minute and {whose}_bytes_per_minute"),
                    wait,
                ),
                Exceeded::Share(wait) => {
                    let share = self.allowances.of_stream;
                    let (size, days) = (share.bytes.get() >> 20, share.period.as_secs() / 86_400);
                    let problem = format!(
                        "too many bytes: a user's share of MESH_IN is {size} MiB in {days} days, which no key changes; publish where data is stored, not the data"
                    );
                    (problem, wait)
                }
            };
            Problem::too_many(problem, wait.as_secs() + 1)
        })
    }

    /// Completes an event of a user that may be published now.
    async fn prepare(
        &self,
        user: &str,
        job_id: Option<u32>,
        mut event: IncomingEvent,
    ) -> Result<IncomingEvent, Problem> {
        self.leave_room().await?;
        // What a job publishes continues the job's chain.
        if let Some(job_id) = job_id {
            let chain = self.store.chain_of_job(&self.cluster, job_id, user).await;
            if let Some(chain) = chain? {
                chain.continued_by(&mut event);
            }
        }
        user.clone_into(&mut event.user);
        Ok(event)
    }

    /// Leaves room for sources: people may not fill the stream.
    async fn leave_room(&self) -> Result<(), Problem> {
        match adapters::bus::takes_published(&self.bus).await {
            Ok(true) => Ok(()),
            Ok(false) => {
                tracing::warn!("half of MESH_IN is used: what people publish is refused");
                metrics::incoming("full");
                Err(Problem::too_many(
                    adapters::bus::NO_ROOM,
                    RETRY_AFTER_EXPIRY,
                ))
            }
            Err(error) => Err(unavailable(&error)),
        }
    }

    async fn publish(&self, events: &[IncomingEvent]) -> Answer {
        if let Err(error) = adapters::bus::publish(&self.bus, events).await {
            return Err(unavailable(&error));
        }
        metrics::incoming("accepted");
        let ids = events.iter().map(|event| event.id.clone()).collect();
        let read = AuditedRead::nothing().extension();
        Ok((StatusCode::ACCEPTED, read, Json(Accepted { ids })))
    }
}

fn unavailable(error: &Error) -> Problem {
    let error = mesh_runtime::error_chain(error);
    tracing::warn!(error, "event from outside not stored, refused");
    metrics::incoming("unavailable");
    Problem::unavailable("the bus does not store events now")
}

/// A header that is there once. Of several, which one was signed is unclear.
fn single<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}
