//! Processes killed under load: nothing is lost, and only requests in flight are repeated.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use mesh_events::EventType;
use mesh_events::proto::mesh::audit::v1::AuditEntry;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_testkit::{CannedResponse, NatsServer, Postgres, SmallDisk, WebhookReceiver, wait_until};

use crate::dispatcher::Dispatcher;
use crate::harness::{DEADLINE, Kind, Listener, Mesh, event, ids, on_both, signed};
use crate::replicas::{CONCURRENCY, ENDPOINTS, delivered, endpoints, publish, until};

/// Shortens the consumer's ack wait, after which unacknowledged messages are redelivered: three times the timeout, at
/// least half a minute.
fn brief(endpoint: &str) -> String {
    endpoint.replace("timeout = \"30s\"", "timeout = \"5s\"")
}

fn slowly(delay: Duration) -> CannedResponse {
    CannedResponse {
        delay,
        ..CannedResponse::status(204)
    }
}

/// Publishes job starts and returns their ids.
async fn started(mesh: &Mesh, jobs: Range<u32>) -> BTreeSet<String> {
    let events: Vec<_> = jobs.map(|job| event(EventType::JobStarted, job)).collect();
    let ids = events.iter().map(|event| event.id.clone()).collect();
    let published = mesh.bus.publish_all(events, &Default::default()).await;
    published.unwrap();
    ids
}

/// Number of requests per id.
fn times(receiver: &WebhookReceiver) -> BTreeMap<String, usize> {
    let mut times = BTreeMap::new();
    for id in ids(&receiver.received()) {
        *times.entry(id).or_default() += 1;
    }
    times
}

async fn arrived(receiver: &WebhookReceiver, expected: &BTreeSet<String>) {
    wait_until("every event", DEADLINE, async || {
        let came: BTreeSet<_> = times(receiver).into_keys().collect();
        came.is_superset(expected)
    })
    .await;
}

