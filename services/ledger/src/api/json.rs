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
    /// The entries of this page.
    #[schema(value_type = Vec<EntryJson>)]
    pub entries: Vec<Value>,
    /// Cursor of the next page; null on the last page.
    pub next_cursor: Option<String>,
}

/// An entry of the ledger.
#[derive(Serialize, ToSchema)]
#[schema(as = Entry)]
pub(super) struct EntryJson {
    /// Ledger sequence, from 1 without gaps.
    pub seq: u64,
    /// The event or audit entry as structured CloudEvents JSON; `data` is the protobuf message in proto3 JSON.
    #[schema(value_type = Object)]
    pub event: Value,
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
    pub runs: Vec<RunJson>,
    /// True if events were left out because of the size limit; `/v1/events?job=` returns all events.
    pub truncated: bool,
}

/// One run of a job.
#[derive(Serialize, ToSchema)]
#[schema(as = JobRun)]
pub(super) struct RunJson {
    /// Entity key of the run.
    pub run: String,
    /// State of the run.
    pub summary: SummaryJson,
    /// Events of the run, in chronological order.
    pub timeline: Vec<EntryJson>,
}

/// Summary of a run.
#[derive(Serialize, ToSchema)]
#[schema(as = RunSummary)]
pub(super) struct SummaryJson {
    /// Job id as Slurm displays it.
    pub display_id: String,
    /// Job name.
    pub name: String,
    /// Unix user who owns the job.
    pub user: String,
    /// Slurm account.
    pub account: String,
    /// Slurm partition.
    pub partition: String,
    /// Slurm's job state, such as `RUNNING`.
    pub state: String,
    /// Submit time, RFC 3339; null if unknown.
    pub submitted: Option<String>,
    /// Start time of the allocation, RFC 3339; null if it has not started.
    pub started: Option<String>,
    /// End time, RFC 3339; null if it has not ended.
    pub ended: Option<String>,
    /// Exit code of the batch script; null if unknown.
    pub exit_code: Option<ExitCodeJson>,
    /// Cost of the run; null if unknown.
    pub cost: Option<CostJson>,
}

/// Exit code of a batch script.
#[derive(Serialize, ToSchema)]
#[schema(as = ExitCode)]
pub(super) struct ExitCodeJson {
    /// Exit status.
    pub code: u32,
    /// Number of the signal that ended it; 0 if none.
    pub signal: u32,
}

/// Cost of a run.
#[derive(Serialize, ToSchema)]
#[schema(as = RunCost)]
pub(super) struct CostJson {
    /// `final`; `accrued`: so far; `estimated`: up to the time limit.
    pub kind: &'static str,
    /// Amount in millionths of the currency unit, as a decimal string.
    pub micros: String,
    /// Currency, ISO 4217 code.
    pub currency: String,
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
    pub state: NodeStateJson,
    /// Its newest events up to `at`, in chronological order.
    pub timeline: Vec<EntryJson>,
    /// True if older events were left out because of the size limit.
    pub truncated: bool,
}

/// State of a node.
#[derive(Serialize, ToSchema)]
#[schema(as = NodeState)]
pub(super) struct NodeStateJson {
    /// Slurm's base state, such as `IDLE`.
    pub state: String,
    /// Slurm's state flags, such as `DRAIN`.
    pub flags: Vec<String>,
    /// Life-cycle class: `provisioning`, `active`, `draining`, `drained`, `down`, `terminating`, `terminated` or `unknown`.
    pub lifecycle: String,
    /// Slurm's reason text; empty if none.
    pub reason: String,
    /// When the node entered this state, RFC 3339; null if unknown.
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
