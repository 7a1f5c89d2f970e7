//! The Events API: one trait, and REST and gRPC as thin adapters over it.
//!
//! Who sees what: administrators and auditors see everything. A user sees what belongs to them: events of their own jobs, their costs,
//! explanations and access; a coordinator also what belongs to the account. Another's job does not exist for them, and node, capture
//! and audit entries are not shown.

mod grpc;
mod rest;
mod stream;

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use chrono::Utc;
use mesh_events::Event;
use mesh_events::proto::mesh::audit::v1::AuditEntry;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_runtime::api::{Caller, Shown};
use prost::Message as _;
use tokio::sync::watch;

use crate::adapters::{Row, Store};
use crate::domain::append::Head;
use crate::domain::fact::AUDIT;
use crate::domain::query::{Invalid, ListRequest, job_ref};
use crate::domain::story::{Recorded, Run, tell};
use crate::error::Error;

/// Queries over the recorded history.
pub trait EventsApi: Send + Sync + 'static {
    /// Lists entries in the order of the ledger.
    fn list(
        &self,
        caller: &Caller,
        request: ListRequest,
    ) -> impl Future<Output = Result<Page, ApiError>> + Send;

    /// Lists entries after a sequence, in the order of the ledger.
    fn list_after(
        &self,
        caller: &Caller,
        request: ListRequest,
        after: u64,
    ) -> impl Future<Output = Result<Page, ApiError>> + Send;

    /// Sequence of the last entry, changing as entries are appended.
    fn appended(&self) -> watch::Receiver<u64>;

    /// Tells a job's story.
    fn job(
        &self,
        caller: &Caller,
        cluster: &str,
        job: &str,
    ) -> impl Future<Output = Result<Story, ApiError>> + Send;

    /// End of the chain. It tells nothing about anybody: everyone may note it and compare later.
    fn head(&self) -> impl Future<Output = Result<Head, ApiError>> + Send;
}

/// A page of entries.
#[derive(Clone, Debug)]
pub struct Page {
    /// Entries of this page.
    pub entries: Vec<Entry>,
    /// Cursor of the next page; `None` when this was the last.
    pub next_cursor: Option<String>,
}

/// An entry of the ledger.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Sequence.
    pub seq: u64,
    /// What is recorded.
    pub content: Content,
}

/// What an entry records.
#[derive(Clone, Debug)]
pub enum Content {
    /// An event of the public bus.
    Event(Box<Event>),
    /// Something the mesh itself did.
    Audit(Box<AuditEntry>),
}

/// A job's story.
#[derive(Clone, Debug)]
pub struct Story {
    /// Runs, oldest first.
    pub runs: Vec<Run>,
    /// True if there is more than one answer tells; `/v1/events?job=` has all of it.
    pub truncated: bool,
}

/// Why a question is not answered.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The question is wrong.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The caller may not ask this.
    #[error("{0}")]
    Forbidden(&'static str),
    /// There is no such job, or it is another's.
    #[error("no events of job {job} on cluster {cluster}, or it is not yours")]
    NoJob {
        /// Cluster.
        cluster: String,
        /// Job as it was asked for.
        job: String,
    },
    /// The ledger could not be read.
    #[error(transparent)]
    Store(#[from] Error),
}

/// The Events API over a store.
#[derive(Debug)]
pub struct Events {
    store: Store,
    max_page: u32,
    max_story: u32,
}

impl Events {
    /// Answers from a store, within limits.
    pub const fn new(store: Store, max_page: u32, max_story: u32) -> Self {
        Self {
            store,
            max_page,
            max_story,
        }
    }
}

impl EventsApi for Events {
    async fn list(&self, caller: &Caller, request: ListRequest) -> Result<Page, ApiError> {
        if let Some(user) = &request.user
            && !caller.may_ask_about(user)
        {
            return Err(ApiError::Forbidden(
                "user: you see your own events only; leave the filter out or ask an administrator",
            ));
        }
        let query = request.check(Utc::now(), self.max_page)?;
        let mut rows = self.store.list(&query, &caller.sight()).await?;
        let more = rows.len() > query.limit as usize;
        rows.truncate(query.limit as usize);
        let next_cursor = rows
            .last()
            .filter(|_| more)
            .map(|row| query.cursor_after(row.seq));
        let entries = rows.into_iter().map(read).collect::<Result<_, _>>()?;
        Ok(Page {
            entries,
            next_cursor,
        })
    }

    async fn list_after(
        &self,
        caller: &Caller,
        mut request: ListRequest,
        after: u64,
    ) -> Result<Page, ApiError> {
        let query = request.check(Utc::now(), self.max_page)?;
        request.limit = Some(self.max_page);
        request.cursor = Some(query.cursor_after(after.cast_signed()));
        self.list(caller, request).await
    }

    fn appended(&self) -> watch::Receiver<u64> {
        self.store.appended()
    }

    async fn job(&self, caller: &Caller, cluster: &str, job: &str) -> Result<Story, ApiError> {
        let parsed = job_ref(job)?;
        let mut rows = self
            .store
            .story(cluster, &parsed, &caller.sight(), self.max_story + 1)
            .await?;
        if rows.is_empty() {
            return Err(ApiError::NoJob {
                cluster: cluster.to_owned(),
                job: job.to_owned(),
            });
        }
        let truncated = rows.len() > self.max_story as usize;
        rows.truncate(self.max_story as usize);
        let mut events = Vec::with_capacity(rows.len());
        for row in rows {
            let entry = read(row)?;
            match entry.content {
                Content::Event(event) => events.push(Recorded {
                    seq: entry.seq,
                    event: *event,
                }),
                // An audit entry has no job.
                Content::Audit(_) => {}
            }
        }
        Ok(Story {
            runs: tell(events),
            truncated,
        })
    }

    async fn head(&self) -> Result<Head, ApiError> {
        Ok(self.store.head().await?)
    }
}

fn read(row: Row) -> Result<Entry, Error> {
    let corrupt = || Error::Corrupt { seq: row.seq };
    let content = if row.category == AUDIT {
        let entry = AuditEntry::decode(row.body.as_slice()).map_err(|_| corrupt())?;
        Content::Audit(Box::new(entry))
    } else {
        let event = Event::from_bytes(&row.body).map_err(|_| corrupt())?;
        Content::Event(Box::new(event))
    };
    Ok(Entry {
        seq: row.seq.unsigned_abs(),
        content,
    })
}

/// What an answer shows, for the audit.
fn shown<'a>(caller: &Caller, contents: impl IntoIterator<Item = &'a Content>) -> Shown {
    let mut shown = Shown::to(caller);
    for content in contents {
        match content {
            Content::Event(event) => shown.row(owner(event)),
            // It says who did something.
            Content::Audit(_) => shown.row_about_people(),
        }
    }
    shown
}

/// The Unix user an event belongs to; empty if it is nobody's.
fn owner(event: &Event) -> &str {
    match (&event.payload, &event.owner) {
        (Some(Payload::User(user)), _) => &user.user,
        (_, Some(owner)) => &owner.user,
        (_, None) => "",
    }
}

/// REST and gRPC routes of an API.
pub fn router<A: EventsApi>(api: Arc<A>) -> Router {
    rest::router(Arc::clone(&api)).merge(grpc::router(api))
}
