//! REST: `/v1/events`, `/v1/events/stream`, `/v1/jobs/{cluster}/{job}`, `/v1/ledger/head`.

use std::sync::Arc;

use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Extension, Json, Router};
use chrono::{DateTime, SecondsFormat, Utc};
use mesh_events::cloudevents;
use mesh_events::from_timestamp;
use mesh_events::proto::mesh::audit::v1::AuditEntry;
use mesh_runtime::api::{Caller, Problem, Shown};
use serde_json::{Value, json};

use super::{ApiError, Content, Entry, EventsApi, shown};
use crate::domain::query::{ListRequest, Moment};
use crate::domain::story::{Recorded, Run};

const FILTERS: &str = "cluster, type, job, user, since, until, limit, cursor, order";
/// The `dataschema` of audit entries.
const AUDIT_SCHEMA: &str = "urn:slurm-mesh:mesh.audit.v1.AuditEntry";

pub(super) fn router<A: EventsApi>(api: Arc<A>) -> Router {
    Router::new()
        .route("/v1/events", get(list::<A>))
        .route("/v1/events/stream", get(super::stream::follow::<A>))
        .route("/v1/jobs/{cluster}/{job}", get(job::<A>))
        .route("/v1/ledger/head", get(head::<A>))
        .with_state(api)
}

async fn list<A: EventsApi>(
    State(api): State<Arc<A>>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<(Extension<Shown>, Json<Value>), Problem> {
    let request = parse(query.as_deref().unwrap_or_default())?;
    let page = api.list(&caller, request).await.map_err(problem)?;
    let entries = page
        .entries
        .iter()
        .map(entry)
        .collect::<Result<Vec<_>, _>>()?;
    let contents = page.entries.iter().map(|entry| &entry.content);
    Ok((
        shown(&caller, contents).extension(),
        Json(json!({ "entries": entries, "next_cursor": page.next_cursor })),
    ))
}

async fn job<A: EventsApi>(
    State(api): State<Arc<A>>,
    caller: Caller,
    Path((cluster, job)): Path<(String, String)>,
) -> Result<(Extension<Shown>, Json<Value>), Problem> {
    let story = api.job(&caller, &cluster, &job).await.map_err(problem)?;
    let runs = story.runs.iter().map(run).collect::<Result<Vec<_>, _>>()?;
    let mut shown = Shown::to(&caller);
    for run in &story.runs {
        shown.row(&run.summary.user);
    }
    Ok((
        shown.extension(),
        Json(json!({ "cluster": cluster, "job": job, "runs": runs, "truncated": story.truncated })),
    ))
}

async fn head<A: EventsApi>(
    State(api): State<Arc<A>>,
    _caller: Caller,
) -> Result<(Extension<Shown>, Json<Value>), Problem> {
    let head = api.head().await.map_err(problem)?;
    Ok((
        Shown::nothing().extension(),
        Json(json!({ "seq": head.seq, "chain": hex::encode(head.chain) })),
    ))
}

/// Reads the filters. `type` may be given several times, or as a list with commas; every other filter once.
pub(super) fn parse(query: &str) -> Result<ListRequest, Problem> {
    let mut request = ListRequest::default();
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        let value = value.trim().to_owned();
        if value.is_empty() {
            return Err(Problem::bad_request(format!(
                "{name}: it is empty; leave the filter out or give it a value"
            )));
        }
        let once = |slot: &mut Option<String>| match slot.replace(value.clone()) {
            None => Ok(()),
            Some(_) => Err(twice(&name)),
        };
        match name.as_ref() {
            "cluster" => once(&mut request.cluster)?,
            "job" => once(&mut request.job)?,
            "user" => once(&mut request.user)?,
            "cursor" => once(&mut request.cursor)?,
            "type" => request
                .types
                .extend(value.split(',').map(|word| word.trim().to_owned())),
            "since" => moment("since", &value, &mut request.since)?,
            "until" => moment("until", &value, &mut request.until)?,
            "limit" => {
                let limit = value.parse().map_err(|_| {
                    Problem::bad_request(format!(
                        "limit: {value:?} is no number of entries; allowed: a whole number from 1"
                    ))
                })?;
                if request.limit.replace(limit).is_some() {
                    return Err(twice(&name));
                }
            }
            "order" => match value.as_str() {
                "asc" => request.descending = false,
                "desc" => request.descending = true,
                _ => {
                    return Err(Problem::bad_request(format!(
                        "order: {value:?} is no order; allowed: asc (oldest first), desc"
                    )));
                }
            },
            _ => {
                return Err(Problem::bad_request(format!(
                    "{name}: there is no such filter; allowed: {FILTERS}"
                )));
            }
        }
    }
    Ok(request)
}

