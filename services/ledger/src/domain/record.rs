//! A received event or audit entry, and its index columns.

use bytes::Bytes;
use chrono::{DateTime, Utc};
use ledger_format::chain::{self, Hash};
use mesh_events::proto::mesh::audit::v1::AuditEntry;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::{Category, DecodeError, Event, from_timestamp};
use prost::Message as _;

use super::nodes::NodeBlocks;

/// Category of audit entries.
pub const AUDIT: &str = "audit";
/// Type of the event that has a job's wait time.
pub const JOB_STARTED: &str = "job.started";
/// Types of events that have the final cost of a run; the last one counts.
pub const COST_FINAL: [&str; 2] = ["cost.finalized", "cost.adjusted"];

/// A received message: the hashed bytes and the index columns.
#[derive(Clone, Debug)]
pub struct Record {
    /// Id of the event or audit entry.
    pub id: String,
    /// Slurm's ClusterName.
    pub cluster: String,
    /// NATS subject on which it was received.
    pub subject: String,
    /// Body as received.
    pub body: Bytes,
    /// Index columns.
    pub index: IndexColumns,
}

/// Index columns, all derived from the body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexColumns {
    /// First part of the type, or [`AUDIT`].
    pub category: String,
    /// Complete type.
    pub kind: String,
    /// Raw job id.
    pub job_id: Option<u32>,
    /// Array that the job belongs to.
    pub array_job_id: Option<u32>,
    /// Task of the array.
    pub task_id: Option<u32>,
    /// Leader of the heterogeneous job that it belongs to.
    pub het_job_id: Option<u32>,
    /// Component of the heterogeneous job.
    pub het_offset: Option<u32>,
    /// Entity key of the run.
    pub run: Option<String>,
    /// Owner: the Unix user who may see it.
    pub user: Option<String>,
    /// OIDC subject of the owner.
    pub subject: Option<String>,
    /// E-mail address of the owner.
    pub email: Option<String>,
    /// Slurm account.
    pub account: Option<String>,
    /// Partition.
    pub partition: Option<String>,
    /// Node of a node event.
    pub node: Option<String>,
    /// The node of a node event, or the nodes of the job.
    pub nodes: NodeBlocks,
    /// Job name.
    pub name: Option<String>,
    /// Wait time of a start, in seconds.
    pub wait_seconds: Option<u32>,
    /// Amount of a final cost, in millionths of the currency unit.
    pub cost_micros: Option<i64>,
    /// Currency of a final cost, as ISO 4217 code.
    pub currency: Option<String>,
    /// Time of the change.
    pub occurred_at: DateTime<Utc>,
    /// Time at which the mesh observed it.
    pub observed_at: DateTime<Utc>,
}

