//! Data of earlier versions remains usable: deliveries, their attempts, redelivery jobs, and endpoints with old
//! configuration keys.

use axum::http::{Method, StatusCode};
use mesh_db::Location;
use mesh_events::EventType;
use mesh_testkit::{CannedResponse, Postgres, WebhookReceiver, wait_until};
use serde_json::{Value, json};
use sqlx::migrate::Migrator;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use webhook_dispatcher::endpoint::vault::Vault;
use webhook_dispatcher::store::{State, Store};

use crate::harness::{DEADLINE, Kind, Mesh, alice, event, on_both};

on_both!(
    deliveries_from_before_their_key_began_with_the_event_are_kept,
    an_endpoint_that_is_stored_under_old_keys_works_and_is_written_under_the_new_ones,
);

/// The tables of the earlier version, with data.
const BEFORE: &str = "
INSERT INTO endpoints (name, id, source, owner, spec, state, since, revision, created_at, updated_at)
    VALUES ('one', 'id', 'file', '', '{}', 'active', 0, 1, 0, 0);
INSERT INTO leases (endpoint, holder, epoch, since) VALUES ('one', '', 7, 0);
INSERT INTO deliveries (endpoint, event_id, event_type, state, attempts, next_at, status, error, created_at, updated_at, subject,
    stream_sequence, trace, announced, began_at)
VALUES ('one', 'arrived', 'job.started', 'delivered', 1, NULL, 204, '', 1000, 1100, 's', 1, '', 1, 1000),
    ('one', 'waits', 'job.started', 'waiting', 1, 5000, 503, 'busy', 1000, 1100, 's', 2, '', 0, 1000),
    ('one', 'dead', 'job.started', 'dead', 2, NULL, 400, 'no', 1000, 1100, 's', 3, '', 1, 1000),
    ('one', 'untold', 'job.started', 'dead', 1, NULL, 400, 'no', 1000, 1100, 's', 4, '', 0, 1000);
INSERT INTO attempts (endpoint, event_id, n, at, status, latency_ms, error, snippet)
VALUES ('one', 'arrived', 1, 1000, 204, 5, '', 'thanks'), ('one', 'waits', 1, 1000, 503, 5, 'busy', ''),
    ('one', 'dead', 1, 1000, 503, 5, 'busy', ''), ('one', 'dead', 2, 1050, 400, 5, 'no', '');
INSERT INTO redeliveries (id, endpoint, filter, cursor, state, by, created_at, updated_at)
VALUES ('job', 'one', '{\"all\":true}', 'arrived', 'running', 'alice', 2000, 2000);
";

