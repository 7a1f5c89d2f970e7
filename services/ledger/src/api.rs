//! The Events API: one trait, with REST and gRPC as thin adapters.
//!
//! Visibility: administrators and auditors see everything. Users see events of their own jobs, and
//! their own costs, explanations and access. Coordinators also see what belongs to their account. A
//! job of another user is reported as nonexistent. Node, capture and audit entries are not shown to
//! users.

mod csv;
mod export;
mod fields;
mod follow;
mod grpc;
mod json;
mod kpis;
pub mod openapi;
mod pages;
mod params;
mod proof;
mod replay;
mod responses;
mod rest;
mod routes;
mod stats;
mod stream;
mod unavailable;

pub use proof::{Proofs, export_router, router as proof_router};
pub use replay::{Replays, router as replay_router};

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use chrono::{DateTime, SecondsFormat, Utc};
use mesh_events::Event;
use mesh_events::proto::mesh::audit::v1::AuditEntry;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_runtime::api::{AuditedRead, AuditedStream, Caller};
use prost::Message as _;
use tokio::sync::watch;

use crate::adapters::{EntryRow, Store};
use crate::domain::append::Head;
use crate::domain::filter::{Filter, InvalidFilter, job_ref};
use crate::domain::job_history::{
    NodeState, RecordedEvent, Run, add_node_events, in_order, job_runs, node_state, node_windows,
};
use crate::domain::node_history::{BootStats, NodeStep, boot_stats, node_steps};
use crate::domain::query::ListRequest;
use crate::domain::record::AUDIT;
use crate::domain::stats::{self as stats_domain, Group};
use crate::error::Error;

/// Queries over the recorded history.
pub trait EventsApi: Send + Sync + 'static {
    /// Lists entries in ledger order.
    fn list(
        &self,
        caller: &Caller,
        request: ListRequest,
    ) -> impl Future<Output = Result<EventPage, ApiError>> + Send;

    /// Lists entries after a sequence, in ledger order.
    fn list_after(
        &self,
        caller: &Caller,
        request: ListRequest,
        after: u64,
    ) -> impl Future<Output = Result<EventPage, ApiError>> + Send;

    /// Watches the sequence of the last entry.
    fn appended(&self) -> watch::Receiver<u64>;

    /// Returns the history of a job, at the time `at` if given.
    fn job(
        &self,
        caller: &Caller,
        cluster: &str,
        job: &str,
        at: Option<DateTime<Utc>>,
    ) -> impl Future<Output = Result<JobHistory, ApiError>> + Send;

    /// Returns state and timeline of a node, at the time `at` if given.
    fn node(
        &self,
        caller: &Caller,
        cluster: &str,
        node: &str,
        at: Option<DateTime<Utc>>,
    ) -> impl Future<Output = Result<NodeTimeline, ApiError>> + Send;

    /// Aggregates the selected entries, with one row per group.
    fn stats(
        &self,
        caller: &Caller,
        filter: Filter,
        by: &[Group],
    ) -> impl Future<Output = Result<Vec<stats_domain::StatsRow>, ApiError>> + Send;

    /// Returns the head of the chain. It contains no personal data: every caller may store it and
    /// compare it later.
    fn head(&self) -> impl Future<Output = Result<Head, ApiError>> + Send;
}

/// A page of entries.
#[derive(Clone, Debug)]
pub struct EventPage {
    /// Entries in ledger order.
    pub entries: Vec<Entry>,
    /// Cursor of the next page, `None` on the last page.
    pub next_cursor: Option<String>,
}

/// An entry of the ledger.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Sequence in the ledger.
    pub seq: u64,
    /// Recorded event or audit entry.
    pub content: EntryContent,
}

/// Content of an entry.
#[derive(Clone, Debug)]
pub enum EntryContent {
    /// An event of the public bus.
    Event(Box<Event>),
    /// A record of an action of the mesh itself.
    Audit(Box<AuditEntry>),
}

/// The history of a job.
#[derive(Clone, Debug)]
pub struct JobHistory {
    /// Runs, oldest first.
    pub runs: Vec<Run>,
    /// True if truncated; `/v1/events?job=` returns all events.
    pub truncated: bool,
}

