//! Each role can do its work, and nothing else.

use ledger::domain::replay::{AuditProgress, Replay, ReplayRequest, ReplayState};
use ledger::{Error, Location, POSTGRES_ROLES, Store, verify_database};
use mesh_events::EventType;
use mesh_testkit::{Postgres, fixtures, psql};

use crate::support::{Database, admin, record, serve};

/// Returns the same database with another role.
pub fn of_role(database: &Database, role: &str) -> Database {
    assert!(database.url.contains("//postgres@"));
    Database {
        folder: tempfile::tempdir().unwrap(),
        url: database.url.replace("//postgres@", &format!("//{role}@")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_does_its_work_and_nothing_else() {
    let server = Postgres::shared().await;
    let superuser = Database::of(server);
    psql(
        &superuser.url,
        "CREATE ROLE early LOGIN; CREATE ROLE mesh_owner LOGIN CREATEROLE; ALTER SCHEMA public OWNER TO mesh_owner",
    );
    let early = of_role(&superuser, "early");
    let owner = of_role(&superuser, "mesh_owner");
    // A role that may not create the tables fails if they are missing.
    let error = Store::open(&early.location(), 1).await.unwrap_err();
    assert!(
        matches!(error, Error::Database(mesh_db::Error::NotMigrated { .. })),
        "{error}"
    );
    owner.store().await.close().await;
    psql(&owner.url, POSTGRES_ROLES);
    psql(&owner.url, POSTGRES_ROLES);
    psql(
        &owner.url,
        "CREATE ROLE mesh_appender LOGIN IN ROLE ledger_appender; CREATE ROLE mesh_reader LOGIN IN ROLE ledger_reader",
    );
    let (appender, reader) = (
        of_role(&superuser, "mesh_appender"),
        of_role(&superuser, "mesh_reader"),
    );

    // The appender opens the ledger, creates partitions and appends. The API reads with the
    // reader's role.
    let store = Store::connect(&appender.location(), Some(&reader.location()), 2).unwrap();
    store.prepare().await.unwrap();
    store.maintain().await.unwrap();
    for id in 1..=3 {
        let event = fixtures::job_event(EventType::JobSubmitted, fixtures::job(id));
        store
            .append(
                "SLURM_EVENTS",
                id.into(),
                vec![record(&event), record(&event)],
            )
            .await
            .unwrap();
    }
    mesh_runtime::install_crypto_provider();
    let url = serve(&store, admin(), 100, 100).await;
    let page = reqwest::get(format!("{url}/v1/events")).await.unwrap();
    let page: serde_json::Value = page.json().await.unwrap();
    assert_eq!(page["entries"].as_array().unwrap().len(), 3);
    let page = reqwest::get(format!("{url}/v1/events?node=n1"))
        .await
        .unwrap();
    let page: serde_json::Value = page.json().await.unwrap();
    assert_eq!(page["entries"].as_array().unwrap().len(), 3);
    let verified = verify_database(&reader.location(), |_| ()).await.unwrap();
    assert_eq!(verified.count, 3);

    // Replays are started, executed and deleted.
    let now = chrono::Utc::now();
    let limits = ledger::ReplayConfig::default().limits();
    let request = ReplayRequest::default()
        .check(&admin(), 3, &limits, now)
        .unwrap();
    let replay = Replay::new("r1".into(), request, now);
    assert!(store.add_replay(&replay, "root", None).await.unwrap());
    let mut claimed = store.claim_replay(now, now).await.unwrap().unwrap();
    assert_eq!(claimed.replay, replay);
    claimed.replay.end(ReplayState::Done, String::new(), now);
    claimed.replay.audited = AuditProgress::End;
    let saved = store.save_replay(&claimed, ReplayState::Running, now);
    assert!(saved.await.unwrap());
    let listed = store.replays(None, None, 10).await.unwrap();
    assert_eq!(listed, [claimed.replay]);
    store
        .purge_replays(now + chrono::TimeDelta::days(1))
        .await
        .unwrap();
    assert_eq!(store.replays(None, None, 10).await.unwrap(), []);

    // Everything else is refused.
    let partition = format!("payloads_{}", chrono::Utc::now().format("%Y_%m"));
    let forbidden = [
        "UPDATE entries SET leaf = chain".to_owned(),
        "DELETE FROM entries".to_owned(),
        "TRUNCATE entries, payloads, event_index, event_nodes".to_owned(),
        "DELETE FROM payloads".to_owned(),
        format!("DELETE FROM {partition}"),
        format!("INSERT INTO {partition} SELECT * FROM payloads"),
        format!("DROP TABLE {partition}"),
        format!("ALTER TABLE payloads DETACH PARTITION {partition}"),
        "ALTER TABLE payloads DISABLE TRIGGER ALL".to_owned(),
        "DROP TRIGGER entries_append_only ON entries".to_owned(),
        "SET session_replication_role = replica".to_owned(),
        "UPDATE event_index SET user_name = 'mallory'".to_owned(),
        "DELETE FROM event_index".to_owned(),
        "UPDATE event_nodes SET block = 'n2'".to_owned(),
        "DELETE FROM event_nodes".to_owned(),
        "DELETE FROM head".to_owned(),
        "DELETE FROM streams".to_owned(),
        "UPDATE head SET only_row = 2".to_owned(),
        "CREATE TABLE mine (seq BIGINT)".to_owned(),
    ];
    let reader_may_not = [
        "INSERT INTO entries SELECT seq + 10, 'x', leaf, chain FROM entries",
        "INSERT INTO streams VALUES ('x', 1)",
        "UPDATE head SET seq = 99",
        "SELECT ledger_add_partitions()",
        "DELETE FROM replays",
        "INSERT INTO event_nodes VALUES (1, 'n2')",
    ];
    let mut outsider = appender.outsider().await;
    for statement in &forbidden {
        assert!(
            outsider.try_execute(statement).await.is_err(),
            "{statement}"
        );
    }
    // Where the role has the right, the triggers refuse.
    for statement in [
        "UPDATE head SET seq = 1",
        "INSERT INTO entries SELECT seq, 'x', leaf, chain FROM entries",
        "INSERT INTO payloads SELECT seq, 1, cluster, subject, body FROM payloads",
    ] {
        assert!(
            outsider.try_execute(statement).await.is_err(),
            "{statement}"
        );
    }
    let mut outsider = reader.outsider().await;
    for statement in forbidden.iter().map(String::as_str).chain(reader_may_not) {
        assert!(
            outsider.try_execute(statement).await.is_err(),
            "{statement}"
        );
    }
    let error = Store::open(&reader.location(), 1).await.unwrap_err();
    let chain = mesh_runtime::error_chain(&error);
    assert!(chain.contains("permission denied"), "{chain}");
    let verified = verify_database(&owner.location(), |_| ()).await.unwrap();
    assert_eq!(verified.count, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_error_contains_a_password() {
    let server = Postgres::shared().await;
    let database = Database::of(server);
    for url in [
        database.url.replace("//postgres@", "//nobody:s3cret@"),
        database
            .url
            .replace("/test_", "/absent_")
            .replace("//postgres@", "//postgres:s3cret@"),
        "postgres://mesh:s3cret@127.0.0.1:1/ledger".to_owned(),
        "postgres://mesh:s3cret@127.0.0.1:1/ledger?sslmode=verify-full".to_owned(),
    ] {
        let location = Location::parse(&url, "".as_ref()).unwrap();
        let error = Store::open(&location, 1).await.unwrap_err();
        let text = format!(
            "{error:?} {} {location:?} {location}",
            mesh_runtime::error_chain(&error)
        );
        assert!(!text.contains("s3cret"), "{text}");
        let is_remote = url.contains("127.0.0.1");
        assert_eq!(error.is_unavailable(), is_remote, "{text}");
    }
}
