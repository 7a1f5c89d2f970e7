//! Who made the first key, where an earlier version took it from the audit.

use ledger::VerifyError;
use ledger::domain::keys::audit_entries;
use ledger::domain::note::PrivateKey;
use ledger::domain::verify::Fault;
use mesh_testkit::fixtures::CLUSTER;

use super::Ledger;
use crate::support::{Database, audit_fact, on_both};

on_both!(who_made_the_first_key_is_what_the_audit_says);

async fn who_made_the_first_key_is_what_the_audit_says(database: Database) {
    let mut ledger = Ledger::new(database).await;
    ledger.append("alice", 10).await;
    // It replaced another one before the first entry.
    let mut first = ledger.store.checkpoint_keys().await.unwrap().remove(0);
    (first.made_at, first.made_by) = (1_763_760_000_000_000, "carol".into());
    let mut replaced = first.clone();
    let other = PrivateKey::new("example.org/l", &[9; 32]).unwrap();
    replaced.vkey = other.public().to_string();
    let entries = audit_entries(&[replaced, first], CLUSTER);
    let record = audit_fact(&entries[0]);
    let mut outsider = ledger.database.outsider().await;
    let guards = outsider.guards().await;
    let mut name = async |made_by: &str, made_at: i64| {
        outsider.drop_guards().await;
        let sql = format!("UPDATE checkpoint_keys SET made_by = '{made_by}', made_at = {made_at}");
        outsider.execute(&sql).await;
        outsider.put_guards(&guards).await;
    };
    let changed = async |ledger: &Ledger| match ledger.verify(true).await {
        Err(VerifyError::Invalid(bad)) => assert_eq!(bad.what, Fault::KeysChanged),
        other => panic!("{other:?}"),
    };
    name("carol", 1_763_760_000_000_000).await;
    changed(&ledger).await;
    ledger.store.append("A", 1, vec![record]).await.unwrap();
    ledger.jobs += 1;
    ledger.append("alice", 10).await;
    ledger.is_whole().await;
    for (made_by, made_at) in [
        ("mallory", 1_763_760_000_000_000),
        ("carol", 1_763_760_000_000_001),
    ] {
        name(made_by, made_at).await;
        changed(&ledger).await;
    }
    name("carol", 1_763_760_000_000_000).await;
    // Retention keeps the entry.
    assert_eq!(ledger.archive_all().await.unwrap().dropped, 20);
    assert_eq!(ledger.store.permanent_entries().await.unwrap(), [11]);
    ledger.is_whole().await;
}