/// A message that cannot be recorded.
#[derive(Debug, thiserror::Error)]
pub enum InvalidRecord {
    /// Not a valid event.
    #[error(transparent)]
    Event(#[from] DecodeError),
    /// Not an audit entry.
    #[error("decode audit entry")]
    Audit(#[from] prost::DecodeError),
    /// A required field of an audit entry is missing.
    #[error("decode audit entry: {0} is missing")]
    AuditField(&'static str),
    /// A text field has a zero byte, which PostgreSQL cannot store.
    #[error("read record: zero byte in its {0}")]
    ZeroByte(&'static str),
}

impl Record {
    /// Decodes a message of the public bus.
    ///
    /// # Errors
    /// If it is not an event.
    pub fn event(subject: &str, body: Bytes) -> Result<Self, InvalidRecord> {
        let mut event = Event::from_bytes(&body)?;
        let record = Self {
            id: std::mem::take(&mut event.id),
            cluster: std::mem::take(&mut event.cluster),
            subject: subject.to_owned(),
            body,
            index: IndexColumns::of_event(event),
        };
        record.checked()
    }

    /// Decodes a message of the audit stream.
    ///
    /// # Errors
    /// If it is not an audit entry with id, cluster and kind.
    pub fn audit(subject: &str, body: Bytes) -> Result<Self, InvalidRecord> {
        let entry = AuditEntry::decode(body.clone())?;
        for (value, field) in [
            (&entry.id, "id"),
            (&entry.cluster, "cluster"),
            (&entry.kind, "kind"),
        ] {
            if value.is_empty() {
                return Err(InvalidRecord::AuditField(field));
            }
        }
        let record = Self {
            index: IndexColumns::of_audit(&entry),
            id: entry.id,
            cluster: entry.cluster,
            subject: subject.to_owned(),
            body,
        };
        record.checked()
    }

    fn checked(self) -> Result<Self, InvalidRecord> {
        for (text, name) in [
            (&self.id, "id"),
            (&self.cluster, "cluster"),
            (&self.subject, "subject"),
            (&self.index.kind, "type"),
        ] {
            if text.contains('\0') {
                return Err(InvalidRecord::ZeroByte(name));
            }
        }
        Ok(self)
    }

    /// Decodes a stored payload. The subject distinguishes events and audit entries.
    ///
    /// # Errors
    /// If it is neither.
    pub fn stored(subject: &str, body: Bytes) -> Result<Self, InvalidRecord> {
        if subject.starts_with("slurm.") {
            Self::event(subject, body)
        } else {
            Self::audit(subject, body)
        }
    }

    /// Computes the leaf hash at a sequence.
    pub fn leaf(&self, seq: u64) -> Hash {
        chain::Entry {
            cluster: &self.cluster,
            seq,
            id: &self.id,
            subject: &self.subject,
            body: &self.body,
        }
        .leaf()
    }

    #[cfg(test)]
    pub(crate) fn for_tests(id: &str, body: &[u8]) -> Self {
        Self {
            id: id.to_owned(),
            cluster: "c".to_owned(),
            subject: "slurm.c.job.submitted.p.u".to_owned(),
            body: Bytes::copy_from_slice(body),
            index: IndexColumns::default(),
        }
    }
}

impl IndexColumns {
    /// Returns the columns of an event.
    pub fn of_event(event: Event) -> Self {
        let moment = |time: Option<_>| time.as_ref().and_then(from_timestamp).unwrap_or_default();
        let nodes = NodeBlocks::of(&event);
        let kind = event.r#type;
        let category = kind
            .split_once('.')
            .map_or(&*kind, |(category, _)| category);
        let mut index = Self {
            category: category.to_owned(),
            occurred_at: moment(event.occurred_at),
            observed_at: moment(event.observed_at),
            nodes,
            ..Self::default()
        };
        if let Some(owner) = event.owner {
            index.user = present(owner.user);
            index.account = present(owner.account);
            if let Some(identity) = owner.identity {
                index.subject = present(identity.subject);
                index.email = present(identity.email);
            }
        }
        let job = match event.payload {
            Some(Payload::Job(payload)) => {
                if kind == JOB_STARTED {
                    index.wait_seconds = payload.job.as_ref().and_then(waited);
                }
                payload.job
            }
            Some(Payload::Queue(payload)) => payload.job,
            Some(Payload::Cost(payload)) => {
                if let Some(total) = payload.total
                    && COST_FINAL.contains(&&*kind)
                {
                    index.cost_micros = Some(total.micros);
                    index.currency = present(total.currency);
                }
                payload.job
            }
            Some(Payload::Node(payload)) => {
                index.node = payload.node.and_then(|node| present(node.name));
                None
            }
            Some(Payload::User(payload)) => {
                index.user = present(payload.user);
                index.account = present(payload.account);
                None
            }
            Some(Payload::Capture(_)) | None => None,
        };
        if let Some(job) = job {
            index.job_id = Some(job.job_id);
            index.run = event.entity.and_then(|entity| present(entity.key));
            index.partition = present(job.partition);
            index.name = present(job.name);
            if let Some(array) = job.array {
                index.array_job_id = Some(array.job_id);
                index.task_id = array.task_id;
            }
            if let Some(het) = job.het {
                index.het_job_id = Some(het.job_id);
                index.het_offset = Some(het.offset);
            }
        }
        index.kind = kind;
        index
    }

    /// Returns the columns of an audit entry. It belongs to no user, so only administrators see it.
    pub fn of_audit(entry: &AuditEntry) -> Self {
        let at = entry
            .at
            .as_ref()
            .and_then(from_timestamp)
            .unwrap_or_default();
        Self {
            category: AUDIT.to_owned(),
            kind: format!("{AUDIT}.{}", entry.kind),
            occurred_at: at,
            observed_at: at,
            ..Self::default()
        }
    }
}

/// Seconds from eligible time to start, like sacct's Planned. Counted from submission if Slurm
/// reports no eligible time.
fn waited(job: &Job) -> Option<u32> {
    let start = job.start_time.as_ref()?.seconds;
    let from = job.eligible_time.as_ref().or(job.submit_time.as_ref())?;
    u32::try_from(start - from.seconds).ok()
}

/// Returns `None` for an empty text. Replaces zero bytes, which PostgreSQL cannot store.
fn present(text: String) -> Option<String> {
    match text.contains('\0') {
        true => Some(text.replace('\0', "\u{fffd}")),
        false => (!text.is_empty()).then_some(text),
    }
}

/// Returns the categories allowed in a filter.
pub fn categories() -> impl Iterator<Item = &'static str> {
    Category::ALL
        .iter()
        .map(|category| category.as_str())
        .chain([AUDIT])
}

#[cfg(test)]
mod tests {
    use mesh_events::EventType;

    use super::*;

    #[test]
    fn the_names_are_those_of_the_catalogue() {
        assert_eq!(JOB_STARTED, EventType::JobStarted.to_string());
        assert_eq!(
            COST_FINAL,
            [EventType::CostFinalized, EventType::CostAdjusted].map(|kind| kind.to_string())
        );
    }
}
