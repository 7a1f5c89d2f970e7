//! A fact as it is received, and what can be asked about it.

use bytes::Bytes;
use chrono::{DateTime, Utc};
use ledger_format::chain::{self, Hash};
use mesh_events::proto::mesh::audit::v1::AuditEntry;
use mesh_events::proto::mesh::event::v1::event::Payload;
use mesh_events::proto::mesh::job::v1::Job;
use mesh_events::{Category, DecodeError, Event, from_timestamp};
use prost::Message as _;

use super::nodes::Nodes;

/// Category word of entries that tell what the mesh itself did.
pub const AUDIT: &str = "audit";
/// Type of the event that tells how long a job waited.
pub const JOB_STARTED: &str = "job.started";
/// Types of events that tell what a run cost in the end; the last one counts.
pub const COST_FINAL: [&str; 2] = ["cost.finalized", "cost.adjusted"];

/// What is appended: the bytes that are hashed, and the columns that are searched.
#[derive(Clone, Debug)]
pub struct Fact {
    /// Id of the event or audit entry.
    pub id: String,
    /// Slurm's ClusterName.
    pub cluster: String,
    /// Subject it was received on.
    pub subject: String,
    /// Body as received.
    pub body: Bytes,
    /// Columns for queries.
    pub index: Index,
}

/// Columns for queries; all of them can be read out of the body again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    /// First word of the type, or [`AUDIT`].
    pub category: String,
    /// The whole type.
    pub kind: String,
    /// Raw job id.
    pub job_id: Option<u32>,
    /// Array the job belongs to.
    pub array_job_id: Option<u32>,
    /// Task of the array.
    pub task_id: Option<u32>,
    /// Leader of the heterogeneous job it belongs to.
    pub het_job_id: Option<u32>,
    /// Component of the heterogeneous job.
    pub het_offset: Option<u32>,
    /// Entity key of the run.
    pub run: Option<String>,
    /// Whose it is: the only Unix user besides administrators who may see it.
    pub user: Option<String>,
    /// OIDC subject of that person.
    pub subject: Option<String>,
    /// E-mail address of that person.
    pub email: Option<String>,
    /// Slurm account.
    pub account: Option<String>,
    /// Partition.
    pub partition: Option<String>,
    /// Node that the event is of.
    pub node: Option<String>,
    /// Nodes that it is about: that one, or those that its job ran on.
    pub nodes: Nodes,
    /// Job name.
    pub name: Option<String>,
    /// Of a start: how long the job had waited, in seconds.
    pub wait_seconds: Option<u32>,
    /// Of a final cost: millionths of the currency unit.
    pub cost_micros: Option<i64>,
    /// Of a final cost: ISO 4217 code.
    pub currency: Option<String>,
    /// When it happened.
    pub occurred_at: DateTime<Utc>,
    /// When it was read.
    pub observed_at: DateTime<Utc>,
}