fn moment(field: &'static str, text: &str, slot: &mut Option<Moment>) -> Result<(), Problem> {
    // A plus sign of an offset arrives as a space when the caller did not encode it.
    let text = text.replace(' ', "+");
    let moment = Moment::parse(field, &text).map_err(|invalid| problem(invalid.into()))?;
    match slot.replace(moment) {
        None => Ok(()),
        Some(_) => Err(twice(field)),
    }
}

fn twice(name: &str) -> Problem {
    Problem::bad_request(format!("{name}: it is given twice; allowed: once"))
}

pub(super) fn problem(error: ApiError) -> Problem {
    match error {
        ApiError::Invalid(_) => Problem::bad_request(error.to_string()),
        ApiError::Forbidden(_) => Problem::new(StatusCode::FORBIDDEN, error.to_string()),
        ApiError::NoJob { .. } => Problem::not_found(error.to_string()),
        ApiError::Store(error) => Problem::internal(&error),
    }
}

pub(super) fn entry(entry: &Entry) -> Result<Value, Problem> {
    let event = match &entry.content {
        Content::Event(event) => {
            cloudevents::to_json(event).map_err(|error| Problem::internal(&error))?
        }
        Content::Audit(audit) => audit_json(audit)?,
    };
    Ok(json!({ "seq": entry.seq, "event": event }))
}

/// An audit entry in the form of a CloudEvent, as events are.
fn audit_json(entry: &AuditEntry) -> Result<Value, Problem> {
    let data = serde_json::to_value(entry).map_err(|error| Problem::internal(&error))?;
    Ok(json!({
        "specversion": "1.0",
        "id": entry.id,
        "source": format!("/clusters/{}", entry.cluster),
        "type": format!("org.slurm-mesh.audit.{}.v1", entry.kind),
        "subject": format!("service/{}", entry.service),
        "time": time(entry.at.as_ref().and_then(from_timestamp)),
        "dataschema": AUDIT_SCHEMA,
        "datacontenttype": "application/json",
        "data": data,
    }))
}

fn run(run: &Run) -> Result<Value, Problem> {
    let timeline = run
        .timeline
        .iter()
        .map(|Recorded { seq, event }| {
            let event = cloudevents::to_json(event).map_err(|error| Problem::internal(&error))?;
            Ok(json!({ "seq": seq, "event": event }))
        })
        .collect::<Result<Vec<_>, Problem>>()?;
    let summary = &run.summary;
    Ok(json!({
        "run": run.key,
        "summary": {
            "display_id": summary.display_id,
            "name": summary.name,
            "user": summary.user,
            "account": summary.account,
            "partition": summary.partition,
            "state": summary.state,
            "submitted": time(summary.submitted),
            "started": time(summary.started),
            "ended": time(summary.ended),
            "exit_code": summary.exit_code.map(|exit| json!({ "code": exit.code, "signal": exit.signal })),
            "cost": summary.cost.as_ref().map(|cost| json!({
                "kind": cost.kind.as_str(),
                "micros": cost.amount.micros.to_string(),
                "currency": cost.amount.currency,
            })),
        },
        "timeline": timeline,
    }))
}

fn time(time: Option<DateTime<Utc>>) -> Option<String> {
    time.map(|time| time.to_rfc3339_opts(SecondsFormat::AutoSi, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_read() {
        let request =
            parse("cluster=c&type=job.*,cost.finalized&type=node.down&limit=5&order=desc&since=2h")
                .unwrap();
        assert_eq!(request.types, ["job.*", "cost.finalized", "node.down"]);
        assert_eq!((request.limit, request.descending), (Some(5), true));
        assert!(parse("since=2026-11-22T10:00:00+01:00").is_ok());
        assert!(
            parse("job=123%2B1")
                .unwrap()
                .job
                .is_some_and(|job| job == "123+1")
        );
    }

    #[test]
    fn wrong_filters_are_named() {
        let check = |query: &str, part: &str| {
            let problem = parse(query).unwrap_err();
            assert_eq!(problem.status, 400);
            assert!(problem.detail.contains(part), "{}", problem.detail);
        };
        check(
            "colour=red",
            "colour: there is no such filter; allowed: cluster",
        );
        check("limit=many", "limit: \"many\"");
        check("order=up", "order: \"up\"");
        check("since=yesterday", "since: \"yesterday\"");
        check("job=1&job=2", "job: it is given twice");
        check("user=", "user: it is empty");
    }
}
