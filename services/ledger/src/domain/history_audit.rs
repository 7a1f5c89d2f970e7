//! Audit entries about the whole history of a ledger: resumed, continued under another origin, or
//! contradicted.

use chrono::Utc;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, LedgerHistory};
use mesh_events::timestamp;

use super::keys::entry_id;

/// Kind of these audit entries.
pub const KIND: &str = "history";

/// A recovered history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resumed {
    /// Origin of the ledger.
    pub origin: String,
    /// Number of entries before the recovery.
    pub from: u64,
    /// Number of entries after the recovery.
    pub to: u64,
    /// The checkpoint of this size.
    pub note: String,
}

/// Returns the entry about a ledger recovered up to a checkpoint.
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

/// Returns the entry about a ledger that continues with its entries under another origin.
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

/// Returns the entry about a checkpoint that is signed with the ledger's key, but does not match
/// its entries.
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

/// The id is deterministic, so the entry is recorded once.
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
