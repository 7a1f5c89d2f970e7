//! Names are per owner: two users and the operator may each have a `ci`, and nobody reaches another's by accident.

use axum::http::{Method, StatusCode};
use mesh_events::proto::mesh::audit::v1::{AuditEntry, audit_entry::Act};
use mesh_events::{Event, EventType};
use mesh_runtime::api::Role;
use mesh_testkit::{WebhookReceiver, wait_until};
use serde_json::{Value, json};

use crate::harness::{DEADLINE, Kind, Mesh, at, event, ids, on_both, signed};
use crate::replay::replay;

on_both!(
    each_has_a_webhook_of_the_same_name,
    a_users_webhook_from_before_names_were_per_owner_goes_on_where_it_was,
);

fn started(user: &str, job: u32) -> Event {
    let mut event = event(EventType::JobStarted, job);
    event.owner.as_mut().unwrap().user = user.into();
    event
}

async fn each_has_a_webhook_of_the_same_name(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    let mut mesh = Mesh::for_api(kind).await;
    let file = signed(
        "ci",
        &receiver.url("/operator"),
        "types = [\"job.started\"]\ndescription = \"operator\"",
    );
    mesh.stop().await;
    mesh.run(&[file]).await;
    let mut audit = mesh
        .listen::<AuditEntry>("mesh.testbed.audit.webhook")
        .await;
    let ask = async |who: &str, role, method: Method, path: &str, body: &Value| {
        mesh.ask(method, path, who, role, body).await
    };
    let (user, auditor, admin) = (Role::User, Role::Auditor, Role::Admin);
    for who in ["alice", "bob"] {
        let url = receiver.url(&format!("/{who}"));
        let spec = json!({"name": "ci", "url": url, "types": ["job.started"], "description": who});
        let (status, made) = ask(who, user, Method::POST, "/v1/webhooks", &spec).await;
        assert_eq!(status, StatusCode::CREATED, "{made}");
        assert_eq!(
            (&made["webhook"]["name"], &made["webhook"]["full_name"]),
            (&json!("ci"), &json!(format!("{who}/ci")))
        );
        let (status, problem) = ask(who, user, Method::POST, "/v1/webhooks", &spec).await;
        assert_eq!(status, StatusCode::CONFLICT, "{problem}");
    }
    mesh.wait_for_positions(3).await;

    // Owner of the endpoint that a caller means by a name. Empty if there is none for them.
    let none = Value::Null;
    for (path, who, role, meant) in [
        ("ci", "alice", user, "alice"),
        ("ci", "bob", user, "bob"),
        ("ci", "carol", user, ""),
        ("ci", "root", admin, "operator"),
        ("ci", "eve", auditor, "operator"),
        ("alice%2Fci", "alice", user, "alice"),
        ("alice%2Fci", "bob", user, ""),
        ("alice%2Fci", "eve", auditor, "alice"),
        ("alice%2Fci", "root", admin, "alice"),
        ("ci?owner=alice", "root", admin, "alice"),
        ("ci?owner=alice", "bob", user, ""),
        ("ci?owner=bob", "bob", user, "bob"),
        ("ci?owner=", "root", admin, "operator"),
        ("%2Fci", "root", admin, "operator"),
        ("%2Fci", "alice", user, ""),
        ("root%2Fci", "root", admin, ""),
        ("alice%2Fci?owner=bob", "root", admin, ""),
        ("ci?owner=alice&owner=bob", "root", admin, ""),
    ] {
        let (status, shown) = ask(
            who,
            role,
            Method::GET,
            &format!("/v1/webhooks/{path}"),
            &none,
        )
        .await;
        let description = shown["description"].as_str().unwrap_or_default();
        assert_eq!(description, meant, "{path} as {who}: {shown}");
        assert_eq!(status == StatusCode::NOT_FOUND, meant.is_empty(), "{shown}");
    }

    // A change of one endpoint affects no other.
    mesh.publish(&started("alice", 1)).await;
    mesh.publish(&started("bob", 2)).await;
    for (name, count) in [("/ci", 2), ("alice/ci", 1), ("bob/ci", 1)] {
        mesh.wait_for_count(name, "delivered", count).await;
    }
    for (who, role, method, path, expected) in [
        ("eve", auditor, Method::POST, "alice%2Fci/pause", 403),
        ("bob", user, Method::POST, "alice%2Fci/pause", 404),
        ("bob", user, Method::POST, "ci/pause", 200),
        ("root", admin, Method::POST, "ci/pause?owner=alice", 200),
        ("root", admin, Method::POST, "alice%2Fci/resume", 200),
        ("root", admin, Method::DELETE, "root%2Fci", 404),
    ] {
        let path = format!("/v1/webhooks/{path}");
        let (status, answer) = ask(who, role, method, &path, &none).await;
        assert_eq!(status.as_u16(), expected, "{path} as {who}: {answer}");
    }
    let states = async || {
        let mut states = Vec::new();
        for name in ["/ci", "alice/ci", "bob/ci"] {
            let shown = mesh.call(Method::GET, &at(name)).await.1;
            states.push(shown["state"].as_str().unwrap_or("gone").to_owned());
        }
        states
    };
    assert_eq!(states().await, ["active", "active", "paused"]);
    replay(&mesh, "r1", "alice/ci", &[&started("alice", 1)]).await;
    mesh.wait_for_count("alice/ci", "delivered", 2).await;
    let paths: Vec<String> = receiver
        .received()
        .iter()
        .map(|it| it.path.clone())
        .collect();
    assert_eq!(paths.iter().filter(|path| *path == "/alice").count(), 2);
    assert_eq!(paths.len(), 5, "{paths:?}");

    let (status, _) = ask("alice", user, Method::DELETE, "/v1/webhooks/ci", &none).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    mesh.wait_for_positions(2).await;
    wait_until("alice's is gone", DEADLINE, async || {
        states().await == ["active", "gone", "paused"]
    })
    .await;
    let mut acts = Vec::new();
    for _ in 0..6 {
        let Some(Act::Webhook(act)) = audit.next().await.act else {
            panic!("no act on a webhook");
        };
        acts.push(format!("{} {} {}", act.endpoint, act.owner, act.what));
    }
    acts.sort();
    assert_eq!(
        acts,
        [
            "alice/ci alice created",
            "alice/ci alice paused",
            "alice/ci alice removed",
            "alice/ci alice resumed",
            "bob/ci bob created",
            "bob/ci bob paused",
        ]
    );
}

