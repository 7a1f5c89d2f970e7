//! `/v1/events/stream`: entries as they are appended, as server-sent events.
//!
//! Filters and permissions are those of `/v1/events`. The id of each server-sent event is its
//! sequence. A disconnected client continues with `after=<id>`. Browsers and other clients of
//! server-sent events send `Last-Event-ID` automatically.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::{RawQuery, State};
use axum::http::HeaderMap;
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use futures_util::{Stream, stream};
use mesh_runtime::api::{AuditedRead, Caller, Problem};

use super::fields::Fields;
use super::follow::Follower;
use super::params::{self, Params};
use super::rest::problem;
use super::{Entry, EventsApi, count, json, responses};
use crate::domain::filter::Filter;
use crate::domain::query::ListRequest;

/// Interval of keep-alive comments on an idle stream.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Time after which a client of server-sent events reconnects.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// Streams entries as server-sent events: recorded ones after a sequence, then new ones.
///
/// The id of each server-sent event is the sequence of its entry. `until` and `to_seq` are not accepted.
#[utoipa::path(
    get, path = "/v1/events/stream", operation_id = "streamEvents", tag = "events",
    params(
        Filter,
        ("category" = Option<String>, Query, description = params::CATEGORY),
        ("after" = Option<u64>, Query, description = "Starts after this ledger sequence; 0 for the whole history. Default: only new entries"),
        ("fields" = Option<String>, Query, description = params::FIELDS),
        ("Last-Event-ID" = Option<u64>, Header, description = "Same as `after`, and takes precedence over it. Sent by clients of server-sent events when they reconnect"),
    ),
    responses(
        (status = 200, description = "An endless stream; `data` of each server-sent event is an entry", content_type = "text/event-stream", body = String),
        (status = 400, response = responses::BadRequest), (status = 401, response = responses::Unauthorized), (status = 403, response = responses::Forbidden),
        (status = 503, response = responses::Unavailable),
    )
)]
pub(super) async fn follow<A: EventsApi>(
    State(api): State<Arc<A>>,
    caller: Caller,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> Result<
    (
        Extension<AuditedRead>,
        Sse<impl Stream<Item = Result<SseEvent, Infallible>>>,
    ),
    Problem,
> {
    let StreamRequest {
        request,
        fields,
        after,
    } = read(query.as_deref())?;
    let after = last_event_id(&headers)?.or(after);
    let (audited_read, counts) = AuditedRead::to(&caller).stream();
    let follower = Follower::begin(api, caller, request, after)
        .await
        .map_err(problem)?;
    let first = stream::iter([Ok(SseEvent::default().retry(RECONNECT_DELAY))]);
    let events = stream::unfold(
        (follower, fields, counts),
        async |(mut follower, fields, counts)| {
            // An unreadable ledger ends the stream; the client reconnects at its position.
            let found = follower.next().await?.ok()?;
            let event = render(&found, fields.as_ref()).ok()?;
            count(&counts, &found.content);
            Some((Ok(event), (follower, fields, counts)))
        },
    );
    let events = futures_util::StreamExt::chain(first, events);
    let events = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    Ok((audited_read.extension(), events))
}

fn render(found: &Entry, fields: Option<&Fields>) -> Result<SseEvent, Problem> {
    let value = json::chosen(found, fields)?;
    Ok(SseEvent::default()
        .id(found.seq.to_string())
        .data(value.to_string()))
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(value) = headers.get("last-event-id") else {
        return Ok(None);
    };
    let seq = value.to_str().ok().and_then(|text| text.parse().ok());
    seq.map(Some).ok_or_else(|| {
        Problem::bad_request(
            "Last-Event-ID: not a sequence; allowed: the id of an event of this stream",
        )
    })
}

struct StreamRequest {
    request: ListRequest,
    fields: Option<Fields>,
    after: Option<u64>,
}

/// Parses the filters of a listing that make sense without an end.
fn read(query: Option<&str>) -> Result<StreamRequest, Problem> {
    let mut params = Params::of(query)?;
    for name in ["until", "to_seq"] {
        if params.take(name).is_some() {
            return Err(Problem::bad_request(format!(
                "{name}: a stream has no end; omit it, or use /v1/events"
            )));
        }
    }
    Ok(StreamRequest {
        fields: params.fields()?,
        after: params.number("after")?,
        request: ListRequest {
            filter: params.filter("after, fields")?,
            ..ListRequest::default()
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_takes_filters_and_a_place() {
        let asked = read(Some("type=job.*&job=123%2B1&after=7")).unwrap();
        let filter = asked.request.filter;
        assert_eq!(
            (filter.types, filter.job.as_deref(), asked.after),
            (vec!["job.*".into()], Some("123+1"), Some(7))
        );
        for query in [
            "until=2h",
            "to_seq=5",
            "order=desc",
            "limit=5",
            "cursor=x",
            "after=-1",
            "colour=red",
        ] {
            assert_eq!(read(Some(query)).err().unwrap().status, 400, "{query}");
        }
    }
}
