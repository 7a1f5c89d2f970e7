//! Content goes only after its archive is noted, and only a role for it takes it out.

use chrono::{TimeDelta, Utc};
use ledger::domain::verify::Fault;
use ledger::retention::{Retention, RetentionProgress, RetentionRequest};
use ledger::{Error, POSTGRES_ROLES, Store, VerifyError};
use mesh_testkit::{Postgres, psql};
use tokio::sync::watch::Sender;

use super::Ledger;
use crate::support::{Database, on_both};

on_both!(content_goes_only_after_its_archive_is_noted);

async fn content_goes_only_after_its_archive_is_noted(database: Database) {
    let mut ledger = Ledger::new(database).await;
    ledger.append("alice", 20).await;
    ledger.append("alice", 20).await;
    let mut outsider = ledger.database.outsider().await;
    let bytes = format!("x'{}'", "00".repeat(32));
    let vkey = ledger.store.checkpoint_keys().await.unwrap().remove(0).vkey;
    let note = |number: i64, first: i64, last: i64| {
        format!(
            "INSERT INTO archives (number, first_seq, last_seq, path, sha256, bytes, signed_by, made_at, made_by) VALUES ({number}, {first}, {last}, 'f', {bytes}, 1, '{vkey}', 1, '')"
        )
    };
    for refused in [
        "DELETE FROM payloads WHERE seq = 1",
        "DELETE FROM event_index WHERE seq = 1",
        "DELETE FROM event_nodes WHERE seq = 1",
        // Not from the beginning, not ending at a checkpoint, with a gap before it, empty.
        &note(1, 2, 20),
        &note(1, 1, 19),
        &note(2, 1, 20),
        &note(1, 21, 20),
    ] {
        assert!(outsider.try_execute(refused).await.is_err(), "{refused}");
    }
    outsider.execute(&note(1, 1, 20)).await;
    for refused in [
        "UPDATE archives SET made_by = 'x'",
        "DELETE FROM archives",
        "DELETE FROM payloads WHERE seq = 21",
        "DELETE FROM payloads WHERE seq > 10",
        "DELETE FROM event_index WHERE seq = 21",
        "DELETE FROM event_nodes WHERE seq = 21",
        &note(2, 22, 40),
    ] {
        assert!(outsider.try_execute(refused).await.is_err(), "{refused}");
    }
    for table in ["event_nodes", "event_index"] {
        outsider
            .execute(&format!("DELETE FROM {table} WHERE seq = 3"))
            .await;
    }
    outsider.execute("DELETE FROM payloads WHERE seq = 3").await;
    // The database allows the change to roles that may record ranges. Without the ledger's
    // signature, the deleted content counts as missing.
    match ledger.verify(false).await {
        Err(VerifyError::Invalid(bad)) => {
            assert_eq!((bad.seq, bad.what), (3, Fault::PayloadMissing))
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_role_for_it_takes_content_out_and_it_can_do_nothing_else() {
    // Roles belong to the server, so the test uses its own.
    let server = Postgres::start().await;
    let mut ledger = Ledger::new(Database::of(&server)).await;
    ledger.append("alice", 100).await;
    let url = ledger.database.url.clone();
    psql(&url, POSTGRES_ROLES);
    psql(
        &url,
        "CREATE ROLE r_appender LOGIN IN ROLE ledger_appender; CREATE ROLE r_reader LOGIN IN ROLE ledger_reader;
         CREATE ROLE r_retention LOGIN IN ROLE ledger_retention",
    );
    let of = |role: &str| Database {
        folder: tempfile::tempdir().unwrap(),
        url: url.replace("//postgres@", &format!("//{role}@")),
    };
    let request = RetentionRequest {
        before: Utc::now() + TimeDelta::hours(1),
        folder: Some(ledger.archives()),
        made_by: String::new(),
    };
    let progress = Sender::new(RetentionProgress::default());
    for role in ["r_appender", "r_reader"] {
        let location = of(role).location();
        let retention = Retention::new(
            Store::connect(&location, None, 1).unwrap(),
            &location,
            ledger.key(),
        );
        let error = retention.run(&request, &progress).await.unwrap_err();
        assert!(matches!(error, Error::Retain(_)), "{role}: {error:?}");
        let mut outsider = of(role).outsider().await;
        for refused in [
            "DELETE FROM payloads",
            "DELETE FROM event_index",
            "DELETE FROM event_nodes",
            "DELETE FROM archives",
        ] {
            assert!(
                outsider.try_execute(refused).await.is_err(),
                "{role}: {refused}"
            );
        }
    }
    assert_eq!(ledger.count("payloads").await, 100);
    let mut outsider = of("r_retention").outsider().await;
    let partition = format!("payloads_{}", Utc::now().format("%Y_%m"));
    for refused in [
        "DELETE FROM payloads",
        "DELETE FROM event_index",
        "DELETE FROM event_nodes",
        "DELETE FROM entries",
        "UPDATE entries SET leaf = chain",
        "UPDATE payloads SET body = '\\x00'",
        "TRUNCATE payloads",
        "INSERT INTO entries SELECT seq + 1000, 'x', leaf, chain FROM entries",
        "UPDATE head SET seq = 1000",
        "DELETE FROM checkpoints",
        "INSERT INTO checkpoints SELECT number + 1, size, root, note || 'x', made_at FROM checkpoints",
        "DROP TRIGGER payloads_only_archived ON payloads",
        "SET session_replication_role = replica",
        &format!("DELETE FROM {partition}"),
    ] {
        assert!(outsider.try_execute(refused).await.is_err(), "{refused}");
    }
    let location = of("r_retention").location();
    let retention = Retention::new(
        Store::connect(&location, None, 1).unwrap(),
        &location,
        ledger.key(),
    );
    let done = retention.run(&request, &progress).await.unwrap();
    assert_eq!((done.archives.len(), done.dropped), (1, 100));
    assert!(
        outsider
            .try_execute("UPDATE archives SET made_by = 'x'")
            .await
            .is_err()
    );
    assert_eq!(ledger.is_whole().await.len(), 1);
}