/// State and timeline of a node.
#[derive(Clone, Debug)]
pub struct NodeTimeline {
    /// Current state, or state at the requested time.
    pub state: NodeState,
    /// Its stays in the life-cycle classes.
    pub steps: Vec<NodeStep>,
    /// Its boots.
    pub boots: BootStats,
    /// Newest events, in chronological order.
    pub timeline: Vec<RecordedEvent>,
    /// True if the timeline is truncated.
    pub truncated: bool,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The filter is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidFilter),
    /// The caller lacks the permission.
    #[error("{0}")]
    Forbidden(&'static str),
    /// The job does not exist, or belongs to another user.
    #[error("no events of job {job} on cluster {cluster}{}, or you may not see it", up_to(.at))]
    NoJob {
        /// Cluster.
        cluster: String,
        /// Job as requested.
        job: String,
        /// Requested time, if any.
        at: Option<DateTime<Utc>>,
    },
    /// The node has no events.
    #[error("no events of node {node} on cluster {cluster}{}", up_to(.at))]
    NoNode {
        /// Cluster.
        cluster: String,
        /// Node as requested.
        node: String,
        /// Requested time, if any.
        at: Option<DateTime<Utc>>,
    },
    /// The ledger could not be read.
    #[error(transparent)]
    Store(#[from] Error),
}

fn up_to(at: &Option<DateTime<Utc>>) -> String {
    at.map_or_else(String::new, |at| {
        format!(" up to {}", at.to_rfc3339_opts(SecondsFormat::AutoSi, true))
    })
}

/// The Events API on a store.
#[derive(Debug)]
pub struct Events {
    store: Store,
    max_page_size: u32,
    max_history_events: u32,
}

impl Events {
    /// Creates the API on a store, with its limits.
    pub const fn new(store: Store, max_page_size: u32, max_history_events: u32) -> Self {
        Self {
            store,
            max_page_size,
            max_history_events,
        }
    }
}

impl EventsApi for Events {
    async fn list(&self, caller: &Caller, request: ListRequest) -> Result<EventPage, ApiError> {
        check_identity_filter(caller, &request.filter)?;
        let query = request.check(Utc::now(), self.max_page_size)?;
        let mut rows = self.store.list(&query, &caller.visibility()).await?;
        let more = rows.len() > query.limit as usize;
        rows.truncate(query.limit as usize);
        let next_cursor = rows
            .last()
            .filter(|_| more)
            .map(|row| query.cursor_after(row.seq));
        let entries = rows.into_iter().map(read).collect::<Result<_, _>>()?;
        Ok(EventPage {
            entries,
            next_cursor,
        })
    }

    async fn list_after(
        &self,
        caller: &Caller,
        mut request: ListRequest,
        after: u64,
    ) -> Result<EventPage, ApiError> {
        let query = request.check(Utc::now(), self.max_page_size)?;
        request.limit = Some(self.max_page_size);
        request.cursor = Some(query.cursor_after(after.cast_signed()));
        self.list(caller, request).await
    }

    fn appended(&self) -> watch::Receiver<u64> {
        self.store.appended()
    }

    async fn job(
        &self,
        caller: &Caller,
        cluster: &str,
        job: &str,
        at: Option<DateTime<Utc>>,
    ) -> Result<JobHistory, ApiError> {
        let parsed = job_ref(job)?;
        let mut rows = self
            .store
            .job_history(
                cluster,
                &parsed,
                &caller.visibility(),
                at,
                self.max_history_events + 1,
            )
            .await?;
        if rows.is_empty() {
            return Err(ApiError::NoJob {
                cluster: cluster.to_owned(),
                job: job.to_owned(),
                at,
            });
        }
        let limit = self.max_history_events as usize;
        let mut truncated = rows.len() > limit;
        rows.truncate(limit);
        let left = limit - rows.len();
        let mut runs = job_runs(recorded(rows)?, at);
        if let Some(window) = node_windows(&runs) {
            let max_rows = u32::try_from(left).unwrap_or(u32::MAX).saturating_add(1);
            let mut rows = self
                .store
                .node_events(cluster, &window, at, max_rows)
                .await?;
            truncated |= rows.len() > left;
            rows.truncate(left);
            add_node_events(&mut runs, &recorded(rows)?);
        }
        Ok(JobHistory { runs, truncated })
    }

    async fn node(
        &self,
        caller: &Caller,
        cluster: &str,
        node: &str,
        at: Option<DateTime<Utc>>,
    ) -> Result<NodeTimeline, ApiError> {
        let mut rows = self
            .store
            .node(
                cluster,
                node,
                &caller.visibility(),
                at,
                self.max_history_events + 1,
            )
            .await?;
        if rows.is_empty() {
            return Err(ApiError::NoNode {
                cluster: cluster.to_owned(),
                node: node.to_owned(),
                at,
            });
        }
        let truncated = rows.len() > self.max_history_events as usize;
        rows.truncate(self.max_history_events as usize);
        let mut timeline = recorded(rows)?;
        in_order(&mut timeline);
        let steps = node_steps(&timeline);
        Ok(NodeTimeline {
            state: node_state(&timeline),
            boots: boot_stats(&steps),
            steps,
            timeline,
            truncated,
        })
    }

    async fn stats(
        &self,
        caller: &Caller,
        filter: Filter,
        by: &[Group],
    ) -> Result<Vec<stats_domain::StatsRow>, ApiError> {
        check_identity_filter(caller, &filter)?;
        let selection = filter.check(Utc::now())?;
        let sums = self
            .store
            .aggregates(&selection, &caller.visibility(), by)
            .await?;
        Ok(stats_domain::rows(sums)?)
    }

    async fn head(&self) -> Result<Head, ApiError> {
        Ok(self.store.head().await?)
    }
}

fn check_identity_filter(caller: &Caller, filter: &Filter) -> Result<(), ApiError> {
    match &filter.user {
        Some(user) if !caller.may_ask_about(user) => Err(ApiError::Forbidden(
            "user: you may see only your own events; omit the filter or ask an administrator",
        )),
        _ => Ok(()),
    }
}

/// Decodes the events of a history. Audit entries belong to no history.
fn recorded(rows: Vec<EntryRow>) -> Result<Vec<RecordedEvent>, Error> {
    let mut events = Vec::with_capacity(rows.len());
    for row in rows {
        let Entry { seq, content } = read(row)?;
        if let EntryContent::Event(event) = content {
            events.push(RecordedEvent { seq, event: *event });
        }
    }
    Ok(events)
}

fn read(row: EntryRow) -> Result<Entry, Error> {
    let corrupt = || Error::Corrupt { seq: row.seq };
    let content = if row.category == AUDIT {
        let entry = AuditEntry::decode(row.body.as_slice()).map_err(|_| corrupt())?;
        EntryContent::Audit(Box::new(entry))
    } else {
        let event = Event::from_bytes(&row.body).map_err(|_| corrupt())?;
        EntryContent::Event(Box::new(event))
    };
    Ok(Entry {
        seq: row.seq.unsigned_abs(),
        content,
    })
}

/// Counts the returned entries for the audit of reads.
fn audited_read<'a>(
    caller: &Caller,
    contents: impl IntoIterator<Item = &'a EntryContent>,
) -> AuditedRead {
    let mut audited_read = AuditedRead::to(caller);
    for content in contents {
        match content {
            EntryContent::Event(event) => audited_read.row(owner(event)),
            // Audit entries name the person who acted.
            EntryContent::Audit(_) => audited_read.row_about_people(),
        }
    }
    audited_read
}

