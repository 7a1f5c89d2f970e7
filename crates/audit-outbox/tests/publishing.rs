//! Entries of both kinds of tables, published by a real server.

#![allow(clippy::unwrap_used, reason = "a test stops where its set-up fails")]

use std::time::Duration;

use audit_outbox::{AuditRow, AuditTable};
use chrono::DateTime;
use mesh_bus::{Bus, Config};
use mesh_db::{Database, Limits, Location, Tables};
use mesh_events::catalogue::MESH_AUDIT;
use mesh_events::proto::mesh::audit::v1::WebhookChanged;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_testkit::{NatsServer, wait_until};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

static NUMBERED: AuditTable = AuditTable {
    service: "test",
    kind: "numbered",
    table: "numbered",
    id: "id",
    cluster: Some("cluster"),
    body: "body",
    sequence: Some("seq"),
};

static PLAIN: AuditTable = AuditTable {
    service: "test",
    kind: "plain",
    table: "plain",
    id: "id",
    cluster: None,
    body: "entry",
    sequence: None,
};

static TABLES: Tables = Tables {
    name: "test",
    sqlite: sqlx::migrate!("tests/migrations"),
    postgres: sqlx::migrate!("tests/migrations"),
    first: "numbered",
    remedy: "",
};

async fn start() -> (NatsServer, Bus, tempfile::TempDir, Database) {
    let nats = NatsServer::start().await;
    let config = Config {
        url: nats.url(),
        provision: true,
        ..Config::default()
    };
    let bus = Bus::connect(&config, "admin").await.unwrap();
    bus.ready(&CancellationToken::new()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits {
        readers: 1,
        writers: 1,
        query_timeout: Duration::from_secs(10),
    };
    let file = Location::Sqlite(folder.path().join("entries.db"));
    let database = Database::connect(&TABLES, &file, limits).unwrap();
    database.prepare().await.unwrap();
    (nats, bus, folder, database)
}

async fn add(database: &Database, table: &AuditTable, cluster: &str, reason: String) -> AuditRow {
    let changed = WebhookChanged {
        reason,
        ..WebhookChanged::default()
    };
    let row = table.entry(cluster, DateTime::UNIX_EPOCH, Act::Webhook(changed));
    let insertion = table.insertion(&row);
    database.change("add", insertion, Vec::new()).await.unwrap();
    row
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_cannot_be_stored_holds_up_no_others() {
    let (_nats, bus, _folder, database) = start().await;
    for (table, cluster) in [(&NUMBERED, "there"), (&PLAIN, "here")] {
        let before = bus.stream_state(MESH_AUDIT).await.unwrap().last_sequence;
        let first = add(&database, table, cluster, "first".into()).await;
        let large = add(&database, table, cluster, "x".repeat(2 << 20)).await;
        let last = add(&database, table, cluster, "last".into()).await;
        assert!(table.publish(&database, &bus, "here").await.is_err());
        let left = table.unpublished(&database, 10).await.unwrap();
        assert_eq!(left.len(), 1);
        assert_eq!((&left[0].id, &left[0].body), (&large.id, &large.body));
        for (place, row) in [first, last].iter().enumerate() {
            let sequence = before + 1 + place as u64;
            let stored = bus.stored_from(MESH_AUDIT, sequence).await;
            let stored = stored.unwrap().unwrap();
            assert_eq!(stored.body, row.body);
            let subject = format!("mesh.{cluster}.audit.{}", table.kind);
            assert_eq!(stored.subject, subject);
        }
    }
    database.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_added_is_published_until_shutdown() {
    let (_nats, bus, _folder, database) = start().await;
    let (added, shutdown) = (Notify::new(), CancellationToken::new());
    let hour = Duration::from_secs(3600);
    let run = NUMBERED.run(&database, &bus, (&added, hour), &shutdown);
    let adding = async {
        for n in 0..300 {
            add(&database, &NUMBERED, "here", n.to_string()).await;
        }
        added.notify_one();
        let deadline = Duration::from_secs(20);
        wait_until("all entries", deadline, async || {
            let left = NUMBERED.unpublished(&database, 1).await.unwrap();
            let state = bus.stream_state(MESH_AUDIT).await.unwrap();
            left.is_empty() && state.last_sequence == 300
        })
        .await;
        shutdown.cancel();
    };
    tokio::join!(run, adding);
    database.close().await;
}
