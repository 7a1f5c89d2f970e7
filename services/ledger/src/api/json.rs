//! JSON responses: entries as CloudEvents, job histories, states and statistics.

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use chrono::{DateTime, SecondsFormat, Utc};
use mesh_events::proto::mesh::audit::v1::AuditEntry;
use mesh_events::{cloudevents, from_timestamp};
use mesh_runtime::api::Problem;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::fields::Fields;
use super::{Entry, EntryContent, JobHistory, NodeTimeline};
use crate::domain::job_history::{NodeState, RecordedEvent, Run};
use crate::domain::node_history::{BootStats, NodeStep};

/// The `dataschema` of audit entries.
const AUDIT_SCHEMA: &str = "urn:slurm-mesh:mesh.audit.v1.AuditEntry";

/// A page of entries.
#[derive(Serialize, ToSchema)]
#[schema(as = EventPage)]
pub(super) struct EventPageJson {
    /// The entries of this page.
    #[schema(value_type = Vec<RecordedEvent>)]
    pub entries: Vec<Value>,
    /// Cursor of the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// History of a job.
#[derive(Serialize, ToSchema)]
#[schema(as = JobHistory)]
pub(super) struct JobHistoryJson {
    /// Cluster, as requested.
    pub cluster: String,
    /// Job id, as requested.
    pub job: String,
    /// Time of the reported state, RFC 3339; null for the current state.
    pub at: Option<String>,
    /// Runs of the job, oldest first.
    pub runs: Vec<Run>,
    /// True if events were left out because of the size limit; `/v1/events?job=` returns all events.
    pub truncated: bool,
}

/// State and timeline of a node.
#[derive(Serialize, ToSchema)]
#[schema(as = NodeTimeline)]
pub(super) struct NodeJson {
    /// Cluster, as requested.
    pub cluster: String,
    /// Node (`NodeName`).
    pub node: String,
    /// Time of the reported state, RFC 3339; null for the current state.
    pub at: Option<String>,
    /// State of the node.
    pub state: NodeState,
    /// Its stays in the life-cycle classes, in chronological order, by the events of `timeline`.
    pub steps: Vec<NodeStep>,
    /// Its boots among them.
    pub boots: BootStats,
    /// Its newest events up to `at`, in chronological order.
    pub timeline: Vec<RecordedEvent>,
    /// True if older events were left out because of the size limit.
    pub truncated: bool,
}

/// Converts an entry to its event in structured CloudEvents JSON.
pub(super) fn event(entry: &Entry) -> Result<Value, Problem> {
    match &entry.content {
        EntryContent::Event(event) => {
            cloudevents::to_json(event).map_err(|error| Problem::internal(&error))
        }
        EntryContent::Audit(audit) => audit_json(audit),
    }
}

/// Converts an entry with its event, or only the requested parts of it.
pub(super) fn chosen(entry: &Entry, fields: Option<&Fields>) -> Result<Value, Problem> {
    let event = event(entry)?;
    Ok(match fields {
        Some(fields) => fields.select(entry.seq, &event),
        None => json!({ "seq": entry.seq, "event": event }),
    })
}

/// A response whose events may not be expressible in JSON.
pub(super) fn response(value: &impl Serialize) -> Result<Response, Problem> {
    let json = serde_json::to_vec(value).map_err(|error| Problem::internal(&error))?;
    Ok(([(CONTENT_TYPE, "application/json")], json).into_response())
}

pub(super) fn history(
    cluster: String,
    job: String,
    at: Option<DateTime<Utc>>,
    history: JobHistory,
) -> JobHistoryJson {
    JobHistoryJson {
        cluster,
        job,
        at: time(at),
        runs: history.runs,
        truncated: history.truncated,
    }
}

pub(super) fn node(
    cluster: String,
    node: String,
    at: Option<DateTime<Utc>>,
    history: NodeTimeline,
) -> NodeJson {
    NodeJson {
        cluster,
        node,
        at: time(at),
        state: history.state,
        steps: history.steps,
        boots: history.boots,
        timeline: history.timeline,
        truncated: history.truncated,
    }
}

/// Converts an audit entry to a CloudEvent.
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

pub(super) fn time(time: Option<DateTime<Utc>>) -> Option<String> {
    time.map(|time| time.to_rfc3339_opts(SecondsFormat::AutoSi, true))
}
