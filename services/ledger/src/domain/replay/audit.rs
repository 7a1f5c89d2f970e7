//! Audit entries of a replay: its start, its end, and the published events of other users.

use chrono::DateTime;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, Read, Replay as ReplayAct};
use mesh_events::timestamp;

use super::{Replay, ReplayState};
use crate::domain::keys::entry_id;

/// Kinds of the audit entries.
const KIND: &str = "replay";
const KIND_READ: &str = "read";
/// Maximum number of users in one entry.
const MAX_NAMES: usize = 100;

impl Replay {
    /// Returns the audit entries of the start or the end, with deterministic ids.
    pub fn audit_entries(&self, at_the_end: bool, cluster: &str) -> Vec<AuditEntry> {
        let id =
            |kind: &str, phase: &str| entry_id(&["slurm-mesh/replay/1", &self.id, kind, phase]);
        let phase = if at_the_end { "end" } else { "begin" };
        let requester = &self.request.requester;
        let micros = if at_the_end { self.ended_at } else { None };
        let at = DateTime::from_timestamp_micros(micros.unwrap_or(self.made_at)).map(timestamp);
        let entry = |kind: &str, act| AuditEntry {
            id: id(kind, phase),
            cluster: cluster.to_owned(),
            kind: kind.to_owned(),
            at,
            service: "ledger".to_owned(),
            act: Some(act),
        };
        let mut act = ReplayAct {
            replay_id: self.id.clone(),
            by: requester.name.clone(),
            role: requester.role.clone(),
            authentication: requester.authentication.clone(),
            filter: self.request.filter_text(),
            from_seq: self.request.begin().unsigned_abs() + 1,
            to_seq: self.to_seq.unsigned_abs(),
            endpoint: self.request.requested.endpoint.clone().unwrap_or_default(),
            phase: phase.to_owned(),
            ..ReplayAct::default()
        };
        let mut read = Read {
            reader: requester.name.clone(),
            reader_users: requester.users.iter().cloned().collect(),
            issuer: requester.issuer.clone(),
            subject: requester.subject.clone(),
            role: requester.role.clone(),
            authentication: requester.authentication.clone(),
            request: format!("{} (replay {})", requester.request, self.id),
            filter: self.request.filter_text(),
            phase: phase.to_owned(),
            replay_id: self.id.clone(),
            ..Read::default()
        };
        if at_the_end {
            act.outcome = self.state.as_str().to_owned();
            act.sent = self.sent.unsigned_abs();
            act.cancelled_by = self.cancelled_by.clone().unwrap_or_default();
            act.error = match self.state {
                ReplayState::Failed => self.problem.clone(),
                ReplayState::Running | ReplayState::Done | ReplayState::Cancelled => String::new(),
            };
            read.whose = self
                .disclosed
                .users
                .iter()
                .take(MAX_NAMES)
                .cloned()
                .collect();
            read.whose_count = self.disclosed.users.len() as u64;
            read.rows = self.disclosed.rows;
            read.begun = id(KIND_READ, "begin");
        }
        let mut entries = vec![entry(KIND, Act::Replay(act))];
        if !requester.sees_only_own_events() {
            entries.push(entry(KIND_READ, Act::Read(read)));
        }
        entries
    }
}
