//! What the audit says of a ledger's history as a whole: brought back, going on under another origin, or contradicted.

use chrono::Utc;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, LedgerHistory};
use mesh_events::timestamp;

use super::keys::entry_id;

/// Kind of these entries.
pub const KIND: &str = "history";

/// What was brought back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// Origin of the ledger.
    pub origin: String,
    /// Entries that it had.
    pub from: u64,
    /// Entries that it has, or had already.
    pub to: u64,
    /// The checkpoint of so many entries.
    pub note: String,
}

/// The ledger has again what a checkpoint counts.
pub fn resumed(resumed: &Resumed, cluster: &str, made_by: &str) -> AuditEntry {
    let act = LedgerHistory {
        what: "resumed".to_owned(),
        origin: resumed.origin.clone(),
        checkpoint: resumed.note.clone(),
        entries: resumed.from,
        made_by: made_by.to_owned(),
        ..LedgerHistory::default()
    };
    entry(cluster, act)
}

/// The ledger goes on under another origin, with the entries it has.
pub fn new_origin(
    [origin, former_origin]: [&str; 2],
    former_checkpoint: &str,
    entries: u64,
    cluster: &str,
    [made_by, reason]: [&str; 2],
) -> AuditEntry {
    let act = LedgerHistory {
        what: "new_origin".to_owned(),
        origin: origin.to_owned(),
        former_origin: former_origin.to_owned(),
        checkpoint: former_checkpoint.to_owned(),
        entries,
        made_by: made_by.to_owned(),
        reason: reason.to_owned(),
    };
    entry(cluster, act)
}

/// There is a checkpoint with a signature of the ledger's key that its entries do not give.
pub fn contradicted(origin: &str, checkpoint: &str, cluster: &str, reason: &str) -> AuditEntry {
    let act = LedgerHistory {
        what: "contradicted".to_owned(),
        origin: origin.to_owned(),
        checkpoint: checkpoint.to_owned(),
        reason: reason.to_owned(),
        ..LedgerHistory::default()
    };
    entry(cluster, act)
}

/// The id is deterministic, so it is recorded once.
fn entry(cluster: &str, act: LedgerHistory) -> AuditEntry {
    let entries = act.entries.to_string();
    let id = entry_id(&[
        "slurm-mesh/history/1",
        &act.what,
        &act.origin,
        &act.checkpoint,
        &entries,
    ]);
    AuditEntry {
        id,
        cluster: cluster.to_owned(),
        kind: KIND.to_owned(),
        at: Some(timestamp(Utc::now())),
        service: "ledger".to_owned(),
        act: Some(Act::History(act)),
    }
}