fn audited_runs(caller: &Caller, runs: &[Run]) -> AuditedRead {
    let mut audited_read = AuditedRead::to(caller);
    for run in runs {
        audited_read.row(&run.summary.user);
    }
    audited_read
}

/// Counts aggregated rows for the audit: a row for one user is that user's data, any other row is
/// about several people.
fn audited_stats(caller: &Caller, rows: &[stats_domain::StatsRow], by: &[Group]) -> AuditedRead {
    let mut audited_read = AuditedRead::to(caller);
    let place = by.iter().position(|group| *group == Group::User);
    for row in rows {
        match place.map(|place| &row.key[place]) {
            Some(user) => audited_read.row(user.as_deref().unwrap_or_default()),
            None => audited_read.row_about_people(),
        }
    }
    audited_read
}

/// Counts an entry returned by a stream.
fn count(counts: &AuditedStream, content: &EntryContent) {
    match content {
        EntryContent::Event(event) => counts.row(owner(event)),
        EntryContent::Audit(_) => counts.row_about_people(),
    }
}

/// Returns the Unix user that an event belongs to, or an empty text.
pub(crate) fn owner(event: &Event) -> &str {
    match (&event.payload, &event.owner) {
        (Some(Payload::User(user)), _) => &user.user,
        (_, Some(owner)) => &owner.user,
        (_, None) => "",
    }
}

/// Returns the REST and gRPC routes of an API.
pub fn router<A: EventsApi>(api: Arc<A>) -> Router {
    routes::router(Arc::clone(&api)).merge(grpc::router(api))
}