/// Reverts a database to global names.
async fn as_before(mesh: &Mesh, kind: Kind) {
    let mut sql = String::new();
    for (table, column) in [
        ("deliveries", "endpoint"),
        ("leases", "endpoint"),
        ("missed", "endpoint"),
        ("attempts", "endpoint"),
        ("redeliveries", "endpoint"),
        ("kept", "endpoint"),
        ("endpoints", "name"),
    ] {
        sql += &format!("UPDATE {table} SET {column} = 'mine' WHERE {column} = 'alice/mine';\n");
    }
    let version = match kind {
        Kind::Sqlite => 7,
        Kind::Postgres => 6,
    };
    sql += &format!(
        "DROP TABLE cursors; DELETE FROM deliveries;
         DELETE FROM _sqlx_migrations WHERE version >= {version};"
    );
    mesh.change_database(sql).await;
}

async fn a_users_webhook_from_before_names_were_per_owner_goes_on_where_it_was(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    let mut mesh = Mesh::for_api(kind).await;
    let spec = json!({"name": "mine", "url": receiver.url("/"), "types": ["job.started"]});
    let (status, _) = mesh
        .ask(Method::POST, "/v1/webhooks", "alice", Role::User, &spec)
        .await;
    assert_eq!(status, StatusCode::CREATED);
    mesh.wait_for_positions(1).await;
    let first = started("alice", 1);
    mesh.publish(&first).await;
    mesh.wait_for_count("alice/mine", "delivered", 1).await;
    mesh.stop().await;

    as_before(&mesh, kind).await;
    mesh.make_legacy_consumer("SLURM_EVENTS", "mine", "alice", 1)
        .await;
    let second = started("alice", 2);
    mesh.publish(&second).await;
    mesh.start_dispatcher(&[]).await;
    mesh.wait_for_count("alice/mine", "delivered", 1).await;
    assert_eq!(ids(&receiver.received()), [first.id, second.id]);
    let consumers = mesh.consumers("SLURM_EVENTS").await;
    assert!(
        !consumers.iter().any(|name| name.starts_with("wh-")),
        "the former one is gone: {consumers:?}"
    );
    // A new endpoint of the old name is a different one.
    let spec = json!({"name": "mine", "url": receiver.url("/"), "owner": "bob"});
    let (status, _) = mesh
        .ask(Method::POST, "/v1/webhooks", "root", Role::Admin, &spec)
        .await;
    assert_eq!(status, StatusCode::CREATED);
    mesh.wait_for_positions(2).await;
    assert_eq!(mesh.count("bob/mine", "delivered").await, 0);
}