/// The first migrations, as a folder.
async fn first(kind: &str, count: usize) -> Migrator {
    let folder = tempfile::tempdir().unwrap();
    let all = format!("{}/migrations/{kind}", env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<_> = std::fs::read_dir(all)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    for file in &files[..count] {
        std::fs::copy(file, folder.path().join(file.file_name().unwrap())).unwrap();
    }
    Migrator::new(folder.path()).await.unwrap()
}

async fn deliveries_from_before_their_key_began_with_the_event_are_kept(kind: Kind) {
    let folder = tempfile::tempdir().unwrap();
    let location = match kind {
        Kind::Sqlite => {
            let options = SqliteConnectOptions::new()
                .filename(folder.path().join("old.db"))
                .create_if_missing(true);
            let pool = SqlitePoolOptions::new();
            let pool = pool.connect_with(options).await.unwrap();
            first("sqlite", 5).await.run(&pool).await.unwrap();
            sqlx::raw_sql(BEFORE).execute(&pool).await.unwrap();
            pool.close().await;
            "sqlite:old.db".to_owned()
        }
        Kind::Postgres => {
            let url = Postgres::shared().await.create_database();
            let pool = PgPoolOptions::new().connect(&url).await.unwrap();
            first("postgres", 4).await.run(&pool).await.unwrap();
            sqlx::raw_sql(BEFORE).execute(&pool).await.unwrap();
            pool.close().await;
            url
        }
    };
    let location = Location::parse(&location, folder.path()).unwrap();
    let store = Store::open(&location).await.unwrap();

    let states = [
        ("arrived", State::Delivered, 1),
        ("waits", State::Waiting, 1),
        ("dead", State::Dead, 2),
        ("untold", State::Dead, 0),
    ];
    for (id, state, attempts) in states {
        assert!(store.knows("one", id).await.unwrap(), "{id}");
        let delivery = store.load("one", id).await.unwrap().unwrap();
        assert_eq!(delivery.state, state, "{id}");
        let provider_state = store.attempts("one", id).await.unwrap();
        assert_eq!(provider_state.len(), attempts, "{id}");
    }
    let arrived = &store.attempts("one", "arrived").await.unwrap()[0];
    assert_eq!((arrived.status, arrived.snippet.as_str()), (204, "thanks"));
    let outbox = store.outbox(vec!["one".to_owned()], 10).await.unwrap();
    let untold: Vec<_> = outbox.iter().map(|outcome| &outcome.event_id).collect();
    assert_eq!(untold, ["untold"]);
    let job = store.next_redelivery("one").await.unwrap().unwrap();
    let dead = store.dead_after(&job, 10).await.unwrap();
    let dead: Vec<_> = dead
        .iter()
        .map(|(place, mark_published)| (place.event_id.as_str(), *mark_published))
        .collect();
    // The progress of the earlier version is lost. A delivery that it put back into the queue is no dead letter.
    assert_eq!(dead, [("dead", true), ("untold", false)]);
    store.close().await;
}

/// The decrypted definition of alice's endpoint, and its id.
async fn sealed(mesh: &Mesh, vault: &Vault) -> (String, Value) {
    let (id, _, sealed) = mesh.endpoint_row("alice/mine").await;
    let text = vault.open(&id, &sealed).unwrap();
    (id, serde_json::from_slice(&text).unwrap())
}

async fn an_endpoint_that_is_stored_under_old_keys_works_and_is_written_under_the_new_ones(
    kind: Kind,
) {
    let receiver = WebhookReceiver::start().await;
    let mut mesh = Mesh::for_api(kind).await;
    let path = "/v1/webhooks/mine";
    let spec = json!({"name": "mine", "url": receiver.url("/"), "types": ["job.started"]});
    let (status, made) = alice(&mesh, Method::POST, "/v1/webhooks", &spec).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    mesh.wait_for_positions(1).await;
    mesh.stop().await;

    // The row as written by the previous version.
    let key = match kind {
        Kind::Sqlite => "webhook-dispatcher.key",
        Kind::Postgres => "secrets.key",
    };
    let vault = Vault::open_or_make(&mesh.folder.path().join(key)).unwrap();
    let old =
        json!({"first_wait": "100ms", "growth": 2, "longest_wait": "300ms", "circuit_after": 0});
    let (id, mut definition) = sealed(&mesh, &vault).await;
    let (_, shown, _) = mesh.endpoint_row("alice/mine").await;
    let mut shown: Value = serde_json::from_str(&shown).unwrap();
    for spec in [&mut definition["spec"], &mut shown] {
        let old = old.as_object().unwrap().clone();
        spec.as_object_mut().unwrap().extend(old);
    }
    let blob = hex::encode(vault.seal(&id, definition.to_string().as_bytes()));
    let blob = match kind {
        Kind::Sqlite => format!("X'{blob}'"),
        Kind::Postgres => format!("decode('{blob}', 'hex')"),
    };
    mesh.change_database(format!(
        "UPDATE endpoints SET spec = '{shown}', secrets = {blob} WHERE name = 'alice/mine'"
    ))
    .await;

    // The endpoint works and shows the new keys.
    mesh.start_dispatcher(&[]).await;
    mesh.wait_for_positions(1).await;
    let retry = json!({"initial_interval": "100ms", "multiplier": 2, "max_interval": "300ms"});
    let (_, shown) = alice(&mesh, Method::GET, path, &Value::Null).await;
    assert_eq!(shown["retry"], retry);
    assert_eq!(shown["circuit_breaker"], json!({"failure_threshold": 0}));
    assert!(shown.get("first_wait").is_none(), "{shown}");
    receiver.answer_next([CannedResponse::status(503)]);
    mesh.publish(&event(EventType::JobStarted, 1)).await;
    wait_until("it is delivered", DEADLINE, async || {
        receiver.received().len() == 2
    })
    .await;

    // Patches must use the new keys, also to remove a value.
    for (patch, key) in [
        (
            json!({"first_wait": "1s"}),
            "first_wait: renamed to retry.initial_interval",
        ),
        (
            json!({"growth": null}),
            "growth: renamed to retry.multiplier",
        ),
    ] {
        let (status, problem) = alice(&mesh, Method::PATCH, path, &patch).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
        assert!(problem.to_string().contains(key), "{problem}");
    }
    let spec = json!({"name": "new", "url": receiver.url("/"), "circuit_after": 3});
    let (status, problem) = alice(&mesh, Method::POST, "/v1/webhooks", &spec).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    let problem = problem.to_string();
    let expected = "circuit_after: renamed to circuit_breaker.failure_threshold";
    assert!(problem.contains(expected), "{problem}");

    // A change merges tables and stores the new keys.
    let patch = json!({"retry": {"multiplier": 3, "max_interval": null}});
    let (status, changed) = alice(&mesh, Method::PATCH, path, &patch).await;
    assert_eq!(status, StatusCode::OK, "{changed}");
    let retry = json!({"initial_interval": "100ms", "multiplier": 3});
    assert_eq!(changed["retry"], retry);
    let (_, definition) = sealed(&mesh, &vault).await;
    let (_, shown, _) = mesh.endpoint_row("alice/mine").await;
    let shown: Value = serde_json::from_str(&shown).unwrap();
    for spec in [&definition["spec"], &shown] {
        assert_eq!(spec["retry"], retry);
        assert_eq!(spec["circuit_breaker"], json!({"failure_threshold": 0}));
        for key in old.as_object().unwrap().keys() {
            assert!(spec.get(key).is_none(), "{spec}");
        }
    }
}
