//! Whoever is shown data of other people is written into the audit, before it is shown.
//!
//! A route says in its answer what it shows: it puts a [`AuditedRead`] into the extensions. The layer of [`audited`] makes an entry of it on
//! MESH_AUDIT and waits until JetStream has it. If that takes too long the answer is refused, and with it nothing but the data of
//! others: who is shown only what is theirs never waits. A route that says nothing is taken for one that shows something.
//!
//! A query that is asked again by the same caller within a minute, or page by page, has one entry before its first answer, which covers the others;
//! if there were others, one with their counts follows at the end of the minute.
//!
//! A stream of events has an entry when it begins, and one with the counts when it ends. Nothing is written in between: an auditor who
//! follows the audit would otherwise be shown that they were shown it, for ever.

mod windows;

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as TaskContext, Poll};
use std::time::{Duration, SystemTime};

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::{Error as BodyError, Extension, Router};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use mesh_bus::Bus;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, Read};
use mesh_events::{subject, timestamp};
use prost::Message as _;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::windows::{Query, Windows};
use super::{AuthMethod, Caller, Problem, metrics};

/// Kind of these entries.
const KIND: &str = "read";
/// An answer waits no longer for its entry: as long as a disk that is busy with other things may keep JetStream from syncing.
const AUDIT_TIMEOUT: Duration = Duration::from_secs(10);
/// The entry of a stream's end is tried so long; nobody waits for it.
const STREAM_END_AUDIT_TIMEOUT: Duration = Duration::from_secs(30);
/// Entries on their way; more than that wait within the deadline.
const MAX_CONCURRENT_AUDITS: usize = 64;
/// Users in one entry.
const MAX_LISTED_USERS: usize = 100;
/// Users that are told apart.
const MAX_COUNTED_USERS: usize = 10_000;

/// What an answer shows that is not the caller's own. A route hands it over beside its answer: `(shown.extension(), Json(…))`.
#[derive(Clone, Debug)]
pub struct AuditedRead {
    own: BTreeSet<String>,
    filter: String,
    others: Others,
    stream: Option<AuditedStream>,
}

/// Counts what a stream shows while it goes on. Cheap to clone.
#[derive(Clone, Debug)]
pub struct AuditedStream {
    own: Arc<BTreeSet<String>>,
    others: Arc<Mutex<Others>>,
}

#[derive(Clone, Debug, Default)]
struct Others {
    users: BTreeSet<String>,
    rows: u64,
}

impl Others {
    /// Takes in what another answer showed.
    fn add(&mut self, other: &Self) {
        self.rows += other.rows;
        for user in &other.users {
            if self.users.len() == MAX_COUNTED_USERS {
                break;
            }
            self.users.insert(user.clone());
        }
    }

    fn row(&mut self, own: &BTreeSet<String>, owner: &str) {
        if owner.is_empty() || own.contains(owner) {
            return;
        }
        self.rows += 1;
        if self.users.len() < MAX_COUNTED_USERS && !self.users.contains(owner) {
            self.users.insert(owner.to_owned());
        }
    }
}

impl AuditedRead {
    /// Nothing yet.
    pub fn to(caller: &Caller) -> Self {
        Self {
            own: caller.users.clone(),
            filter: String::new(),
            others: Others::default(),
            stream: None,
        }
    }

    /// What is not of any person.
    pub fn nothing() -> Self {
        Self {
            own: BTreeSet::new(),
            filter: String::new(),
            others: Others::default(),
            stream: None,
        }
    }

    /// One more row (event, job, sum) with its owner's Unix user; of an empty one, it is nobody's.
    pub fn row(&mut self, owner: &str) {
        self.others.row(&self.own, owner);
    }

    /// One more row that is about people, and nobody's: an entry of the audit, a sum over everybody.
    pub fn row_about_people(&mut self) {
        self.others.rows += 1;
    }

    /// What was asked for, where the path does not say it.
    #[must_use]
    pub fn asked(mut self, filter: impl Into<String>) -> Self {
        self.filter = filter.into();
        self
    }

