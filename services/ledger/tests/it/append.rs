//! Tests appending: once, in order, durably, and without later changes.

use std::collections::HashSet;

use ledger::domain::record::{InvalidRecord, Record};
use ledger::verify_database;
use mesh_events::{EventType, subject};
use mesh_testkit::NatsServer;
use mesh_testkit::fixtures::{self, CLUSTER};
use prost::Message as _;

use crate::support::{
    Database, Process, audit_entry, audit_fact, bus, node_event, of_user, on_both, record, serve,
};

on_both!(
    every_record_is_stored_once_and_others_become_dead_letters,
    a_fact_that_comes_again_is_not_appended,
    any_text_of_an_event_can_be_stored,
    a_large_batch_is_one_transaction,
    the_database_refuses_to_change_or_delete,
    signed_records_of_the_ledger_are_immutable,
    columns_for_queries_are_filled_again_from_the_payloads,
    a_database_that_cannot_be_written_delays_and_loses_nothing,
);

async fn every_record_is_stored_once_and_others_become_dead_letters(database: Database) {
    let nats = NatsServer::start().await;
    let process = Process::start(&nats, &database).await;
    let bus = bus(&nats, "admin").await;

    let mut ids = HashSet::new();
    for id in 1..=50 {
        let event = fixtures::job_event(EventType::JobSubmitted, fixtures::job(id));
        bus.publish(&event).await.unwrap();
        ids.insert(event.id);
    }
    let audit = audit_entry(1);
    bus.publish_raw(
        subject::audit(CLUSTER, "delivery"),
        &audit.id,
        audit.encode_to_vec(),
    )
    .await
    .unwrap();
    ids.insert(audit.id);

    // Beyond the deduplication window, the bus delivers an event again under another message id.
    let mut repeated = fixtures::job_event(EventType::JobSubmitted, fixtures::job(1));
    let subject = subject::of(&repeated).unwrap();
    repeated.late = true;
    bus.publish_raw(subject.clone(), "again-1", repeated.encode_to_vec())
        .await
        .unwrap();
    bus.publish_raw(subject, "nonsense", b"nonsense".to_vec())
        .await
        .unwrap();
    let last = fixtures::job_event(EventType::JobSubmitted, fixtures::job(51));
    let end = bus.publish(&last).await.unwrap().sequence;
    ids.insert(last.id);

    process
        .until("52 entries", async |process| {
            process.head().await == Some(52)
        })
        .await;
    process
        .until("counted", async |process| {
            let metrics = process.get("/metrics").await.unwrap_or_default();
            [
                r#"ledger_conflicts_total{stream="SLURM_EVENTS"} 1"#,
                r#"ledger_rejected_total{stream="SLURM_EVENTS"} 1"#,
                r#"ledger_entries_total{stream="MESH_AUDIT"} 1"#,
                "ledger_head_sequence 52",
            ]
            .iter()
            .all(|line| metrics.contains(line))
        })
        .await;
    let verified = verify_database(&database.location(), |_| ()).await.unwrap();
    assert_eq!(verified.count, 52);
    let store = database.store().await;
    assert_eq!(
        store.last_sequence("SLURM_EVENTS").await.unwrap(),
        Some(end)
    );

    // Last, because this read is itself recorded in the audit.
    let page = process
        .json("/v1/events?type=job.*,audit.*&limit=1000")
        .await
        .unwrap();
    let entries = page["entries"].as_array().unwrap();
    let stored_ids: HashSet<String> = entries
        .iter()
        .map(|entry| entry["event"]["id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(stored_ids, ids);
    let first = entries
        .iter()
        .find(|entry| entry["event"]["id"] == *repeated.id.as_str());
    assert!(
        first.unwrap()["event"]["data"]["late"].is_null(),
        "the first bytes are kept"
    );
}

async fn a_fact_that_comes_again_is_not_appended(database: Database) {
    let store = database.store().await;
    let event = fixtures::job_event(EventType::JobStarted, fixtures::job(7));
    let mut other = event.clone();
    other.late = true;
    let first = store.append("S", 1, vec![record(&event)]).await.unwrap();
    assert_eq!(first.entries.len(), 1);
    let repeated = store
        .append("S", 3, vec![record(&event), record(&other)])
        .await
        .unwrap();
    assert_eq!(
        (
            repeated.entries.len(),
            repeated.duplicates,
            repeated.conflicts.len()
        ),
        (0, 1, 1)
    );
    assert_eq!(repeated.head, first.head);
    // A redelivered older message does not move the position back.
    store.append("S", 2, Vec::new()).await.unwrap();
    assert_eq!(store.last_sequence("S").await.unwrap(), Some(3));
}

/// More values than one SQLite statement accepts, and rows with and without each column.
async fn a_large_batch_is_one_transaction(database: Database) {
    let store = database.store().await;
    let one = |n: u32| match n % 10 {
        0 => record(&node_event("n7", u64::from(n))),
        _ => record(&fixtures::job_event(
            EventType::JobStarted,
            fixtures::job(n),
        )),
    };
    let records: Vec<Record> = (1..=2_000).map(one).collect();
    let appended = store.append("S", 1, records.clone()).await.unwrap();
    assert_eq!(appended.entries.len(), 2_000);
    let repeated = store.append("S", 2, records).await.unwrap();
    assert_eq!((repeated.entries.len(), repeated.duplicates), (0, 2_000));
    let verified = verify_database(&database.location(), |_| ()).await.unwrap();
    assert_eq!(verified.count, 2_000);
}

async fn any_text_of_an_event_can_be_stored(database: Database) {
    let store = database.store().await;
    let mut job = fixtures::job(1);
    job.partition = "p\0\u{1F980}' --\\".into();
    let strange = of_user("al\0ice", EventType::JobStarted, job);
    let appended = store.append("S", 1, vec![record(&strange)]).await.unwrap();
    assert_eq!(appended.entries.len(), 1);
    let verified = verify_database(&database.location(), |_| ()).await;
    assert_eq!(verified.unwrap().count, 1);
    let mut audit = audit_entry(1);
    audit.cluster = "c\0".into();
    let refused = Record::audit("mesh.c.audit.delivery", audit.encode_to_vec().into());
    assert!(
        matches!(refused, Err(InvalidRecord::ZeroByte("cluster"))),
        "{refused:?}"
    );
}

async fn the_database_refuses_to_change_or_delete(database: Database) {
    let store = database.store().await;
    let event = fixtures::job_event(EventType::JobStarted, fixtures::job(7));
    store.append("S", 1, vec![record(&event)]).await.unwrap();

    let mut outsider = database.outsider().await;
    let both = [
        "UPDATE entries SET leaf = zeroblob(32)",
        "UPDATE entries SET seq = 9",
        "DELETE FROM entries",
        "UPDATE payloads SET body = x'00'",
        "DELETE FROM payloads",
        "UPDATE head SET seq = 0",
        "DELETE FROM head",
        "UPDATE event_index SET user_name = 'mallory'",
        "DELETE FROM event_index",
        "UPDATE event_nodes SET block = 'n2'",
        "DELETE FROM event_nodes",
        "DELETE FROM streams",
    ];
    let sqlite = [
        "INSERT OR REPLACE INTO entries SELECT seq, id, zeroblob(32), chain FROM entries",
        "INSERT OR REPLACE INTO entries SELECT seq + 1, id, leaf, chain FROM entries",
        "INSERT OR REPLACE INTO payloads SELECT seq, cluster, subject, x'00', recorded_at FROM payloads",
        "INSERT OR REPLACE INTO event_index SELECT * FROM event_index",
        "INSERT OR REPLACE INTO head SELECT only_row, 0, zeroblob(32) FROM head",
    ];
    let postgres = [
        "TRUNCATE entries",
        "TRUNCATE payloads",
        "TRUNCATE event_index",
        "TRUNCATE event_nodes",
        "TRUNCATE head",
        "TRUNCATE streams",
        "DELETE FROM payloads_other",
        "TRUNCATE payloads_other",
        "INSERT INTO entries SELECT seq - 1, 'x', leaf, chain FROM entries",
        "INSERT INTO payloads SELECT seq, recorded_at + 1, cluster, subject, x'00' FROM payloads",
        "INSERT INTO entries SELECT * FROM entries ON CONFLICT (seq) DO UPDATE SET leaf = zeroblob(32)",
    ];
    let only: &[&str] = if database.is_sqlite() {
        &sqlite
    } else {
        &postgres
    };
    for statement in both.iter().chain(only) {
        let error = outsider.try_execute(statement).await.expect_err(statement);
        assert!(
            error.to_string().contains("append-only"),
            "{statement}: {error}"
        );
    }
    if !database.is_sqlite() {
        let partitions = "SELECT relname::text FROM pg_class WHERE relispartition AND relkind = 'r' AND relname ~ '_[0-9]+$'";
        let partitions = outsider.texts(partitions).await;
        assert_eq!(
            partitions.len(),
            3,
            "this month and two ahead: {partitions:?}"
        );
        for partition in partitions {
            for statement in ["UPDATE {} SET seq = 9", "DELETE FROM {}", "TRUNCATE {}"] {
                let statement = statement.replace("{}", &partition);
                let error = outsider
                    .try_execute(&statement)
                    .await
                    .expect_err(&statement);
                assert!(error.to_string().contains("append-only"), "{error}");
            }
        }
    }
    let verified = verify_database(&database.location(), |_| ()).await;
    assert_eq!(verified.unwrap().count, 1);
}

async fn signed_records_of_the_ledger_are_immutable(database: Database) {
    let store = database.store().await;
    let event = fixtures::job_event(EventType::JobStarted, fixtures::job(7));
    store.append("S", 1, vec![record(&event)]).await.unwrap();
    let mut outsider = database.outsider().await;
    for row in [
        "checkpoint_keys (number, vkey, from_size, made_at, made_by) VALUES (1, 'k', 0, 1, 'root')",
        "checkpoints (number, size, root, note, made_at) VALUES (1, 1, zeroblob(32), 'n', 1)",
        "archives (number, first_seq, last_seq, signed_by, made_at, made_by) VALUES (1, 1, 1, 'k', 1, 'root')",
        "holes (number, stream, created_at, first_sequence, last_sequence, from_at, to_at, found_at) VALUES (1, 'S', 1, 2, 3, 4, 5, 6)",
    ] {
        outsider.execute(&format!("INSERT INTO {row}")).await;
    }
    let sqlite: &[&str] = &["UPDATE {} SET number = 2", "DELETE FROM {}"];
    let postgres = &[sqlite, &["TRUNCATE {}"]].concat();
    let only = match database.is_sqlite() {
        true => sqlite,
        false => postgres,
    };
    for table in ["checkpoint_keys", "checkpoints", "archives", "holes"] {
        for statement in only {
            let statement = statement.replace("{}", table);
            let error = outsider
                .try_execute(&statement)
                .await
                .expect_err(&statement);
            assert!(error.to_string().contains("append-only"), "{error}");
        }
    }
    // The statement fails or is ignored: the existing row stays.
    if database.is_sqlite() {
        for replace in [
            "checkpoint_keys SELECT number, 'forged', from_size, made_at, made_by FROM checkpoint_keys",
            "checkpoints SELECT number, size, root, 'forged', made_at FROM checkpoints",
            "archives SELECT number, first_seq, last_seq, path, sha256, bytes, 'forged', made_at, made_by FROM archives",
            "holes SELECT number, 'forged', created_at, first_sequence, last_sequence, from_at, to_at, found_at FROM holes",
        ] {
            let statement = format!("INSERT OR REPLACE INTO {replace}");
            outsider.try_execute(&statement).await.ok();
        }
    }
    for (column, expected) in [
        ("vkey FROM checkpoint_keys", "k"),
        ("note FROM checkpoints", "n"),
        ("signed_by FROM archives", "k"),
        ("stream FROM holes", "S"),
    ] {
        let found = outsider.texts(&format!("SELECT {column}")).await;
        assert_eq!(found, [expected], "{column}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_owner_may_read_the_file() {
    use std::os::unix::fs::PermissionsExt as _;
    let database = Database::sqlite();
    let _store = database.store().await;
    for name in ["ledger.db", "ledger.db-wal", "ledger.db-shm"] {
        let mode = std::fs::metadata(database.folder.path().join(name))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o077, 0, "{name}: {mode:o}");
    }
}

async fn columns_for_queries_are_filled_again_from_the_payloads(database: Database) {
    let records = || {
        let mut records: Vec<_> = (1..=2500)
            .map(|id| record(&of_user("alice", EventType::JobStarted, fixtures::job(id))))
            .collect();
        records.push(record(&node_event("n1", 1)));
        records.push(audit_fact(&audit_entry(1)));
        records
    };
    let listed = async |store: &ledger::Store| {
        let url = serve(store, crate::support::admin(), 5000, 10).await;
        let mut listed = Vec::new();
        for filter in ["type=job.*,node.*,audit.*", "node=n1"] {
            let page = reqwest::get(format!("{url}/v1/events?{filter}&limit=5000"));
            listed.push(page.await.unwrap().text().await.unwrap());
        }
        listed
    };
    mesh_runtime::install_crypto_provider();
    let store = database.store().await;
    for batch in records().chunks(500) {
        store.append("S", 1, batch.to_vec()).await.unwrap();
    }
    let before = listed(&store).await;
    store.close().await;

    let location = database.location();
    let mut operator = database.outsider().await;
    // The procedure in the README. First all rows are missing, then one in the middle, then that
    // row with its nodes.
    for (rows, nodes) in [
        ("", ""),
        (" WHERE seq = 17", " WHERE 1 = 0"),
        (" WHERE seq = 17", " WHERE seq = 17"),
    ] {
        let delete = format!("DELETE FROM event_index{rows}");
        let delete_nodes = format!("DELETE FROM event_nodes{nodes}");
        let statements = if database.is_sqlite() {
            vec![
                "DROP TRIGGER event_index_no_delete",
                &delete,
                "DROP TRIGGER event_nodes_no_delete",
                &delete_nodes,
            ]
        } else {
            vec![
                "ALTER TABLE event_index DISABLE TRIGGER USER",
                &delete,
                "ALTER TABLE event_index ENABLE TRIGGER USER",
                "ALTER TABLE event_nodes DISABLE TRIGGER USER",
                &delete_nodes,
                "ALTER TABLE event_nodes ENABLE TRIGGER USER",
            ]
        };
        for statement in statements {
            operator.execute(statement).await;
        }
        assert!(verify_database(&location, |_| ()).await.is_err());
        let store = database.store().await;
        assert_eq!(listed(&store).await, before);
        store.close().await;
        assert!(
            operator.try_execute(&delete).await.is_err(),
            "guarded again"
        );
        assert_eq!(
            verify_database(&location, |_| ()).await.unwrap().count,
            2502
        );
    }
    let seen = |page: &String| page.matches("\"seq\":").count();
    assert_eq!(before.iter().map(seen).collect::<Vec<_>>(), [2502, 2501]);
}

async fn a_database_that_cannot_be_written_delays_and_loses_nothing(database: Database) {
    let nats = NatsServer::start().await;
    let process = Process::start(&nats, &database).await;
    let bus = bus(&nats, "admin").await;
    let mut other = database.outsider().await;
    if database.is_sqlite() {
        other.execute("BEGIN IMMEDIATE").await;
    } else {
        other.execute("BEGIN").await;
        other.execute("SELECT seq FROM head FOR UPDATE").await;
    }
    for id in 1..=10 {
        let event = fixtures::job_event(EventType::JobSubmitted, fixtures::job(id));
        bus.publish(&event).await.unwrap();
    }
    process
        .until("not ready, and counted", async |process| {
            let metrics = process.get("/metrics").await.unwrap_or_default();
            process.get("/readyz").await.is_none()
                && metrics.contains("ledger_append_failures_total")
        })
        .await;
    assert_eq!(process.head().await, Some(0), "reading goes on");

    other.execute("ROLLBACK").await;
    process
        .until("10 entries", async |process| {
            process.head().await == Some(10)
        })
        .await;
    process
        .until("ready", async |process| {
            process.get("/readyz").await.is_some()
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_recovers_after_a_full_disk() {
    let database = Database::sqlite();
    let nats = NatsServer::start().await;
    let process = Process::start(&nats, &database).await;
    let bus = bus(&nats, "admin").await;
    let publish = async |ids: std::ops::RangeInclusive<u32>| {
        for id in ids {
            let event = fixtures::job_event(EventType::JobSubmitted, fixtures::job(id));
            bus.publish(&event).await.unwrap();
        }
    };
    publish(1..=10).await;
    process
        .until("10 entries", async |process| {
            process.head().await == Some(10)
        })
        .await;
    let side_file = database.folder.path().join("ledger.db-wal");
    process.limit_files(Some(std::fs::metadata(side_file).unwrap().len()));
    publish(11..=60).await;
    process
        .until("tried more than once", async |process| {
            let metrics = process.get("/metrics").await.unwrap_or_default();
            let failures = metrics.lines().find_map(|line| {
                line.strip_prefix("ledger_append_failures_total{stream=\"SLURM_EVENTS\"} ")
            });
            failures.is_some_and(|count| count.parse::<u64>().unwrap() >= 3)
        })
        .await;
    assert!(process.get("/readyz").await.is_none());
    assert_eq!(process.head().await, Some(10));

    process.limit_files(None);
    process
        .until("60 entries", async |process| {
            process.head().await == Some(60)
        })
        .await;
    let verified = verify_database(&database.location(), |_| ()).await.unwrap();
    assert_eq!(verified.count, 60);
}
