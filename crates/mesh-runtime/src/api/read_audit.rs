//! Audit of reads: every access to other people's data is recorded before the data is sent.
//!
//! A route puts an [`AuditedRead`] into the extensions of its response. The layer of [`audited`] publishes an entry on MESH_AUDIT and waits
//! until JetStream has stored it. If that takes too long, the response is refused. Callers that see only their own data never wait. A
//! response without an [`AuditedRead`] counts as one with data of others.
//!
//! A query repeated by the same caller within a minute, or page by page, has one entry at the end of the minute, with the counts of all
//! its responses. Each response waits until its counts are in the bucket `mesh_reads`, from where the entry is published, also by the next
//! process if this one is killed.
//!
//! An event stream has an entry when it begins, and one with the counts when it ends. There are none in between: an auditor who follows the
//! audit would receive entries about their own reading without end.

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
use mesh_bus::{Bucket, Bus};
use mesh_events::catalogue::BUCKET_READS;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, Read};
use mesh_events::{from_timestamp, subject, timestamp};
use prost::Message as _;
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::windows::{AuditWindows, Query, Window};
use super::{AuthMethod, Caller, Problem, metrics};

/// Kind of these entries.
const KIND: &str = "read";
/// Longest wait of a response for its entry: a disk that is busy with other work may keep JetStream from syncing this long.
const AUDIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Deadline of an entry for which no response waits: that of a query at the end of its minute, and that of a stream at its end.
const END_AUDIT_TIMEOUT: Duration = Duration::from_secs(30);
/// How often entries are looked up that were not published at the end of their minute.
const LEFT_OVER_INTERVAL: Duration = Duration::from_secs(15);
/// Limit of entries in flight; others wait within the deadline.
const MAX_CONCURRENT_AUDITS: usize = 64;
/// Users in one entry.
const MAX_LISTED_USERS: usize = 100;
/// Limit of distinct users that are counted.
const MAX_COUNTED_USERS: usize = 10_000;

/// The data of others in a response. A route returns it beside its body: `(shown.extension(), Json(…))`.
#[derive(Clone, Debug)]
pub struct AuditedRead {
    own: BTreeSet<String>,
    filter: String,
    others: DataOfOthers,
    stream: Option<AuditedStream>,
}

/// Counts the rows of a stream while it runs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct AuditedStream {
    own: Arc<BTreeSet<String>>,
    others: Arc<Mutex<DataOfOthers>>,
}

#[derive(Clone, Debug, Default)]
struct DataOfOthers {
    users: BTreeSet<String>,
    rows: u64,
}

impl DataOfOthers {
    /// Adds the counts of another response.
    fn add(&mut self, other: &Self) {
        self.rows += other.rows;
        for user in &other.users {
            if self.users.len() == MAX_COUNTED_USERS {
                break;
            }
            self.users.insert(user.clone());
        }
    }

    fn put(self, read: &mut Read) {
        read.rows = self.rows;
        read.whose_count = u64::try_from(self.users.len()).unwrap_or(u64::MAX);
        read.whose = self.users.into_iter().take(MAX_LISTED_USERS).collect();
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
    /// An empty record for a caller.
    pub fn to(caller: &Caller) -> Self {
        Self {
            own: caller.users.clone(),
            filter: String::new(),
            others: DataOfOthers::default(),
            stream: None,
        }
    }

    /// For a response without personal data.
    pub fn nothing() -> Self {
        Self {
            own: BTreeSet::new(),
            filter: String::new(),
            others: DataOfOthers::default(),
            stream: None,
        }
    }

    /// Counts a row (event, job, sum) by its owner's Unix user. A row without an owner is not counted.
    pub fn row(&mut self, owner: &str) {
        self.others.row(&self.own, owner);
    }

    /// Counts a row about people that has no single owner: an audit entry, a sum over all users.
    pub fn row_about_people(&mut self) {
        self.others.rows += 1;
    }

    /// Adds the filter of the query, where the path does not contain it.
    #[must_use]
    pub fn asked(mut self, filter: impl Into<String>) -> Self {
        self.filter = filter.into();
        self
    }

    /// Marks the response as a stream, whose rows are counted while it runs.
    #[must_use]
    pub fn stream(mut self) -> (Self, AuditedStream) {
        let showing = AuditedStream {
            own: Arc::new(std::mem::take(&mut self.own)),
            others: Arc::default(),
        };
        self.stream = Some(showing.clone());
        (self, showing)
    }

    /// Wraps it for the extensions of a response.
    pub fn extension(self) -> Extension<Self> {
        Extension(self)
    }
}

impl AuditedStream {
    /// Counts a row, as [`AuditedRead::row`].
    pub fn row(&self, owner: &str) {
        self.lock().row(&self.own, owner);
    }