/// Waits until an audit entry was published for each delivery at each endpoint.
async fn audited(audit: &mut Listener<AuditEntry>, expected: usize) {
    let mut sent = BTreeSet::new();
    while sent.len() < expected {
        let Some(Act::Delivery(delivery)) = audit.next().await.act else {
            panic!("no delivery");
        };
        assert_eq!(delivery.outcome, "delivered");
        sent.insert((delivery.endpoint, delivery.event_id));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_on_a_file_that_is_killed_again_and_again_repeats_only_what_was_under_way() {
    const KILLS: u32 = 3;
    let receiver = WebhookReceiver::start().await;
    let mesh = Mesh::without_dispatcher().await;
    let text = brief(&signed("pipeline", &receiver.url("/"), ""));
    let config = mesh.write_config(&[text]);
    let mut dispatcher = Dispatcher::start(&config, 0);
    mesh.wait_for_positions(1).await;
    let mut audit = mesh
        .listen::<AuditEntry>("mesh.testbed.audit.delivery")
        .await;
    let (mut done, mut under_way) = (BTreeSet::new(), BTreeSet::new());
    for kill in 0..KILLS {
        // Deliveries that are on disk as delivered.
        receiver.answer_always(CannedResponse::status(204));
        let first = 1 + 100 * kill;
        done.append(&mut started(&mesh, first..first + 20).await);
        let mut file = mesh.outsider().await;
        wait_until("outcomes on disk", DEADLINE, async || {
            // Not only their number: some that were in flight at the last kill are delivered meanwhile as well.
            let sql = "SELECT event_id FROM deliveries WHERE state = 'delivered'";
            let ids: Vec<String> = sqlx::query_scalar(sql).fetch_all(&mut file).await.unwrap();
            let on_disk: BTreeSet<String> = ids.into_iter().collect();
            on_disk.is_superset(&done)
        })
        .await;
        // Deliveries that are in flight: none has a response when the dispatcher is killed.
        receiver.answer_always(slowly(Duration::from_secs(3)));
        let mut new = started(&mesh, first + 20..first + 35).await;
        wait_until("requests under way", DEADLINE, async || {
            let requested = ids(&receiver.received());
            requested.iter().filter(|id| new.contains(*id)).count() > 5
        })
        .await;
        under_way.append(&mut new);
        dispatcher.replace();
    }
    receiver.answer_always(CannedResponse::status(204));
    let expected: BTreeSet<String> = done.union(&under_way).cloned().collect();
    audited(&mut audit, expected.len()).await;
    let times = times(&receiver);
    assert_eq!(times.keys().cloned().collect::<BTreeSet<_>>(), expected);
    for id in &done {
        assert_eq!(times[id], 1, "{id} was on disk before it was killed");
    }
    let max = 1 + usize::try_from(KILLS).unwrap();
    assert!(times.values().all(|times| *times <= max), "{times:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redelivery_whose_dispatcher_is_killed_again_and_again_misses_none() {
    const DEAD: usize = 40;
    const KILLS: usize = 3;
    let receiver = WebhookReceiver::start().await;
    receiver.answer_always(CannedResponse::status(404));
    let mesh = Mesh::without_dispatcher().await;
    let config = mesh.write_config(&[signed("pipeline", &receiver.url("/"), "")]);
    let mut dispatcher = Dispatcher::start(&config, 0);
    mesh.wait_for_positions(1).await;
    let dead = started(&mesh, 1..1 + u32::try_from(DEAD).unwrap()).await;
    let mut file = mesh.outsider().await;
    let mut count = async |what: &'static str| -> usize {
        let count: i64 = sqlx::query_scalar(what).fetch_one(&mut file).await.unwrap();
        usize::try_from(count).unwrap()
    };
    wait_until("they are dead letters", DEADLINE, async || {
        count("SELECT COUNT(*) FROM deliveries WHERE state = 'dead' AND announced = 1").await
            == DEAD
    })
    .await;

    receiver.answer_always(slowly(Duration::from_millis(300)));
    mesh_runtime::install_crypto_provider();
    let client = reqwest::Client::builder()
        .unix_socket(dispatcher.socket())
        .build()
        .unwrap();
    let job = client
        .post("http://mesh/v1/webhooks/pipeline/redeliver")
        .json(&serde_json::json!({"all": true, "rate": 10}))
        .send()
        .await
        .unwrap();
    assert_eq!(job.status(), 202, "{:?}", job.text().await);
    for kill in 1..=KILLS {
        wait_until("some more came again", DEADLINE, async || {
            receiver.received().len() >= DEAD + 8 * kill
        })
        .await;
        dispatcher.replace();
    }
    wait_until("all are delivered", DEADLINE, async || {
        count("SELECT COUNT(*) FROM deliveries WHERE state = 'delivered'").await == DEAD
    })
    .await;
    wait_until("it is done", DEADLINE, async || {
        count("SELECT COUNT(*) FROM redeliveries WHERE state = 'done'").await == 1
    })
    .await;
    let times = times(&receiver);
    assert_eq!(times.keys().cloned().collect::<BTreeSet<_>>(), dead);
    // Refused once, then delivered, plus one repetition for each kill while it was in flight.
    let max = 2 + KILLS;
    assert!(
        times.values().all(|times| (2..=max).contains(times)),
        "{times:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_lose_nothing_when_postgresql_is_killed_again_and_again() {
    const KILLS: usize = 3;
    let receiver = WebhookReceiver::start().await;
    receiver.answer_always(slowly(Duration::from_millis(50)));
    let mut server = Postgres::start().await;
    let mut mesh = Mesh::on(Kind::Sqlite).await;
    mesh.database = server.create_database();
    let config = mesh.write_config(&endpoints(&receiver));
    let _dispatchers: Vec<Dispatcher> = (0..2).map(|n| Dispatcher::start(&config, n)).collect();
    mesh.wait_for_positions(ENDPOINTS).await;
    mesh.wait_for_replicas(2, ENDPOINTS).await;
    let shared = mesh.changes_of_hands().await;
    let mut audit = mesh
        .listen::<AuditEntry>("mesh.testbed.audit.delivery")
        .await;
    let mut expected = BTreeSet::new();
    for kill in 0..KILLS {
        let first = 1 + 40 * u32::try_from(kill).unwrap();
        let before = receiver.received().len();
        expected.append(&mut publish(&mesh, first..first + 40).await);
        wait_until("some deliveries", DEADLINE, async || {
            receiver.received().len() >= before + 20
        })
        .await;
        server.kill();
        server.restart().await;
    }
    until(&mesh, &receiver, "every event at every endpoint", &expected).await;
    audited(&mut audit, expected.len()).await;
    let repeated = receiver.received().len() - delivered(&receiver).len();
    // On a busy machine a dispatcher may be late and lose leases, whose requests in flight are repeated as well.
    let changes = mesh.changes_of_hands().await - shared;
    assert!(
        repeated <= (KILLS * ENDPOINTS + changes) * CONCURRENCY,
        "{repeated} repeated, more than were under way at the kills and {changes} changes"
    );
}

fn nth<'a>(mesh: &'a mut Mesh, others: &'a mut [NatsServer], n: usize) -> &'a mut NatsServer {
    match n.checked_sub(1) {
        None => &mut mesh.nats,
        Some(n) => &mut others[n],
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_three_nats_servers_each_is_killed_and_nothing_is_lost_or_sent_twice() {
    let receiver = WebhookReceiver::start().await;
    receiver.answer_always(slowly(Duration::from_millis(20)));
    let servers = NatsServer::start_cluster(3).await;
    let (mut mesh, mut others) = Mesh::with(Kind::Sqlite, servers).await;
    let text = brief(&signed("pipeline", &receiver.url("/"), "concurrency = 8"));
    mesh.run(&[text]).await;
    let mut expected = BTreeSet::new();
    for n in 0..3 {
        let before = receiver.received().len();
        let first = 1 + 100 * u32::try_from(n).unwrap();
        expected.append(&mut started(&mesh, first..first + 50).await);
        wait_until("some deliveries", DEADLINE, async || {
            receiver.received().len() >= before + 20
        })
        .await;
        nth(&mut mesh, &mut others, n).kill();
        // Two of three servers continue.
        expected.append(&mut started(&mesh, first + 50..first + 100).await);
        arrived(&receiver, &expected).await;
        nth(&mut mesh, &mut others, n).restart().await;
    }
    assert!(times(&receiver).values().all(|times| *times == 1));
}

on_both!(when_nats_is_killed_under_load_nothing_is_lost_or_sent_twice);

async fn when_nats_is_killed_under_load_nothing_is_lost_or_sent_twice(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    receiver.answer_always(slowly(Duration::from_millis(50)));
    let text = brief(&signed("pipeline", &receiver.url("/"), "concurrency = 8"));
    let mut mesh = Mesh::start_on(kind, &[text]).await;
    let mut expected = BTreeSet::new();
    for kill in 0..3 {
        let first = 1 + 60 * kill;
        let before = receiver.received().len();
        expected.append(&mut started(&mesh, first..first + 60).await);
        wait_until("some deliveries", DEADLINE, async || {
            receiver.received().len() >= before + 10
        })
        .await;
        mesh.nats.kill();
        mesh.nats.restart().await;
    }
    arrived(&receiver, &expected).await;
    mesh.wait_for_count("pipeline", "delivered", expected.len() as u64)
        .await;
    let times = times(&receiver);
    assert_eq!(times.into_keys().collect::<BTreeSet<_>>(), expected);
    assert_eq!(receiver.received().len(), expected.len(), "none twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_full_disk_nothing_more_is_sent_and_with_room_again_nothing_twice() {
    let disk = SmallDisk::mount("32m");
    let receiver = WebhookReceiver::start().await;
    let mut mesh = Mesh::on(Kind::Sqlite).await;
    mesh.database = format!("sqlite:{}", disk.path().join("webhooks.db").display());
    mesh.run(&[signed("pipeline", &receiver.url("/"), "concurrency = 16")])
        .await;
    let mut expected = started(&mesh, 1..21).await;
    mesh.wait_for_count("pipeline", "delivered", 20).await;
    disk.fill();
    // More than the file's allocated pages can hold.
    expected.append(&mut started(&mesh, 21..1021).await);
    wait_until("not ready", DEADLINE, async || {
        mesh.database_problem()
            .is_some_and(|problem| problem.contains("full"))
    })
    .await;
    assert!(receiver.received().len() < expected.len());
    disk.empty();
    mesh.wait_for_count("pipeline", "delivered", expected.len() as u64)
        .await;
    wait_until("ready again", DEADLINE, async || {
        mesh.database_problem().is_none()
    })
    .await;
    let times = times(&receiver);
    assert_eq!(times.into_keys().collect::<BTreeSet<_>>(), expected);
    assert_eq!(receiver.received().len(), expected.len(), "none twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn told_to_end_it_finishes_what_is_under_way_and_the_next_one_goes_on_at_once() {
    let receiver = WebhookReceiver::start().await;
    receiver.answer_always(slowly(Duration::from_secs(1)));
    let mesh = Mesh::without_dispatcher().await;
    let text = signed("pipeline", &receiver.url("/"), "concurrency = 8");
    let config = mesh.write_config(&[text]);
    let mut dispatcher = Dispatcher::start(&config, 0);
    mesh.wait_for_positions(1).await;
    // More than a slow machine can deliver before it gets the signal.
    let expected = started(&mesh, 1..301).await;
    wait_until("requests under way", DEADLINE, async || {
        receiver.received().len() >= 4
    })
    .await;
    dispatcher.signal("-TERM");
    assert!(dispatcher.ended().await.success());
    let before = receiver.received().len();
    assert!(before < expected.len(), "ended in the middle");

    receiver.answer_always(CannedResponse::status(204));
    let _next = Dispatcher::start(&config, 1);
    arrived(&receiver, &expected).await;
    assert_eq!(receiver.received().len(), expected.len(), "none twice");
}
