//! The dispatcher's SQLite file: its permissions, and deliveries while it is not writable.

use std::os::unix::fs::PermissionsExt as _;

use mesh_events::EventType;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, DeadLetter, audit_entry::Act};
use mesh_testkit::{CannedResponse, WebhookReceiver, wait_until};

use crate::harness::{DEADLINE, Mesh, event, ids, signed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_owner_may_read_the_file() {
    let receiver = WebhookReceiver::start().await;
    let mesh = Mesh::start(&[signed("pipeline", &receiver.url("/"), "")]).await;
    mesh.publish(&event(EventType::JobStarted, 1)).await;
    mesh.wait_for_count("pipeline", "delivered", 1).await;
    for side_file in ["", "-wal", "-shm"] {
        let name = format!("webhook-dispatcher.db{side_file}");
        let mode = std::fs::metadata(mesh.folder.path().join(&name))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{name}: {mode:o}");
    }
}

/// Another process holds the write lock: every commit fails, reads succeed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_database_cannot_be_written_nothing_is_sent_and_nothing_is_sent_twice() {
    let (good, bad) = (
        WebhookReceiver::start().await,
        WebhookReceiver::start().await,
    );
    bad.answer_always(CannedResponse::status(503));
    let mesh = Mesh::start(&[
        signed("good", &good.url("/"), "types = [\"job.started\"]"),
        signed(
            "bad",
            &bad.url("/"),
            "types = [\"job.submitted\"]\nmax_attempts = 100000",
        ),
    ])
    .await;
    for job in 1..=3 {
        mesh.publish(&event(EventType::JobSubmitted, job)).await;
    }
    mesh.wait_for_count("bad", "waiting", 3).await;
    assert_eq!(mesh.database_problem(), None);

    let mut outsider = mesh.outsider().await;
    sqlx::query("BEGIN IMMEDIATE")
        .execute(&mut outsider)
        .await
        .unwrap();
    let first = event(EventType::JobStarted, 1);
    mesh.publish(&first).await;
    wait_until("the first one is sent", DEADLINE, async || {
        good.received().len() == 1
    })
    .await;
    wait_until("not ready", DEADLINE, async || {
        mesh.database_problem()
            .is_some_and(|problem| problem.contains("locked"))
    })
    .await;
    let second = event(EventType::JobStarted, 2);
    mesh.publish(&second).await;
    let before = bad.received().len();
    // Without the check it would have been sent by then.
    wait_until("the second one is read", DEADLINE, async || {
        mesh.is_read().await
    })
    .await;
    assert_eq!(ids(&good.received()), std::slice::from_ref(&first.id));
    assert_eq!(bad.received().len(), before, "what waits goes on waiting");

    sqlx::query("ROLLBACK")
        .execute(&mut outsider)
        .await
        .unwrap();
    wait_until("both delivered", DEADLINE * 2, async || {
        mesh.count("good", "delivered").await == 2
    })
    .await;
    assert_eq!(
        ids(&good.received()),
        [first.id, second.id],
        "the outcome of the first was kept: it is not sent again"
    );
    wait_until("ready again", DEADLINE, async || {
        mesh.database_problem().is_none()
    })
    .await;
    wait_until("retries go on", DEADLINE, async || {
        bad.received().len() > before
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_outlives_a_long_absence_and_that_of_a_removed_endpoint_ends_as_dead_letter() {
    let mut receiver = WebhookReceiver::start().await;
    let url = receiver.url("/");
    receiver.stop().await;
    let provider_state = signed("kept", &url, "max_attempts = 100000");
    let removed = signed("removed", &url, "max_attempts = 100000");
    let mut mesh = Mesh::start(&[provider_state.clone(), removed]).await;
    let event = event(EventType::JobStarted, 1);
    mesh.publish(&event).await;
    mesh.wait_for_count("kept", "waiting", 1).await;
    mesh.wait_for_count("removed", "waiting", 1).await;
    mesh.stop().await;
    // Simulates a dispatcher that was stopped for longer than the retention of outcomes.
    let mut outsider = mesh.outsider().await;
    let aged =
        sqlx::query("UPDATE deliveries SET created_at = 1000, updated_at = 1000, next_at = 1000")
            .execute(&mut outsider)
            .await
            .unwrap();
    assert_eq!(aged.rows_affected(), 2);
    receiver.restart().await;
    let mut letters = mesh
        .listen::<DeadLetter>("mesh.dead.webhook-dispatcher")
        .await;
    let mut audit = mesh
        .listen::<AuditEntry>("mesh.testbed.audit.delivery")
        .await;

    mesh.run(&[provider_state]).await;
    mesh.wait_for_count("kept", "delivered", 1).await;
    assert_eq!(ids(&receiver.received()), std::slice::from_ref(&event.id));
    let letter = letters.next().await;
    assert_eq!(letter.consumer, "webhook-dispatcher/removed");
    assert!(
        letter.reason.contains("the endpoint was removed"),
        "{}",
        letter.reason
    );
    assert!(!letter.body.is_empty(), "the original is kept");
    let mut outcomes = Vec::new();
    for _ in 0..2 {
        let Some(Act::Delivery(delivery)) = audit.next().await.act else {
            panic!("no delivery");
        };
        outcomes.push((delivery.endpoint, delivery.outcome));
    }
    outcomes.sort();
    assert_eq!(
        outcomes,
        [
            ("kept".to_owned(), "delivered".to_owned()),
            ("removed".to_owned(), "dead".to_owned())
        ]
    );
}
