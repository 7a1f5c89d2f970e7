//! Only content that is present, unchanged and old by proven time is due.

use chrono::{DateTime, TimeDelta, Utc};
use ledger::Error;
use mesh_events::EventType;
use mesh_testkit::fixtures;

use super::Ledger;
use super::interrupted::{of_long_ago, recorded_at};
use crate::support::{Database, of_user, on_both, record};

on_both!(
    destroyed_altered_or_back_dated_content_is_not_signed,
    an_entry_of_the_far_future_does_not_keep_the_others,
    an_entry_recorded_in_the_far_future_counts_as_the_next_one,
);

async fn destroyed_altered_or_back_dated_content_is_not_signed(database: Database) {
    let mut ledger = Ledger::new(database).await;
    ledger.append("alice", 40).await;
    // Observed now, so it is never due.
    let job = fixtures::job(41);
    let young = record(&of_user("alice", EventType::JobSubmitted, job));
    ledger.store.append("S", 41, vec![young]).await.unwrap();
    ledger.jobs += 1;
    ledger.checkpointer.sign_if_new().await.unwrap();
    let month = Utc::now() - TimeDelta::days(30);
    let hour = Utc::now() + TimeDelta::hours(1);
    let all = "payloads event_index event_nodes";
    let mut outsider = ledger.database.outsider().await;
    for table in all.split(' ') {
        let copy = format!("CREATE TEMP TABLE of_{table} AS SELECT * FROM {table}");
        outsider.execute(&copy).await;
    }
    for (changes, before) in [
        (
            &[
                "DELETE FROM event_nodes WHERE seq <= 40",
                "DELETE FROM event_index WHERE seq <= 40",
                "DELETE FROM payloads WHERE seq <= 40",
            ][..],
            month,
        ),
        (&["UPDATE payloads SET body = x'00' WHERE seq = 17"], hour),
        (
            &[
                "UPDATE payloads SET recorded_at = 1763760000000000",
                "UPDATE event_index SET recorded_at = 1763760000000000, observed_at = 1763760000000000",
            ],
            month,
        ),
    ] {
        let guards = outsider.guards().await;
        outsider.drop_guards().await;
        for sql in changes {
            outsider.execute(sql).await;
        }
        outsider.put_guards(&guards).await;
        ledger.verify(false).await.unwrap_err();
        for folder in [None, Some(ledger.archives())] {
            let refused = ledger.retain(folder, before).await;
            assert!(
                matches!(refused, Err(Error::Corrupt { .. })),
                "{changes:?}: {refused:?}"
            );
        }
        assert_eq!(ledger.count("archives").await, 0);
        outsider.drop_guards().await;
        for table in all.split(' ') {
            outsider.execute(&format!("DELETE FROM {table}")).await;
        }
        for table in all.split(' ') {
            let back = format!("INSERT INTO {table} SELECT * FROM of_{table}");
            outsider.execute(&back).await;
        }
        outsider.put_guards(&guards).await;
        ledger.verify(false).await.unwrap();
    }
    // Only what is old by both times.
    let guards = outsider.guards().await;
    outsider.drop_guards().await;
    for table in ["payloads", "event_index"] {
        let old = format!("UPDATE {table} SET recorded_at = 1763760000000000");
        outsider.execute(&old).await;
    }
    outsider.put_guards(&guards).await;
    let done = ledger.retain(None, month).await.unwrap();
    assert_eq!((done.archives.len(), done.dropped), (1, 40));
    assert_eq!(ledger.verify(false).await.unwrap().archived, 40);
}

/// A faulty clock observed it. Its time of recording decides.
async fn an_entry_of_the_far_future_does_not_keep_the_others(database: Database) {
    let mut ledger = Ledger::new(database).await;
    ledger.append("alice", 10).await;
    let future = DateTime::from_timestamp(4_070_908_800, 0).unwrap();
    let mut event = of_user("alice", EventType::JobSubmitted, fixtures::job(11));
    event.observed_at = Some(mesh_events::timestamp(future));
    let store = &ledger.store;
    store.append("S", 11, vec![record(&event)]).await.unwrap();
    ledger.jobs += 1;
    ledger.append("alice", 10).await;
    let month = Utc::now() - TimeDelta::days(30);
    // Nothing was recorded long ago.
    assert_eq!(ledger.retention().plan(month).await.unwrap().to, 0);
    of_long_ago(&ledger.database).await;
    assert_eq!(ledger.retention().plan(month).await.unwrap().to, 21);
    let done = ledger.retain(Some(ledger.archives()), month).await.unwrap();
    assert_eq!((done.archives.len(), done.dropped), (1, 21));
    ledger.is_whole().await;
}

/// The clock of the ledger was ahead for a while.
async fn an_entry_recorded_in_the_far_future_counts_as_the_next_one(database: Database) {
    let mut ledger = Ledger::new(database).await;
    for _ in 0..3 {
        ledger.append("alice", 10).await;
    }
    let month = Utc::now() - TimeDelta::days(30);
    of_long_ago(&ledger.database).await;
    let future = "4070908800000000";
    recorded_at(&ledger.database, future, "seq > 10 AND seq <= 15").await;
    assert_eq!(ledger.retention().plan(month).await.unwrap().to, 30);
    // Nothing shows that the last ones are old.
    recorded_at(&ledger.database, future, "seq > 20").await;
    assert_eq!(ledger.retention().plan(month).await.unwrap().to, 20);
    let now = Utc::now().timestamp_micros().to_string();
    recorded_at(&ledger.database, &now, "seq = 21").await;
    assert_eq!(ledger.retention().plan(month).await.unwrap().to, 20);
    let done = ledger.retain(Some(ledger.archives()), month).await.unwrap();
    assert_eq!((done.archives.len(), done.dropped), (1, 20));
    ledger.is_whole().await;
    recorded_at(&ledger.database, future, "seq > 20").await;
    let done = ledger.retain(Some(ledger.archives()), month).await.unwrap();
    assert_eq!((done.archives.len(), done.dropped), (0, 0));
}
