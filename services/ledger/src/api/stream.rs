//! `/v1/events/stream`: entries as they are appended, as server-sent events.
//!
//! Filters and rights are those of `/v1/events`: each look is such a listing, after the sequence that was given last. The id of each
//! server-sent event is its sequence, so whoever is cut off goes on with `after=<id>`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::{RawQuery, State};
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use futures_util::{Stream, stream};
use mesh_runtime::api::{Caller, Problem, Showing, Shown};
use tokio::sync::watch;

use super::rest::{entry, parse, problem};
use super::{Content, Entry, EventsApi, owner};
use crate::domain::query::ListRequest;

/// How often a silent stream says that it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// A reader's place.
struct Follower<A> {
    api: Arc<A>,
    caller: Caller,
    showing: Showing,
    request: ListRequest,
    appended: watch::Receiver<u64>,
    /// Everything up to here was looked at.
    after: u64,
    waiting: VecDeque<Entry>,
}

pub(super) async fn follow<A: EventsApi>(
    State(api): State<Arc<A>>,
    caller: Caller,
    RawQuery(query): RawQuery,
) -> Result<
    (
        Extension<Shown>,
        Sse<impl Stream<Item = Result<SseEvent, Infallible>>>,
    ),
    Problem,
> {
    let (request, after) = read(query.as_deref().unwrap_or_default())?;
    let after = match after {
        Some(after) => after,
        None => api.head().await.map_err(problem)?.seq,
    };
    let appended = api.appended();
    let (shown, showing) = Shown::to(&caller).stream();
    let mut follower = Follower {
        api,
        caller,
        showing,
        request,
        appended,
        after,
        waiting: VecDeque::new(),
    };
    // The first look answers what is wrong with the question.
    follower.look().await?;
    let events = stream::unfold(follower, async |mut follower| {
        let next = follower.next().await?;
        Some((Ok(next), follower))
    });
    let events = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE));
    Ok((shown.extension(), events))
}

impl<A: EventsApi> Follower<A> {
    /// The next entry; `None` when the ledger closes or cannot be read, and the reader has to come again.
    async fn next(&mut self) -> Option<SseEvent> {
        loop {
            if let Some(found) = self.waiting.pop_front() {
                let value = entry(&found).ok()?;
                match &found.content {
                    Content::Event(event) => self.showing.row(owner(event)),
                    Content::Audit(_) => self.showing.row_about_people(),
                }
                return Some(
                    SseEvent::default()
                        .id(found.seq.to_string())
                        .data(value.to_string()),
                );
            }
            self.appended.changed().await.ok()?;
            self.look().await.ok()?;
        }
    }

    /// Takes a page of what was appended since the last look.
    async fn look(&mut self) -> Result<(), Problem> {
        loop {
            let head = *self.appended.borrow_and_update();
            let page = self
                .api
                .list_after(&self.caller, self.request.clone(), self.after)
                .await
                .map_err(problem)?;
            let more = page.next_cursor.is_some();
            let last = page.entries.last().map_or(self.after, |entry| entry.seq);
            // What the filter left out need not be looked at again.
            self.after = if more { last } else { last.max(head) };
            self.waiting.extend(page.entries);
            if more {
                // There is more than a page: look again once this one is sent.
                self.appended.mark_changed();
            }
            if more || !self.waiting.is_empty() || self.after >= head {
                return Ok(());
            }
        }
    }
}

/// The filters of a listing that make sense without an end, and `after`.
fn read(query: &str) -> Result<(ListRequest, Option<u64>), Problem> {
    let mut filters = url::form_urlencoded::Serializer::new(String::new());
    let mut after = None;
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        match name.as_ref() {
            "after" => {
                let seq = value.parse().map_err(|_| {
                    Problem::bad_request(format!(
                        "after: {value:?} is no sequence; allowed: a whole number from 0"
                    ))
                })?;
                after = Some(seq);
            }
            "until" | "order" | "cursor" | "limit" => {
                return Err(Problem::bad_request(format!(
                    "{name}: a stream has no end; allowed: cluster, type, job, user, since, after"
                )));
            }
            _ => {
                filters.append_pair(&name, &value);
            }
        }
    }
    Ok((parse(&filters.finish())?, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_takes_filters_and_a_place() {
        let (request, after) = read("type=job.*&job=123%2B1&after=7").unwrap();
        assert_eq!(
            (request.types, request.job.as_deref(), after),
            (vec!["job.*".into()], Some("123+1"), Some(7))
        );
        for query in [
            "until=2h",
            "order=desc",
            "limit=5",
            "cursor=x",
            "after=-1",
            "colour=red",
        ] {
            assert_eq!(read(query).unwrap_err().status, 400, "{query}");
        }
    }
}