    /// Counts a row, as [`AuditedRead::row_about_people`].
    pub fn row_about_people(&self) {
        self.lock().rows += 1;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, DataOfOthers> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Publishes entries for one service.
#[derive(Clone)]
struct Reads {
    bus: Bus,
    cluster: Arc<str>,
    permits: Arc<Semaphore>,
    windows: AuditWindows,
    bucket: Arc<OnceCell<Bucket>>,
    shutdown: CancellationToken,
}

/// The entry of a query, apart from what was shown.
struct ReadEntry {
    /// Beginning of its keys: cluster and service.
    prefix: String,
    entry: AuditEntry,
    read: Read,
}

impl ReadEntry {
    fn key(&self, slot: u16) -> String {
        format!("{}.{slot}", self.prefix)
    }

    fn with(&self, pages: u64, others: &DataOfOthers) -> AuditEntry {
        let mut read = self.read.clone();
        read.pages = pages;
        others.clone().put(&mut read);
        AuditEntry {
            act: Some(Act::Read(read)),
            ..self.entry.clone()
        }
    }
}

/// Adds the audit to routes.
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
        windows: AuditWindows::default(),
        bucket: Arc::default(),
        shutdown: shutdown.clone(),
    };
    tokio::spawn(reads.clone().publish_left_over());
    routes.layer(from_fn_with_state(reads, audit))
}

async fn audit(State(reads): State<Reads>, request: Request, next: Next) -> Response {
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
                5,
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

impl Reads {
    /// Records a response in the entry of its query.
    async fn answered(
        &self,
        caller: &Caller,
        asked: String,
        filter: String,
        others: DataOfOthers,
    ) -> Result<(), mesh_bus::Error> {
        let query = Query::of(caller, asked, &filter);
        let bucket = self.bucket().await?;
        loop {
            let window = self.windows.of(&query, || {
                let none = DataOfOthers::default();
                self.read_entry(self.entry(caller, "answer", filter.clone(), none))
            });
            let counted = window.count(bucket, &query, &others).await;
            if !matches!(
                counted,
                Ok(windows::Counted::First | windows::Counted::Further)
            ) {
                self.windows.remove(&query, &window);
            }
            match counted? {
                windows::Counted::First => {
                    metrics::read("audited");
                    let reads = self.clone();
                    tokio::spawn(async move { reads.end_of_minute(&query, &window).await });
                    return Ok(());
                }
                windows::Counted::Further => {
                    metrics::read("covered");
                    return Ok(());
                }
                windows::Counted::Ended => {}
                windows::Counted::Full => {
                    let (id, mut read) = self.entry(caller, "answer", filter, others);
                    read.pages = 1;
                    self.publish((id, read)).await?;
                    metrics::read("audited");
                    return Ok(());
                }
            }
        }
    }

    /// Publishes the entry of a stream that begins. Returns its id.
    async fn begun(
        &self,
        caller: &Caller,
        filter: String,
        others: DataOfOthers,
    ) -> Result<String, mesh_bus::Error> {
        let entry = self.entry(caller, "begin", filter, others);
        let id = entry.0.clone();
        self.publish(entry).await?;
        metrics::read("audited");
        Ok(id)
    }

    async fn bucket(&self) -> Result<&Bucket, mesh_bus::Error> {
        let open = || self.bus.bucket(BUCKET_READS);
        self.bucket.get_or_try_init(open).await
    }

    /// Publishes the entry of a query at the end of its minute, or when the service stops.
    async fn end_of_minute(&self, query: &Query, window: &Arc<Window>) {
        tokio::select! {
            () = tokio::time::sleep(windows::LENGTH) => {}
            () = self.shutdown.cancelled() => {}
        }
        self.windows.remove(query, window);
        let Some(entry) = window.end().await else {
            return;
        };
        if self.publish_end(&entry).await
            && let Ok(bucket) = self.bucket().await
        {
            window.forget(bucket).await;
        }
    }

    /// Publishes the entries that a killed process left, or that NATS did not take at the end of their minute.
    async fn publish_left_over(self) {
        loop {
            if let Err(error) = self.publish_ended().await {
                tracing::debug!(error = crate::error_chain(&error), "look for ended reads");
            }
            tokio::select! {
                () = tokio::time::sleep(LEFT_OVER_INTERVAL) => {}
                () = self.shutdown.cancelled() => return,
            }
        }
    }

    async fn publish_ended(&self) -> Result<(), mesh_bus::Error> {
        let bucket = self.bucket().await?;
        for stored in bucket.load(&self.prefix()).await? {
            let Ok(entry) = AuditEntry::decode(stored.value) else {
                tracing::error!(key = stored.key, "an audited read cannot be decoded");
                continue;
            };
            let begun = entry.at.as_ref().and_then(from_timestamp);
            let age = begun.and_then(|begun| SystemTime::now().duration_since(begun.into()).ok());
            // Its process may still count for it. A time in the future is of a clock that was set back.
            if age.is_some_and(|age| age < windows::LENGTH + LEFT_OVER_INTERVAL) {
                continue;
            }
            self.publish_entry(&entry).await?;
            windows::remove(bucket, &stored.key, stored.revision).await;
        }
        Ok(())
    }

    /// Beginning of this service's keys.
    fn prefix(&self) -> String {
        format!("{}.{}", self.cluster, self.bus.role())
    }

    fn read_entry(&self, (id, read): (String, Read)) -> ReadEntry {
        ReadEntry {
            prefix: self.prefix(),
            entry: self.audit_entry(id, None),
            read,
        }
    }

    fn audit_entry(&self, id: String, act: Option<Act>) -> AuditEntry {
        AuditEntry {
            id,
            cluster: self.cluster.to_string(),
            kind: KIND.to_owned(),
            at: Some(timestamp(SystemTime::now().into())),
            service: self.bus.role().to_owned(),
            act,
        }
    }

    fn entry(
        &self,
        caller: &Caller,
        phase: &str,
        filter: String,
        others: DataOfOthers,
    ) -> (String, Read) {
        let (issuer, subject) = match &caller.auth_method {
            AuthMethod::Oidc { issuer, subject } => (issuer.clone(), subject.clone()),
            AuthMethod::Peer { .. } | AuthMethod::Token => Default::default(),
        };
        let mut read = Read {
            reader: caller.name.clone(),
            reader_users: caller.users.iter().cloned().collect(),
            issuer,
            subject,
            role: caller.role_name().to_owned(),
            authentication: caller.auth_method.as_str().to_owned(),
            request: caller.request.clone(),
            filter,
            phase: phase.to_owned(),
            ..Read::default()
        };
        others.put(&mut read);
        (uuid::Uuid::new_v4().to_string(), read)
    }

    /// Publishes an entry for which no response waits. False if NATS does not store it.
    async fn publish_end(&self, entry: &AuditEntry) -> bool {
        match timeout(END_AUDIT_TIMEOUT, self.publish_entry(entry)).await {
            Ok(Ok(())) => return true,
            Ok(Err(error)) => {
                tracing::warn!(
                    error = crate::error_chain(&error),
                    "end of read not audited"
                );
            }
            Err(_) => tracing::warn!("end of read not audited: NATS does not answer"),
        }
        false
    }

    async fn publish(&self, (id, read): (String, Read)) -> Result<(), mesh_bus::Error> {
        let entry = self.audit_entry(id, Some(Act::Read(read)));
        self.publish_entry(&entry).await
    }

    async fn publish_entry(&self, entry: &AuditEntry) -> Result<(), mesh_bus::Error> {
        // The semaphore is never closed.
        let _permit = self.permits.acquire().await;
        self.bus
            .publish_raw(
                subject::audit(&self.cluster, KIND),
                &entry.id,
                entry.encode_to_vec(),
            )
            .await
            .map(drop)
    }
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
    reads: Reads,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Role;

    #[test]
    fn own_and_ownerless_rows_are_not_counted() {
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
