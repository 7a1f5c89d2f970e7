//! The permanent entries of archived ranges stay in the indexes.

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use mesh_testkit::fixtures::CLUSTER;

use super::Ledger;
use crate::support::{Database, admin, audit_fact, on_both, serve};

on_both!(permanent_entries_are_indexed_again_and_found_by_time);

async fn permanent_entries_are_indexed_again_and_found_by_time(database: Database) {
    mesh_runtime::install_crypto_provider();
    let mut ledger = Ledger::new(database).await;
    ledger.append("alice", 30).await;
    ledger.archive_all().await.unwrap();
    let archives = ledger.store.archives(0).await.unwrap();
    let record = audit_fact(&archives[0].audit_entry(CLUSTER));
    ledger.store.append("A", 1, vec![record]).await.unwrap();
    ledger.jobs += 1;
    ledger.append("alice", 30).await;
    assert_eq!(ledger.archive_all().await.unwrap().dropped, 30);
    assert_eq!(ledger.store.permanent_entries().await.unwrap(), [31]);
    // Still in the database.
    ledger.append("alice", 5).await;

    let made_at = DateTime::from_timestamp_micros(archives[0].made_at).unwrap();
    let form = |time: DateTime<Utc>| time.to_rfc3339_opts(SecondsFormat::Micros, true);
    let until = made_at + TimeDelta::microseconds(1);
    let query = format!(
        "/v1/events?type=audit.retention&since={}&until={}",
        form(made_at),
        form(until)
    );
    for is_emptied in [true, false] {
        if is_emptied {
            let mut outsider = ledger.database.outsider().await;
            let guards = outsider.guards().await;
            outsider.drop_guards().await;
            outsider.execute("DELETE FROM event_nodes").await;
            outsider.execute("DELETE FROM event_index").await;
            outsider.put_guards(&guards).await;
            ledger.verify(false).await.unwrap_err();
        }
        ledger.store.close().await;
        ledger.store = ledger.database.store().await;
        assert_eq!(ledger.count("event_index").await, 6);
        ledger.verify(false).await.unwrap();
        let url = serve(&ledger.store, admin(), 1000, 1000).await;
        let page = reqwest::get(format!("{url}{query}")).await.unwrap();
        let page: serde_json::Value = page.json().await.unwrap();
        let found = page["entries"].as_array().unwrap();
        let found: Vec<_> = found.iter().map(|entry| &entry["seq"]).collect();
        assert_eq!(found, [31], "{page}");
    }
}
