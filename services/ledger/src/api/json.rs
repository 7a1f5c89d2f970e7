//! JSON responses: entries as CloudEvents, job histories, states and statistics.

use chrono::{DateTime, SecondsFormat, Utc};
use mesh_events::cloudevents;
use mesh_events::proto::mesh::audit::v1::AuditEntry;
use mesh_events::proto::mesh::job::v1;
use mesh_events::{Event, from_timestamp};
use mesh_runtime::api::Problem;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::fields::Fields;
use super::{Entry, EntryContent, JobHistory, NodeTimeline};
use crate::domain::job_history::{NodeState, RecordedEvent, Run, Summary};

/// The `dataschema` of audit entries.
const AUDIT_SCHEMA: &str = "urn:slurm-mesh:mesh.audit.v1.AuditEntry";

/// A page of entries.
#[derive(Serialize, ToSchema)]
#[schema(as = EventPage)]
pub(super) struct EventPageJson {
    /// Entries of this page.
    #[schema(value_type = Vec<EntryJson>)]
    pub entries: Vec<Value>,
    /// Cursor of the next page; null when this was the last.
    pub next_cursor: Option<String>,
}

/// An entry of the ledger.
#[derive(Serialize, ToSchema)]
#[schema(as = Entry)]
pub(super) struct EntryJson {
    /// Sequence in the ledger, dense, from 1.
    pub seq: u64,
    /// The event (or audit entry) as a CloudEvent in structured JSON; `data` is the message of the contract in proto3 JSON.
    #[schema(value_type = Object)]
    pub event: Value,
}

/// A job's history.
#[derive(Serialize, ToSchema)]
#[schema(as = JobHistory)]
pub(super) struct JobHistoryJson {
    /// Cluster as asked for.
    pub cluster: String,
    /// Job as asked for.
    pub job: String,
    /// The time of which this is the state; null for now.
    pub at: Option<String>,
    /// Runs, oldest first.
    pub runs: Vec<RunJson>,
    /// True if truncated; `/v1/events?job=` has all of it.
    pub truncated: bool,
}

/// One run of a job.
#[derive(Serialize, ToSchema)]
#[schema(as = JobRun)]
pub(super) struct RunJson {
    /// Entity key of the run.
    pub run: String,
    /// How it stands.
    pub summary: SummaryJson,
    /// Everything that happened to it, in order of time.
    pub timeline: Vec<EntryJson>,
}

/// How a run stands.
#[derive(Serialize, ToSchema)]
#[schema(as = RunSummary)]
pub(super) struct SummaryJson {
    /// Slurm's id form for people.
    pub display_id: String,
    /// Job name.
    pub name: String,
    /// Unix user.
    pub user: String,
    /// Slurm account.
    pub account: String,
    /// Partition.
    pub partition: String,
    /// State in Slurm's words.
    pub state: String,
    /// When it was submitted, RFC 3339.
    pub submitted: Option<String>,
    /// When its allocation began, RFC 3339.
    pub started: Option<String>,
    /// When it ended, RFC 3339.
    pub ended: Option<String>,
    /// Exit code of the batch script.
    pub exit_code: Option<ExitCodeJson>,
    /// What it costs.
    pub cost: Option<CostJson>,
}

/// An exit code.
#[derive(Serialize, ToSchema)]
#[schema(as = ExitCode)]
pub(super) struct ExitCodeJson {
    /// Exit status.
    pub code: u32,
    /// Signal; 0 if none.
    pub signal: u32,
}

/// What a run costs.
#[derive(Serialize, ToSchema)]
#[schema(as = RunCost)]
pub(super) struct CostJson {
    /// `final`, `accrued` or `estimated`.
    pub kind: &'static str,
    /// Millionths of the currency unit, as a string of digits.
    pub micros: String,
    /// ISO 4217 code.
    pub currency: String,
}

/// A node's state and what happened to it.
#[derive(Serialize, ToSchema)]
#[schema(as = NodeTimeline)]
pub(super) struct NodeJson {
    /// Cluster as asked for.
    pub cluster: String,
    /// NodeName.
    pub node: String,
    /// The time of which this is the state; null for now.
    pub at: Option<String>,
    /// How it stood.
    pub state: NodeStateJson,
    /// Its newest events up to then, in order of time.
    pub timeline: Vec<EntryJson>,
    /// True if truncated.
    pub truncated: bool,
}

