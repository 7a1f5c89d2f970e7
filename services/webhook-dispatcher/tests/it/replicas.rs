//! Several dispatchers on one PostgreSQL: killed, suspended, added and removed under load.

use std::collections::BTreeSet;
use std::time::Duration;

use mesh_events::EventType;
use mesh_testkit::{CannedResponse, WebhookReceiver, wait_until};

use crate::dispatcher::{Dispatcher, logs};
use crate::harness::{DEADLINE, Kind, Mesh, event, ids, signed};

pub const ENDPOINTS: usize = 6;
pub const CONCURRENCY: usize = 4;

/// Endpoints with different paths at one receiver.
pub fn endpoints(receiver: &WebhookReceiver) -> Vec<String> {
    let more = format!("concurrency = {CONCURRENCY}");
    (0..ENDPOINTS)
        .map(|n| {
            signed(
                &format!("endpoint-{n}"),
                &receiver.url(&format!("/{n}")),
                &more,
            )
        })
        // The consumer's ack wait is three times the timeout, at least half a minute.
        .map(|text| text.replace("timeout = \"30s\"", "timeout = \"5s\""))
        .collect()
}

pub fn delivered(receiver: &WebhookReceiver) -> BTreeSet<(String, String)> {
    let received = receiver.received();
    let ids = ids(&received);
    received
        .into_iter()
        .map(|request| request.path)
        .zip(ids)
        .collect()
}

pub async fn publish(mesh: &Mesh, jobs: std::ops::Range<u32>) -> BTreeSet<(String, String)> {
    let events: Vec<_> = jobs.map(|job| event(EventType::JobStarted, job)).collect();
    let ids: Vec<String> = events.iter().map(|event| event.id.clone()).collect();
    mesh.bus
        .publish_all(events, &Default::default())
        .await
        .unwrap();
    (0..ENDPOINTS)
        .flat_map(|n| ids.iter().map(move |id| (format!("/{n}"), id.clone())))
        .collect()
}

pub async fn until(
    mesh: &Mesh,
    receiver: &WebhookReceiver,
    what: &str,
    expected: &BTreeSet<(String, String)>,
) {
    let done = tokio::time::timeout(
        DEADLINE,
        wait_until(what, DEADLINE * 2, async || {
            delivered(receiver) == *expected
        }),
    );
    if done.await.is_err() {
        let missing: Vec<_> = expected.difference(&delivered(receiver)).cloned().collect();
        panic!(
            "not in time: {what}; missing: {missing:?}\n{}",
            logs(&mesh.folder.path().join("mesh.toml"))
        );
    }
}

/// Waits until all outcomes are on disk: requests in flight are repeated when an endpoint changes owner.
async fn settled(mesh: &Mesh) {
    for n in 0..ENDPOINTS {
        let name = format!("endpoint-{n}");
        wait_until("nothing is under way", DEADLINE, async || {
            mesh.behind(&name).await == 0
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_again_and_again_they_lose_nothing() {
    const KILLS: usize = 6;
    let receiver = WebhookReceiver::start().await;
    receiver.answer_always(CannedResponse {
        delay: Duration::from_millis(50),
        ..CannedResponse::status(204)
    });
    let mesh = Mesh::on(Kind::Postgres).await;
    let config = mesh.write_config(&endpoints(&receiver));
    let mut replicas: Vec<Dispatcher> = (0..3).map(|n| Dispatcher::start(&config, n)).collect();
    mesh.wait_for_positions(ENDPOINTS).await;
    let mut expected = BTreeSet::new();
    for kill in 0..KILLS {
        let first = 1 + 40 * u32::try_from(kill).unwrap();
        expected.append(&mut publish(&mesh, first..first + 40).await);
        // Under load: wait for further deliveries, from any dispatcher.
        let before = receiver.received().len();
        wait_until("some deliveries", DEADLINE, async || {
            receiver.received().len() >= before + 10
        })
        .await;
        replicas[kill % 3].replace();
    }
    until(&mesh, &receiver, "every event at every endpoint", &expected).await;
    let repeated = receiver.received().len() - expected.len();
    // On a busy machine a live dispatcher may be late as well and lose its leases, so the number of changes of owner
    // is compared.
    let changes = mesh.changes_of_hands().await;
    assert!(changes > 0, "none was taken over");
    assert!(
        repeated <= changes * CONCURRENCY,
        "{repeated} repeated, more than were under way at {changes} changes"
    );
}

/// Delivers these jobs while no dispatcher comes or goes. Returns the number of changes of owner meanwhile: on a busy machine a live
/// dispatcher may be late and lose its leases.
async fn deliver(
    mesh: &Mesh,
    receiver: &WebhookReceiver,
    what: &str,
    expected: &mut BTreeSet<(String, String)>,
    jobs: std::ops::Range<u32>,
) -> usize {
    let before = mesh.changes_of_hands().await;
    expected.append(&mut publish(mesh, jobs).await);
    until(mesh, receiver, what, expected).await;
    settled(mesh).await;
    mesh.changes_of_hands().await - before
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_was_paused_sends_nothing_when_it_wakes_and_those_that_come_and_go_repeat_nothing()
{
    let receiver = WebhookReceiver::start().await;
    let mesh = Mesh::on(Kind::Postgres).await;
    let config = mesh.write_config(&endpoints(&receiver));
    let paused = Dispatcher::start(&config, 0);
    mesh.wait_for_positions(ENDPOINTS).await;
    mesh.wait_for_replicas(1, ENDPOINTS).await;
    let mut expected = BTreeSet::new();
    let what = "the first dispatcher delivers";
    let mut changes = deliver(&mesh, &receiver, what, &mut expected, 1..11).await;

    // No request is in flight while others join.
    let _second = Dispatcher::start(&config, 1);
    mesh.wait_for_replicas(2, ENDPOINTS).await;
    changes += deliver(&mesh, &receiver, "two deliver", &mut expected, 11..21).await;

    paused.signal("-STOP");
    mesh.wait_for_replicas(1, ENDPOINTS).await;
    let what = "the other one delivers";
    changes += deliver(&mesh, &receiver, what, &mut expected, 21..31).await;
    paused.signal("-CONT");
    mesh.wait_for_replicas(2, ENDPOINTS).await;
    let what = "both deliver again";
    changes += deliver(&mesh, &receiver, what, &mut expected, 31..41).await;

    // A regular shutdown releases the leases.
    paused.signal("-TERM");
    mesh.wait_for_replicas(1, ENDPOINTS).await;
    let what = "the other one goes on";
    changes += deliver(&mesh, &receiver, what, &mut expected, 41..51).await;
    let repeated = receiver.received().len() - expected.len();
    assert!(
        repeated <= changes * CONCURRENCY,
        "{repeated} repeated: nothing was under way when they came and went, and there were {changes} changes else"
    );
}