/// Why a message is not kept.
#[derive(Debug, thiserror::Error)]
pub enum NotAFact {
    /// Not an event of the contract.
    #[error(transparent)]
    Event(#[from] DecodeError),
    /// Not an audit entry.
    #[error("decode audit entry")]
    Audit(#[from] prost::DecodeError),
    /// An audit entry lacks what every one has.
    #[error("decode audit entry: {0} is missing")]
    AuditField(&'static str),
    /// What is text in the database has a zero byte, which PostgreSQL cannot keep.
    #[error("read fact: there is a zero byte in its {0}")]
    ZeroByte(&'static str),
}

impl Fact {
    /// Reads a message of the public bus.
    ///
    /// # Errors
    /// If it is not an event.
    pub fn event(subject: &str, body: Bytes) -> Result<Self, NotAFact> {
        let event = Event::from_bytes(&body)?;
        let fact = Self {
            index: Index::of_event(&event),
            id: event.id,
            cluster: event.cluster,
            subject: subject.to_owned(),
            body,
        };
        fact.checked()
    }

    /// Reads a message of the audit stream.
    ///
    /// # Errors
    /// If it is not an audit entry with id, cluster and kind.
    pub fn audit(subject: &str, body: Bytes) -> Result<Self, NotAFact> {
        let entry = AuditEntry::decode(body.clone())?;
        for (value, field) in [
            (&entry.id, "id"),
            (&entry.cluster, "cluster"),
            (&entry.kind, "kind"),
        ] {
            if value.is_empty() {
                return Err(NotAFact::AuditField(field));
            }
        }
        let fact = Self {
            index: Index::of_audit(&entry),
            id: entry.id,
            cluster: entry.cluster,
            subject: subject.to_owned(),
            body,
        };
        fact.checked()
    }

    fn checked(self) -> Result<Self, NotAFact> {
        for (text, name) in [
            (&self.id, "id"),
            (&self.cluster, "cluster"),
            (&self.subject, "subject"),
            (&self.index.kind, "type"),
        ] {
            if text.contains('\0') {
                return Err(NotAFact::ZeroByte(name));
            }
        }
        Ok(self)
    }

    /// Reads a payload that is in the ledger already; its subject tells which of the two it is.
    ///
    /// # Errors
    /// If it is neither.
    pub fn stored(subject: &str, body: Bytes) -> Result<Self, NotAFact> {
        if subject.starts_with("slurm.") {
            Self::event(subject, body)
        } else {
            Self::audit(subject, body)
        }
    }

    /// Its leaf hash at a sequence.
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
            index: Index::default(),
        }
    }
}

impl Index {
    /// The columns of an event.
    pub fn of_event(event: &Event) -> Self {
        let moment = |time: &Option<_>| time.as_ref().and_then(from_timestamp).unwrap_or_default();
        let category = event
            .r#type
            .split_once('.')
            .map_or(event.r#type.as_str(), |(category, _)| category);
        let mut index = Self {
            category: category.to_owned(),
            kind: event.r#type.clone(),
            occurred_at: moment(&event.occurred_at),
            observed_at: moment(&event.observed_at),
            nodes: Nodes::of(event),
            ..Self::default()
        };
        if let Some(owner) = &event.owner {
            index.user = present(&owner.user);
            index.account = present(&owner.account);
            if let Some(identity) = &owner.identity {
                index.subject = present(&identity.subject);
                index.email = present(&identity.email);
            }
        }
        if let Some(job) = event.job() {
            index.job_id = Some(job.job_id);
            index.run = present(event.entity_key());
            index.partition = present(&job.partition);
            index.name = present(&job.name);
            if let Some(array) = &job.array {
                index.array_job_id = Some(array.job_id);
                index.task_id = array.task_id;
            }
            if let Some(het) = &job.het {
                index.het_job_id = Some(het.job_id);
                index.het_offset = Some(het.offset);
            }
        }
        match &event.payload {
            Some(Payload::Node(payload)) => {
                index.node = payload.node.as_ref().and_then(|node| present(&node.name));
            }
            Some(Payload::User(payload)) => {
                index.user = present(&payload.user);
                index.account = present(&payload.account);
            }
            Some(Payload::Job(payload)) if event.r#type == JOB_STARTED => {
                index.wait_seconds = payload.job.as_ref().and_then(waited);
            }
            Some(Payload::Cost(payload)) if COST_FINAL.contains(&event.r#type.as_str()) => {
                if let Some(total) = &payload.total {
                    index.cost_micros = Some(total.micros);
                    index.currency = present(&total.currency);
                }
            }
            Some(Payload::Job(_) | Payload::Cost(_) | Payload::Queue(_) | Payload::Capture(_))
            | None => {}
        }
        index
    }

    /// The columns of an audit entry. It belongs to no user: only administrators see it.
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

/// Seconds from being eligible to the start, as sacct's Planned; from the submission where Slurm does not tell.
fn waited(job: &Job) -> Option<u32> {
    let start = job.start_time.as_ref()?.seconds;
    let from = job.eligible_time.as_ref().or(job.submit_time.as_ref())?;
    u32::try_from(start - from.seconds).ok()
}

/// A column of text: NULL if there is none, and without zero bytes, which PostgreSQL cannot keep.
fn present(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.replace('\0', "\u{fffd}"))
}

/// Category words that can be asked for.
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
    fn the_words_are_those_of_the_catalogue() {
        assert_eq!(JOB_STARTED, EventType::JobStarted.to_string());
        assert_eq!(
            COST_FINAL,
            [EventType::CostFinalized, EventType::CostAdjusted].map(|kind| kind.to_string())
        );
    }
}
