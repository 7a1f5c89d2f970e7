//! Audit entries that are not in JetStream yet. They are written in the transaction of what they report.

use audit_outbox::AuditTable;
use mesh_db::sql::Sql;
use mesh_events::proto::mesh::audit::v1::TriggerActed;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;

/// The table of these entries.
pub static OUTBOX: AuditTable = AuditTable {
    service: super::store::NAME,
    kind: "trigger",
    table: "outbox",
    id: "id",
    cluster: Some("cluster"),
    body: "body",
    sequence: Some("seq"),
};

/// The statement that adds an audit entry to the outbox.
pub(super) fn entry(cluster: &str, at: i64, act: TriggerActed) -> Sql {
    let at = chrono::DateTime::from_timestamp_micros(at);
    OUTBOX.insertion(&OUTBOX.entry(cluster, at, Act::Trigger(act)))
}