/// How a node stood.
#[derive(Serialize, ToSchema)]
#[schema(as = NodeState)]
pub(super) struct NodeStateJson {
    /// Base state in Slurm's words.
    pub state: String,
    /// State flags in Slurm's words.
    pub flags: Vec<String>,
    /// Life-cycle class.
    pub lifecycle: String,
    /// Reason text; empty if none.
    pub reason: String,
    /// Since when, RFC 3339.
    pub since: Option<String>,
}

/// Converts an entry to its event in structured CloudEvents JSON.
pub(super) fn entry(entry: &Entry) -> Result<EntryJson, Problem> {
    let event = match &entry.content {
        EntryContent::Event(event) => event_json(event)?,
        EntryContent::Audit(audit) => audit_json(audit)?,
    };
    Ok(EntryJson {
        seq: entry.seq,
        event,
    })
}

/// Converts an entry with its event, or only the requested parts of it.
pub(super) fn chosen(found: &Entry, fields: Option<&Fields>) -> Result<Value, Problem> {
    let entry = entry(found)?;
    match fields {
        Some(fields) => Ok(fields.select(entry.seq, &entry.event)),
        None => serde_json::to_value(entry).map_err(|error| Problem::internal(&error)),
    }
}

pub(super) fn history(
    cluster: String,
    job: String,
    at: Option<DateTime<Utc>>,
    history: &JobHistory,
) -> Result<JobHistoryJson, Problem> {
    Ok(JobHistoryJson {
        cluster,
        job,
        at: time(at),
        runs: history.runs.iter().map(run).collect::<Result<_, _>>()?,
        truncated: history.truncated,
    })
}

pub(super) fn node(
    cluster: String,
    node: String,
    at: Option<DateTime<Utc>>,
    history: &NodeTimeline,
) -> Result<NodeJson, Problem> {
    let NodeState {
        state,
        flags,
        lifecycle,
        reason,
        since,
    } = history.state.clone();
    Ok(NodeJson {
        cluster,
        node,
        at: time(at),
        state: NodeStateJson {
            state,
            flags,
            lifecycle,
            reason,
            since: time(since),
        },
        timeline: timeline(&history.timeline)?,
        truncated: history.truncated,
    })
}

fn event_json(event: &Event) -> Result<Value, Problem> {
    cloudevents::to_json(event).map_err(|error| Problem::internal(&error))
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

fn run(run: &Run) -> Result<RunJson, Problem> {
    Ok(RunJson {
        run: run.key.clone(),
        summary: summary(&run.summary),
        timeline: timeline(&run.timeline)?,
    })
}

fn timeline(recorded: &[RecordedEvent]) -> Result<Vec<EntryJson>, Problem> {
    let entry = |RecordedEvent { seq, event }: &RecordedEvent| {
        Ok(EntryJson {
            seq: *seq,
            event: event_json(event)?,
        })
    };
    recorded.iter().map(entry).collect()
}

fn summary(summary: &Summary) -> SummaryJson {
    SummaryJson {
        display_id: summary.display_id.clone(),
        name: summary.name.clone(),
        user: summary.user.clone(),
        account: summary.account.clone(),
        partition: summary.partition.clone(),
        state: summary.state.clone(),
        submitted: time(summary.submitted),
        started: time(summary.started),
        ended: time(summary.ended),
        exit_code: summary
            .exit_code
            .map(|v1::ExitCode { code, signal }| ExitCodeJson { code, signal }),
        cost: summary.cost.as_ref().map(|cost| CostJson {
            kind: cost.kind.as_str(),
            micros: cost.amount.micros.to_string(),
            currency: cost.amount.currency.clone(),
        }),
    }
}

pub(super) fn time(time: Option<DateTime<Utc>>) -> Option<String> {
    time.map(|time| time.to_rfc3339_opts(SecondsFormat::AutoSi, true))
}
