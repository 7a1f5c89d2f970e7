use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::jetstream;
use futures_util::StreamExt as _;
use mesh_bus::{BatchHandler, Disposition, Handler, Message};
use mesh_events::EventType::{JobCompleted, JobStarted};
use mesh_events::catalogue::{self, SLURM_EVENTS};
use mesh_events::subject;
use mesh_testkit::fixtures::{job, job_event};
use mesh_testkit::{NatsServer, wait_until};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{PATIENCE, connect};

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

/// As on a busy machine: late messages are handled when they arrive, not after the ack wait.
#[tokio::test(flavor = "multi_thread")]
async fn late_messages_of_a_server_are_handled() {
    let nats = NatsServer::start().await;
    let bus = connect(&nats, "cost-engine").await;
    let (recorder, shutdown) = (Recorder::default(), CancellationToken::new());
    let consumer = {
        let (bus, handler, shutdown) = (bus.clone(), Accept(recorder.clone()), shutdown.clone());
        tokio::spawn(async move {
            bus.consume(SLURM_EVENTS, "cost-engine", 8, handler, &shutdown)
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
    nats.pause();
    let events: Vec<_> = (2..=50).map(|id| job_event(JobStarted, job(id))).collect();
    let publishing = {
        let shutdown = shutdown.clone();
        tokio::spawn(async move { publisher.publish_all(events, &shutdown).await })
    };
    tokio::time::sleep(Duration::from_secs(6)).await;
    nats.resume();
    publishing.await.unwrap().unwrap();
    wait_until("what was published meanwhile", PATIENCE, async || {
        recorder.jobs() == 50
    })
    .await;
    shutdown.cancel();
    consumer.await.unwrap().unwrap();
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

/// A reader without acknowledgements stores its position itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_read_in_order_from_a_sequence_or_a_time() {
    let nats = NatsServer::start().await;
    let bus = connect(&nats, "webhook-dispatcher").await;
    let before = bus.sequence_before(SLURM_EVENTS, chrono::Utc::now());
    assert_eq!(before.await.unwrap(), 0, "an empty stream");
    for id in 1..=3 {
        bus.publish(&job_event(JobStarted, job(id))).await.unwrap();
    }
    let since = chrono::Utc::now();
    let last = bus.sequence_before(SLURM_EVENTS, since).await.unwrap();
    assert_eq!(last, 3, "nothing since");
    for id in 4..=600 {
        bus.publish(&job_event(JobStarted, job(id))).await.unwrap();
    }
    assert_eq!(bus.sequence_before(SLURM_EVENTS, since).await.unwrap(), 3);

    let mut batches = Box::pin(bus.messages_from(SLURM_EVENTS, 4).await.unwrap());
    let mut read = Vec::new();
    while read.len() < 597 {
        let batch = batches.next().await.unwrap();
        read.extend(batch.iter().map(|message| message.stream_sequence));
    }
    assert_eq!(read, (4..=600).collect::<Vec<u64>>());

    let subjects = vec!["slurm.*.job.started.>".to_owned()];
    let mut read = Vec::new();
    loop {
        let next = read.last().map_or(400, |last| last + 1);
        let page = bus.stored_page(SLURM_EVENTS, &subjects, next, 600, 64);
        let page = page.await.unwrap();
        if page.is_empty() {
            break;
        }
        assert!(page.len() <= 64);
        read.extend(page.iter().map(|message| message.stream_sequence));
    }
    assert_eq!(read, (400..=600).collect::<Vec<u64>>());
    let others = ["slurm.*.node.>".to_owned()];
    let page = bus.stored_page(SLURM_EVENTS, &others, 1, 600, 64);
    assert!(page.await.unwrap().is_empty());
}

/// Each of them would end the reader, and cost a new consumer.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_goes_on_over_removed_messages() {
    let nats = NatsServer::start().await;
    let bus = connect(&nats, "webhook-dispatcher").await;
    let shutdown = CancellationToken::new();
    let events = (1..=600).map(|id| job_event(JobStarted, job(id)));
    bus.publish_all(events.collect(), &shutdown).await.unwrap();
    let jetstream = jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    let stream = jetstream.get_stream(SLURM_EVENTS).await.unwrap();
    let is_left = |sequence: &u64| !sequence.is_multiple_of(3) && !(100..150).contains(sequence);
    for sequence in (1..=590).filter(|sequence| !is_left(sequence)) {
        stream.delete_message(sequence).await.unwrap();
    }
    let mut batches = Box::pin(bus.messages_from(SLURM_EVENTS, 1).await.unwrap());
    let mut read = Vec::new();
    while read.last() != Some(&600) {
        let batch = batches.next().await.expect("one reader for all");
        read.extend(batch.iter().map(|message| message.stream_sequence));
    }
    let left: Vec<u64> = (1..=600).filter(|&n| n > 590 || is_left(&n)).collect();
    assert_eq!(read, left);
}

/// Subjects of very different numbers of messages: a page ends before a message that was not read.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_several_subjects_leaves_no_message_out() {
    let nats = NatsServer::start().await;
    let bus = connect(&nats, "webhook-dispatcher").await;
    let events = (1..=100).map(|id| match id % 20 {
        0 => job_event(JobCompleted, job(id)),
        _ => job_event(JobStarted, job(id)),
    });
    let shutdown = CancellationToken::new();
    bus.publish_all(events.collect(), &shutdown).await.unwrap();
    let subjects = ["completed", "started"].map(|kind| format!("slurm.*.job.{kind}.>"));
    let mut read = Vec::new();
    while read.len() < 100 {
        let next = read.last().map_or(1, |last| last + 1);
        let page = bus.stored_page(SLURM_EVENTS, &subjects, next, 100, 8).await;
        let page = page.unwrap();
        assert!((1..=16).contains(&page.len()), "{} messages", page.len());
        read.extend(page.iter().map(|message| message.stream_sequence));
    }
    assert_eq!(read, (1..=100).collect::<Vec<u64>>());
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
    let ages =
        "mesh_bus_message_age_seconds_count{stream=\"SLURM_EVENTS\",consumer=\"cost-engine\"} 5\n";
    assert!(metrics.render().contains(ages), "{}", metrics.render());
    shutdown.cancel();
    consumer.await.unwrap().unwrap();
}
