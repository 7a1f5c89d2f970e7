//! Endpoints of `mesh.toml` that change while the dispatcher runs.

use mesh_events::EventType;
use mesh_testkit::{WebhookReceiver, wait_until, write_private};
use standardwebhooks::Webhook;

use crate::harness::{DEADLINE, Kind, Mesh, endpoint, event, ids, on_both, signed};

on_both!(
    endpoints_are_added_changed_and_removed_without_a_restart,
    a_faulty_file_changes_nothing,
    a_changed_secret_file_is_used,
);

async fn endpoints_are_added_changed_and_removed_without_a_restart(kind: Kind) {
    let (same, changed, removed) = (
        WebhookReceiver::start().await,
        WebhookReceiver::start().await,
        WebhookReceiver::start().await,
    );
    let unchanged = signed("same", &same.url("/"), "");
    let mut mesh = Mesh::start_on(
        kind,
        &[
            unchanged.clone(),
            signed("changed", &changed.url("/former"), ""),
            signed("removed", &removed.url("/"), ""),
        ],
    )
    .await;
    mesh.publish(&event(EventType::JobStarted, 1)).await;
    for name in ["same", "changed", "removed"] {
        mesh.wait_for_count(name, "delivered", 1).await;
    }

    mesh.write_config(&[
        unchanged,
        signed("changed", &changed.url("/new"), ""),
        signed("added", &removed.url("/added"), ""),
    ]);
    wait_until(
        "the new endpoint listens, the old one not",
        DEADLINE,
        async || {
            let positions = mesh.positions().await;
            positions.contains_key("added")
                && (kind == Kind::Postgres || !positions.contains_key("removed"))
        },
    )
    .await;
    let mut job = 100;
    wait_until("the changed endpoint is used", DEADLINE, async || {
        mesh.publish(&event(EventType::JobStarted, job)).await;
        job += 1;
        changed
            .received()
            .iter()
            .any(|request| request.path == "/new")
    })
    .await;
    let last = event(EventType::JobStarted, 3);
    mesh.publish(&last).await;
    let has = |receiver: &WebhookReceiver, path: &str| {
        let received = receiver.received();
        received
            .iter()
            .any(|request| request.path == path && request.header("webhook-id") == last.id)
    };
    wait_until("the last event", DEADLINE, async || {
        has(&same, "/") && has(&changed, "/new") && has(&removed, "/added")
    })
    .await;
    assert!(!has(&removed, "/"), "it was removed");
    for receiver in [&same, &changed] {
        let received = ids(&receiver.received());
        let distinct: std::collections::BTreeSet<_> = received.iter().collect();
        assert_eq!(received.len(), distinct.len(), "none twice");
    }
    assert!(mesh.note("webhook-dispatcher.endpoints").is_none());
    mesh.stop().await;
}

async fn a_faulty_file_changes_nothing(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    let good = signed("pipeline", &receiver.url("/"), "");
    let mut mesh = Mesh::start_on(kind, std::slice::from_ref(&good)).await;
    for (faulty, problem) in [
        (signed("pipeline", "ftp://example.org/", ""), "url"),
        (
            signed("pipeline", &receiver.url("/"), "typos = []"),
            "typos",
        ),
        ("[[webhook-dispatcher.endpoints".to_owned(), "mesh.toml"),
    ] {
        mesh.write_config(&[faulty]);
        wait_until("the fault is noted", DEADLINE, async || {
            let note = mesh.note("webhook-dispatcher.endpoints");
            note.is_some_and(|note| note.contains(problem) && note.contains("former endpoints"))
        })
        .await;
    }
    let event = event(EventType::JobStarted, 1);
    mesh.publish(&event).await;
    mesh.wait_for_count("pipeline", "delivered", 1).await;
    mesh.write_config(&[good]);
    wait_until("the note is gone", DEADLINE, async || {
        mesh.note("webhook-dispatcher.endpoints").is_none()
    })
    .await;
    mesh.stop().await;
}

async fn a_changed_secret_file_is_used(kind: Kind) {
    const NEW: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
    let receiver = WebhookReceiver::start().await;
    let mut mesh = Mesh::on(kind).await;
    let file = mesh.folder.path().join("pipeline.secret");
    write_private(&file, crate::harness::SECRET);
    let by_file = endpoint(
        "pipeline",
        &receiver.url("/"),
        "secret_file = \"pipeline.secret\"",
    );
    mesh.run(&[by_file]).await;
    std::fs::remove_file(&file).unwrap();
    wait_until("the missing file is noted", DEADLINE, async || {
        let note = mesh.note("webhook-dispatcher.endpoints");
        note.is_some_and(|note| note.contains("secret_file"))
    })
    .await;
    write_private(&file, NEW);
    let verifier = Webhook::new(NEW).unwrap();
    let mut job = 0;
    wait_until("the new secret signs", DEADLINE, async || {
        job += 1;
        mesh.publish(&event(EventType::JobStarted, job)).await;
        let received = receiver.received();
        let mut received = received.iter();
        received.any(|one| verifier.verify(&one.body, &one.headers).is_ok())
    })
    .await;
    mesh.stop().await;
}
