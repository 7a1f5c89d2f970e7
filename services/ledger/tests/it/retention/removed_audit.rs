//! Ledgers in which the retention of an earlier version removed audit entries about archives and
//! keys. What the entries said is proven by their hashes, but not silently.

use ledger::domain::keys::audit_entries;
use ledger::{
    Error, Fault, RemovedAudit, TrustAnchors, VerifyError, VerifyReport, verify_everything,
};
use mesh_testkit::fixtures::CLUSTER;

use super::Ledger;
use crate::support::{Database, audit_fact, on_both};

on_both!(
    a_removed_audit_entry_counts_by_its_hash_if_it_is_named,
    a_removed_audit_entry_proves_nothing_else,
);

/// Audit entries of the first archive and the second key.
const REMOVED: [i64; 2] = [21, 22];

/// Creates a ledger with two archives, of which the second covers the audit entries of the first and
/// of a key. The first is one of an earlier version, and the audit entries are removed with the rest.
async fn earlier(database: Database) -> Ledger {
    let mut ledger = Ledger::new(database).await;
    ledger.append("alice", 20).await;
    ledger.archive_all().await.unwrap();
    ledger.publish_audit().await;
    ledger.checkpointer.sign_if_new().await.unwrap();
    ledger.checkpointer.rotate("carol").await.unwrap();
    let keys = ledger.store.checkpoint_keys().await.unwrap();
    let entries = audit_entries(&keys, CLUSTER);
    let entries = entries.iter().map(audit_fact).collect();
    ledger.store.append("A", 2, entries).await.unwrap();
    ledger.append("alice", 20).await;
    ledger.archive_all().await.unwrap();
    let permanent = ledger.store.permanent_entries().await.unwrap();
    assert_eq!(permanent, REMOVED);
    ledger.append("alice", 5).await;
    change(
        &ledger,
        "UPDATE archives SET note = NULL, ids = NULL WHERE number = 1",
    )
    .await;
    assert_eq!(ledger.verify(false).await.unwrap().archived, 40);
    for table in ["event_nodes", "event_index", "payloads"] {
        let remove = format!("DELETE FROM {table} WHERE seq IN (21, 22)");
        ledger.database.outsider().await.execute(&remove).await;
    }
    ledger
}

/// Changes rows as the owner of the tables.
async fn change(ledger: &Ledger, sql: &str) {
    let mut outsider = ledger.database.outsider().await;
    let guards = outsider.guards().await;
    outsider.drop_guards().await;
    outsider.execute(sql).await;
    outsider.put_guards(&guards).await;
}

async fn verify(ledger: &Ledger, removed: RemovedAudit) -> Result<VerifyReport, VerifyError> {
    let trust = TrustAnchors {
        removed_audit: removed,
        ..TrustAnchors::default()
    };
    verify_everything(&ledger.database.location(), &trust, |_| ()).await
}

async fn a_removed_audit_entry_counts_by_its_hash_if_it_is_named(database: Database) {
    let mut ledger = earlier(database).await;
    let named = RemovedAudit::Named;
    for (given, left) in [
        (vec![], REMOVED.to_vec()),
        (vec![20, 21], vec![22]),
        (vec![22, 1], vec![21]),
    ] {
        match verify(&ledger, named(given)).await {
            Err(VerifyError::AuditRemoved(seqs)) => assert_eq!(seqs, left),
            other => panic!("{other:?}"),
        }
    }
    // Retention continues, and keeps its own audit entries.
    for archived in [42, 52] {
        for accepted in [named(REMOVED.to_vec()), RemovedAudit::All] {
            let report = verify(&ledger, accepted).await.unwrap();
            assert_eq!(report.verified.archived, archived);
            let mut classes = report.classes.iter();
            let class = classes.find(|class| class.name == "audit entries about archives and keys");
            let unchecked = class.unwrap().unchecked.as_deref().unwrap_or_default();
            assert!(
                unchecked.starts_with("the content of 21, 22 was removed"),
                "{unchecked}"
            );
        }
        if archived == 42 {
            ledger.append("alice", 5).await;
            assert_eq!(ledger.archive_all().await.unwrap().dropped, 10);
            ledger.append("alice", 5).await;
        }
    }
}

async fn a_removed_audit_entry_proves_nothing_else(database: Database) {
    let ledger = earlier(database).await;
    let fault = async |ledger: &Ledger| match verify(ledger, RemovedAudit::All).await {
        Err(VerifyError::Invalid(bad)) => (bad.seq, bad.what),
        other => panic!("expected a fault, got {other:?}"),
    };
    // Who archived, when, and which file.
    for (forged, genuine) in [
        ("made_by = 'mallory'", "made_by = 'root'"),
        ("made_at = made_at + 1", "made_at = made_at - 1"),
        (
            "path = path || 'x'",
            "path = substr(path, 1, length(path) - 1)",
        ),
    ] {
        let row = |set: &str| format!("UPDATE archives SET {set} WHERE number = 1");
        change(&ledger, &row(forged)).await;
        assert_eq!(fault(&ledger).await, (1, Fault::PayloadMissing), "{forged}");
        let refused = ledger.archive_all().await;
        assert!(
            matches!(refused, Err(Error::ForgedArchive { first_seq: 1, .. })),
            "{refused:?}"
        );
        change(&ledger, &row(genuine)).await;
        verify(&ledger, RemovedAudit::All).await.unwrap();
    }
    // Who replaced the key.
    let row =
        |name: &str| format!("UPDATE checkpoint_keys SET made_by = '{name}' WHERE number = 2");
    change(&ledger, &row("mallory")).await;
    assert_eq!(fault(&ledger).await, (21, Fault::KeysChanged));
    change(&ledger, &row("carol")).await;
    // An entry that is not about an archive or a key.
    change(&ledger, "DELETE FROM event_nodes WHERE seq = 44").await;
    change(&ledger, "DELETE FROM event_index WHERE seq = 44").await;
    change(&ledger, "DELETE FROM payloads WHERE seq = 44").await;
    assert_eq!(fault(&ledger).await, (44, Fault::PayloadMissing));
}