    /// The answer is a stream: it begins with nothing, and what it shows is counted as it goes on.
    #[must_use]
    pub fn stream(mut self) -> (Self, AuditedStream) {
        let showing = AuditedStream {
            own: Arc::new(std::mem::take(&mut self.own)),
            others: Arc::default(),
        };
        self.stream = Some(showing.clone());
        (self, showing)
    }

    /// As an answer carries it.
    pub fn extension(self) -> Extension<Self> {
        Extension(self)
    }
}

impl AuditedStream {
    /// One more row, as [`AuditedRead::row`].
    pub fn row(&self, owner: &str) {
        self.lock().row(&self.own, owner);
    }

    /// One more row, as [`AuditedRead::row_about_people`].
    pub fn row_about_people(&self) {
        self.lock().rows += 1;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Others> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes entries for one service.
#[derive(Clone)]
struct Reads {
    bus: Bus,
    cluster: Arc<str>,
    permits: Arc<Semaphore>,
    windows: Windows,
    shutdown: CancellationToken,
}

/// Routes whose answers are audited before they are given.
pub(crate) fn audited(
    routes: Router,
    bus: &Bus,
    cluster: &str,
    shutdown: &CancellationToken,
) -> Router {
    let reads = Reads {
        bus: bus.clone(),
        cluster: cluster.into(),
        permits: Arc::new(Semaphore::new(MAX_CONCURRENT_AUDITS)),
        windows: Windows::default(),
        shutdown: shutdown.clone(),
    };
    routes.layer(from_fn_with_state(reads, audit))
}

async fn audit(State(reads): State<Reads>, request: Request, next: Next) -> Response {
    let caller: Option<Caller> = request.extensions().get().cloned();
    let asked = windows::without_cursor(request.method(), request.uri());
    let mut response = next.run(request).await;
    // Who is nobody was refused; who sees only their own was shown their own.
    let Some(caller) = caller.filter(|caller| !sees_only_their_own(caller)) else {
        return response;
    };
    if !shows(&response) {
        return response;
    }
    let (others, filter, stream) = match response.extensions_mut().remove::<AuditedRead>() {
        Some(read) if read.stream.is_none() && read.others.rows == 0 => return response,
        Some(read) => (read.others, read.filter, read.stream),
        None => (Others::default(), String::new(), None),
    };
    let query = Query::of(&caller, asked, &filter);
    if stream.is_none() && reads.windows.covers(&query, &others) {
        metrics::read("covered");
        return response;
    }
    let phase = if stream.is_some() { "begin" } else { "answer" };
    let mut entry = reads.entry(&caller, phase, others);
    entry.1.filter = filter;
    let id = entry.0.clone();
    match timeout(AUDIT_TIMEOUT, reads.publish(entry)).await {
        Ok(Ok(())) => metrics::read("audited"),
        refused => {
            metrics::read("refused");
            if let Ok(Err(error)) = refused {
                tracing::warn!(error = crate::error_chain(&error), "audit a read");
            }
            return Problem::unavailable(
                "data of others is shown only if it can be written into the audit, and NATS does not take that now; what is yours can be read: filter for it",
                5,
            )
            .into_response();
        }
    }
    match stream {
        None => {
            reads.cover(query, caller, id);
            response
        }
        Some(showing) => response.map(|body| {
            Body::new(Counted {
                body,
                _end: End {
                    reads,
                    caller,
                    showing,
                    begun: id,
                },
            })
        }),
    }
}

fn sees_only_their_own(caller: &Caller) -> bool {
    !caller.sees_everything() && caller.accounts.is_empty()
}

/// Errors show nothing. Those of gRPC have the status 200 and another one beside it.
fn shows(response: &Response) -> bool {
    let grpc = response.headers().get("grpc-status");
    response.status().is_success() && grpc.is_none_or(|status| status == "0")
}

impl Reads {
    /// From now on the entry covers what the caller asks with the same query. What that was is told at the end.
    fn cover(&self, query: Query, caller: Caller, begun: String) {
        if !self.windows.open(&query) {
            return;
        }
        let reads = self.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(windows::LENGTH) => {}
                () = reads.shutdown.cancelled() => {}
            }
            let Some(more) = reads.windows.close(&query) else {
                return;
            };
            let mut entry = reads.entry(&caller, "end", more.others);
            entry.1.begun = begun;
            entry.1.pages = more.answers;
            entry.1.filter = query.into_filter();
            reads.publish_end(entry).await;
        });
    }

    fn entry(&self, caller: &Caller, phase: &str, others: Others) -> (String, Read) {
        let (issuer, subject) = match &caller.auth_method {
            AuthMethod::Oidc { issuer, subject } => (issuer.clone(), subject.clone()),
            AuthMethod::Peer { .. } | AuthMethod::Token => Default::default(),
        };
        let count = others.users.len();
        let read = Read {
            reader: caller.name.clone(),
            reader_users: caller.users.iter().cloned().collect(),
            issuer,
            subject,
            role: caller.role_name().to_owned(),
            authentication: caller.auth_method.as_str().to_owned(),
            request: caller.request.clone(),
            filter: String::new(),
            whose: others.users.into_iter().take(MAX_LISTED_USERS).collect(),
            whose_count: u64::try_from(count).unwrap_or(u64::MAX),
            rows: others.rows,
            phase: phase.to_owned(),
            begun: String::new(),
            replay_id: String::new(),
            pages: 0,
        };
        (uuid::Uuid::new_v4().to_string(), read)
    }

    /// Nobody waits for it any more.
    async fn publish_end(&self, entry: (String, Read)) {
        match timeout(STREAM_END_AUDIT_TIMEOUT, self.publish(entry)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(
                    error = crate::error_chain(&error),
                    "audit the end of a read"
                );
            }
            Err(_) => tracing::warn!("audit the end of a read: NATS does not answer"),
        }
    }

    async fn publish(&self, (id, read): (String, Read)) -> Result<(), mesh_bus::Error> {
        let entry = AuditEntry {
            id: id.clone(),
            cluster: self.cluster.to_string(),
            kind: KIND.to_owned(),
            at: Some(timestamp(SystemTime::now().into())),
            service: self.bus.role().to_owned(),
            act: Some(Act::Read(read)),
        };
        // Never closed.
        let _permit = self.permits.acquire().await;
        self.bus
            .publish_raw(
                subject::audit(&self.cluster, KIND),
                &id,
                entry.encode_to_vec(),
            )
            .await
            .map(drop)
    }
}

