//! The layer of routes that records what each response shows of others, before it is sent.

use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::{Error as BodyError, Router};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use mesh_bus::Bus;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::publisher::ReadAuditPublisher;
use super::{AuditedRead, AuditedStream, DataOfOthers, windows};
use crate::api::{Caller, Problem, metrics};

/// Longest wait of a response for its entry: a disk that is busy with other work may keep JetStream from syncing this long.
const AUDIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Adds the audit to routes.
pub(crate) fn audited(
    routes: Router,
    bus: &Bus,
    cluster: &str,
    shutdown: &CancellationToken,
) -> Router {
    let reads = ReadAuditPublisher::new(bus, cluster, shutdown);
    tokio::spawn(reads.clone().publish_left_over());
    routes.layer(from_fn_with_state(reads, audit))
}

async fn audit(State(reads): State<ReadAuditPublisher>, request: Request, next: Next) -> Response {
    let caller: Option<Caller> = request.extensions().get().cloned();
    let asked = windows::without_cursor(request.method(), request.uri());
    let mut response = next.run(request).await;
    // Without a caller the request was refused; a caller limited to their own data needs no audit.
    let Some(caller) = caller.filter(|caller| !sees_only_their_own(caller)) else {
        return response;
    };
    if !has_data(&response) {
        return response;
    }
    let (others, filter, stream) = match response.extensions_mut().remove::<AuditedRead>() {
        Some(read) if read.stream.is_none() && read.others.rows == 0 => return response,
        Some(read) => (read.others, read.filter, read.stream),
        None => (DataOfOthers::default(), String::new(), None),
    };
    let recorded = async {
        match &stream {
            None => {
                let answered = reads.answered(&caller, asked, filter, others).await;
                answered.map(|()| String::new())
            }
            Some(_) => reads.begun(&caller, filter, others).await,
        }
    };
    let begun = match timeout(AUDIT_TIMEOUT, recorded).await {
        Ok(Ok(id)) => id,
        refused => {
            metrics::read("refused");
            if let Ok(Err(error)) = refused {
                tracing::warn!(error = crate::error_chain(&error), "read not audited");
            }
            return Problem::unavailable(
                "data of other users is returned only if the read is audited, and NATS does not store audit entries now; filter for your own data, or retry later",
            )
            .into_response();
        }
    };
    match stream {
        None => response,
        Some(showing) => response.map(|body| {
            Body::new(Counted {
                body,
                _end: End {
                    reads,
                    caller,
                    showing,
                    begun,
                },
            })
        }),
    }
}

fn sees_only_their_own(caller: &Caller) -> bool {
    !caller.sees_everything() && caller.accounts.is_empty()
}

/// Errors show no data. gRPC errors have status 200 and their own status in a header.
fn has_data(response: &Response) -> bool {
    let grpc = response.headers().get("grpc-status");
    response.status().is_success() && grpc.is_none_or(|status| status == "0")
}

/// The body of a stream; publishes the final entry when dropped.
struct Counted {
    body: Body,
    _end: End,
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

struct End {
    reads: ReadAuditPublisher,
    caller: Caller,
    showing: AuditedStream,
    begun: String,
}

impl Drop for End {
    fn drop(&mut self) {
        let others = std::mem::take(&mut *self.showing.lock());
        let reads = self.reads.clone();
        let (id, mut read) = reads.entry(&self.caller, "end", String::new(), others);
        read.begun = std::mem::take(&mut self.begun);
        let entry = reads.audit_entry(id, Some(Act::Read(read)));
        // Outside of a runtime the server is gone; the entry of the beginning exists.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { reads.publish_end(&entry).await });
        }
    }
}
