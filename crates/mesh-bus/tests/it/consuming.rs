use std::collections::HashMap;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use mesh_bus::{BatchHandler, Disposition, EndpointConsumer, Handler, Message};
use mesh_events::EventType::JobStarted;
use mesh_events::catalogue::{self, SLURM_EVENTS};
use mesh_events::subject;
use mesh_testkit::fixtures::{job, job_event};
use mesh_testkit::{NatsServer, wait_until};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{PATIENCE, connect, lookups};

/// Answers as configured and counts deliveries by job id.
#[derive(Clone, Default)]
struct Recorder {
    seen: Arc<Mutex<HashMap<u32, u64>>>,
}

impl Recorder {
    fn note(&self, message: &Message) -> u64 {
        let id = message.event().unwrap().job().unwrap().job_id;
        let mut seen = self.seen.lock().unwrap();
        let count = seen.entry(id).or_default();
        *count += 1;
        *count
    }

    fn jobs(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

struct Accept(Recorder);

impl Handler for Accept {
    async fn handle(&self, message: &Message) -> Disposition {
        self.0.note(message);
        Disposition::Ack
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn consumption_continues_after_the_server_was_killed() {
    let mut nats = NatsServer::start().await;
    let bus = connect(&nats, "cost-engine").await;
    let (recorder, shutdown) = (Recorder::default(), CancellationToken::new());
    let consumer = {
        let (bus, handler, shutdown) = (bus.clone(), Accept(recorder.clone()), shutdown.clone());
        tokio::spawn(async move {
            bus.consume(SLURM_EVENTS, "cost-engine", 8, handler, &shutdown)
                .await
        })
    };
    bus.publish(&job_event(JobStarted, job(1))).await.unwrap();
    wait_until("the first message", PATIENCE, async || recorder.jobs() == 1).await;
    nats.restart().await;
    bus.publish_until_done(&job_event(JobStarted, job(2)), &shutdown)
        .await
        .unwrap();
    wait_until("the message after the restart", PATIENCE, async || {
        recorder.jobs() == 2
    })
    .await;
    shutdown.cancel();
    consumer.await.unwrap().unwrap();
    // Both arrived. The number of deliveries is not fixed: the server may be killed before it has stored an acknowledgement, and then
    // redelivers (`nats.restart` is a kill).
}

fn of_all_jobs(name: &str) -> EndpointConsumer {
    EndpointConsumer {
        name: name.to_owned(),
        endpoint: "chat".into(),
        owner: String::new(),
        filters: vec!["slurm.*.job.>".into()],
        max_ack_pending: 64,
        ack_wait: PATIENCE * 2,
        created_at: chrono::Utc::now(),
    }
}

struct AcceptAll(Recorder);

impl BatchHandler for AcceptAll {
    async fn handle(&self, messages: &[Message]) -> Vec<Disposition> {
        for message in messages {
            self.0.note(message);
        }
        vec![Disposition::Ack; messages.len()]
    }
}

/// A reader resumes as soon as its deleted consumer exists again.
#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_was_deleted_is_opened_again() {
    let nats = NatsServer::start().await;
    let bus = connect(&nats, "webhook-dispatcher").await;
    let (one, many) = (
        of_all_jobs("wh-0123456789ab"),
        of_all_jobs("wh-cdefcdefcdef"),
    );
    let (by_one, by_many) = (Recorder::default(), Recorder::default());
    let shutdown = CancellationToken::new();
    let declare = async || {
        bus.endpoint_consumer(&one).await.unwrap();
        bus.endpoint_consumer(&many).await.unwrap();
    };
    declare().await;
    let consuming = {
        let (bus, shutdown) = (bus.clone(), shutdown.clone());
        let handlers = (Accept(by_one.clone()), AcceptAll(by_many.clone()));
        let names = (one.name.clone(), many.name.clone());
        tokio::spawn(async move {
            tokio::join!(
                bus.consume(SLURM_EVENTS, &names.0, 8, handlers.0, &shutdown),
                bus.consume_batches(SLURM_EVENTS, &names.1, 8, handlers.1, &shutdown)
            )
        })
    };
    let come = async |count: usize| {
        wait_until("every message", PATIENCE, async || {
            by_one.jobs() == count && by_many.jobs() == count
        })
        .await;
    };
    bus.publish(&job_event(JobStarted, job(1))).await.unwrap();
    come(1).await;
    let mut looked_up = [
        lookups(&nats, &one.name).await,
        lookups(&nats, &many.name).await,
    ];
    for consumer in [&one, &many] {
        bus.delete_endpoint_consumer(&consumer.name).await.unwrap();
    }
    bus.publish(&job_event(JobStarted, job(2))).await.unwrap();
    // Both readers have noticed it and look for their consumers.
    for lookups in &mut looked_up {
        let lookup = tokio::time::timeout(PATIENCE, lookups.next()).await;
        lookup.unwrap().unwrap();
    }
    assert!(!consuming.is_finished());
    declare().await;
    come(2).await;
    shutdown.cancel();
    let (one, many) = consuming.await.unwrap();
    one.unwrap();
    many.unwrap();
}

/// As on a busy machine: late messages are handled when they arrive, not after the ack wait.
#[tokio::test(flavor = "multi_thread")]
async fn late_messages_of_a_server_are_handled() {
    let nats = NatsServer::start().await;
    let bus = connect(&nats, "webhook-dispatcher").await;
    let endpoint = of_all_jobs("wh-0123456789ab");
    bus.endpoint_consumer(&endpoint).await.unwrap();
    let (recorder, shutdown) = (Recorder::default(), CancellationToken::new());
    let consumer = {
        let (bus, handler, shutdown) = (bus.clone(), Accept(recorder.clone()), shutdown.clone());
        let name = endpoint.name.clone();
        tokio::spawn(async move {
            bus.consume(SLURM_EVENTS, &name, 8, handler, &shutdown)
                .await
        })
    };
    let publisher = connect(&nats, "ingest").await;
    publisher
        .publish(&job_event(JobStarted, job(1)))
        .await
        .unwrap();
    wait_until("the first message", PATIENCE, async || recorder.jobs() == 1).await;
    // Longer than two heartbeats, of two seconds each.
    signal(&nats, "-STOP");
    let events: Vec<_> = (2..=50).map(|id| job_event(JobStarted, job(id))).collect();
    let publishing = {
        let shutdown = shutdown.clone();
        tokio::spawn(async move { publisher.publish_all(events, &shutdown).await })
    };
    tokio::time::sleep(Duration::from_secs(6)).await;
    signal(&nats, "-CONT");
    publishing.await.unwrap().unwrap();
    wait_until("what was published meanwhile", PATIENCE, async || {
        recorder.jobs() == 50
    })
    .await;
    shutdown.cancel();
    consumer.await.unwrap().unwrap();
}

fn signal(nats: &NatsServer, signal: &str) {
    let pid = nats.pid().unwrap().to_string();
    let status = Command::new("kill").args([signal, &pid]).status().unwrap();
    assert!(status.success());
}

struct RetryOnce(Recorder);

impl Handler for RetryOnce {
    async fn handle(&self, message: &Message) -> Disposition {
        if self.0.note(message) == 1 {
            Disposition::Nak {
                after: Duration::from_millis(50),
            }
        } else {
            Disposition::Ack
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_comes_again() {
    let nats = NatsServer::start().await;
    let bus = connect(&nats, "cost-engine").await;
    let (recorder, shutdown) = (Recorder::default(), CancellationToken::new());
    bus.publish(&job_event(JobStarted, job(1))).await.unwrap();
    let consuming = bus.consume(
        SLURM_EVENTS,
        "cost-engine",
        8,
        RetryOnce(recorder.clone()),
        &shutdown,
    );
    let done = async {
        wait_until("the second delivery", PATIENCE, async || {
            recorder.seen.lock().unwrap().get(&1) == Some(&2)
        })
        .await;
        shutdown.cancel();
    };
    tokio::join!(consuming, done).0.unwrap();
}

struct RejectAll;

impl BatchHandler for RejectAll {
    async fn handle(&self, messages: &[Message]) -> Vec<Disposition> {
        messages
            .iter()
            .map(|_| Disposition::DeadLetter {
                reason: "no use for it".into(),
            })
            .collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejected_message_is_parked_with_its_reason() {
    use mesh_events::proto::mesh::audit::v1::DeadLetter;
    use prost::Message as _;

    let nats = NatsServer::start().await;
    let bus = connect(&nats, "ledger").await;
    let shutdown = CancellationToken::new();
    let event = job_event(JobStarted, job(1));
    bus.publish(&event).await.unwrap();
    let client = async_nats::connect(nats.url()).await.unwrap();
    let mut letters = client.subscribe("mesh.dead.ledger").await.unwrap();
    client.flush().await.unwrap();
    let consuming = bus.consume_batches(SLURM_EVENTS, "ledger", 100, RejectAll, &shutdown);
    let parked = async {
        let letter = futures_util::StreamExt::next(&mut letters).await.unwrap();
        shutdown.cancel();
        DeadLetter::decode(letter.payload).unwrap()
    };
    let (result, letter) = tokio::join!(consuming, parked);
    result.unwrap();
    assert_eq!(
        (letter.reason.as_str(), letter.body),
        ("no use for it", event.encode_to_vec())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_begins_when_it_is_made_and_remembers_its_place() {
    let nats = NatsServer::start().await;
    let bus = connect(&nats, "webhook-dispatcher").await;
    bus.publish(&job_event(JobStarted, job(1))).await.unwrap();
    let created_at = chrono::Utc::now();
    // The consumer is created a moment later than the endpoint.
    bus.publish(&job_event(JobStarted, job(2))).await.unwrap();
    let endpoint = EndpointConsumer {
        created_at,
        ..of_all_jobs("wh-0123456789ab")
    };
    bus.endpoint_consumer(&endpoint).await.unwrap();
    bus.publish(&job_event(JobStarted, job(3))).await.unwrap();
    // Declared again, as at every start: its position stays.
    bus.endpoint_consumer(&endpoint).await.unwrap();
    assert_eq!(bus.endpoint_consumers().await.unwrap(), ["wh-0123456789ab"]);
    let (recorder, shutdown) = (Recorder::default(), CancellationToken::new());
    let consuming = bus.consume(
        SLURM_EVENTS,
        &endpoint.name,
        8,
        Accept(recorder.clone()),
        &shutdown,
    );
    let done = async {
        wait_until("the new events", PATIENCE, async || recorder.jobs() > 1).await;
        shutdown.cancel();
    };
    tokio::join!(consuming, done).0.unwrap();
    assert_eq!(
        *recorder.seen.lock().unwrap(),
        HashMap::from([(2, 1), (3, 1)])
    );
    bus.delete_endpoint_consumer(&endpoint.name).await.unwrap();
    assert!(bus.delete_endpoint_consumer("ledger").await.is_err());
}

struct Subjects(tokio::sync::mpsc::UnboundedSender<String>);

impl Handler for Subjects {
    async fn handle(&self, message: &Message) -> Disposition {
        self.0.send(message.subject.clone()).unwrap();
        Disposition::Ack
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_doorbell_is_for_one_service_of_its_cluster() {
    let nats = NatsServer::start().await;
    let bus = connect(&nats, "admin").await;
    // Messages wait for consumers that never existed before.
    for cluster in ["c1", "c-1", "c.1"] {
        for hook in ["JobComp", "a site's own", "ResumeProgram"] {
            let subject = subject::doorbell(cluster, hook);
            bus.publish_raw(subject.clone(), &subject, b"x".to_vec())
                .await
                .unwrap();
        }
    }
    let stop = CancellationToken::new();
    for (service, cluster, expected) in [
        (
            "ingest",
            "c.1",
            vec!["mesh.c_2E1.hook.JobComp", "mesh.c_2E1.hook.Other"],
        ),
        (
            "ingest",
            "c1",
            vec!["mesh.c1.hook.JobComp", "mesh.c1.hook.Other"],
        ),
        ("node-watcher", "c1", vec!["mesh.c1.hook.ResumeProgram"]),
        (
            "ingest",
            "c-1",
            vec!["mesh.c-1.hook.JobComp", "mesh.c-1.hook.Other"],
        ),
        ("node-watcher", "c.1", vec!["mesh.c_2E1.hook.ResumeProgram"]),
        ("node-watcher", "c-1", vec!["mesh.c-1.hook.ResumeProgram"]),
    ] {
        let (sender, mut subjects) = tokio::sync::mpsc::unbounded_channel();
        let durable = catalogue::durable(catalogue::MESH_HOOKS, service, cluster);
        let (bus, stop) = (bus.clone(), stop.clone());
        tokio::spawn(async move {
            bus.consume(catalogue::MESH_HOOKS, &durable, 1, Subjects(sender), &stop)
                .await
        });
        for expected in expected {
            let next = tokio::time::timeout(PATIENCE, subjects.recv());
            assert_eq!(next.await.unwrap().unwrap(), expected);
        }
    }
    stop.cancel();
}

/// Blocks at every message until a permit is added.
struct Held(Arc<Semaphore>);

impl Handler for Held {
    async fn handle(&self, _: &Message) -> Disposition {
        self.0.acquire().await.unwrap().forget();
        Disposition::Ack
    }
}

/// On one thread, as the recorder is thread-local.
#[tokio::test]
async fn a_backlog_is_a_metric_until_it_is_worked_off() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let metrics = recorder.handle();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let nats = NatsServer::start().await;
    let bus = connect(&nats, "cost-engine").await;
    for id in 1..=5 {
        bus.publish(&job_event(JobStarted, job(id))).await.unwrap();
    }
    let (gate, shutdown) = (Arc::new(Semaphore::new(0)), CancellationToken::new());
    let consumer = {
        let (bus, handler, shutdown) = (bus.clone(), Held(gate.clone()), shutdown.clone());
        tokio::spawn(async move {
            bus.consume(SLURM_EVENTS, "cost-engine", 1, handler, &shutdown)
                .await
        })
    };
    let pending_is = |count: u32| {
        let line = format!(
            "mesh_bus_pending{{stream=\"SLURM_EVENTS\",consumer=\"cost-engine\"}} {count}\n"
        );
        metrics.render().contains(&line)
    };
    wait_until("four more wait", PATIENCE, async || pending_is(4)).await;
    gate.add_permits(5);
    wait_until("none waits", PATIENCE, async || pending_is(0)).await;
    shutdown.cancel();
    consumer.await.unwrap().unwrap();
}