/// The body of a stream, which tells when it ends, however that comes about.
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
    reads: Reads,
    caller: Caller,
    showing: AuditedStream,
    begun: String,
}

impl Drop for End {
    fn drop(&mut self) {
        let others = std::mem::take(&mut *self.showing.lock());
        let mut entry = self.reads.entry(&self.caller, "end", others);
        entry.1.begun = std::mem::take(&mut self.begun);
        let reads = self.reads.clone();
        // Outside of a runtime nothing is served any more; the entry of the beginning is there.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { reads.publish_end(entry).await });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Role;

    #[test]
    fn what_is_ones_own_or_nobodys_is_not_counted() {
        let carol = Caller::peer("carol", 1, Role::User).coordinating("c", "physics");
        let mut read = AuditedRead::to(&carol);
        for owner in ["carol", "", "carol"] {
            read.row(owner);
        }
        assert_eq!(read.others.rows, 0);
        for owner in ["bob", "alice", "bob"] {
            read.row(owner);
        }
        read.row_about_people();
        assert_eq!(read.others.rows, 4);
        assert_eq!(
            read.others.users,
            ["alice", "bob"].map(str::to_owned).into()
        );
        let (_, showing) = AuditedRead::to(&carol).stream();
        showing.row("carol");
        showing.clone().row("bob");
        assert_eq!(showing.lock().rows, 1);
    }
}
