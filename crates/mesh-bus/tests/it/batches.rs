//! Consuming in batches.

use std::sync::{Arc, Mutex};

use mesh_bus::{BatchHandler, Bus, Disposition, Message};
use mesh_events::EventType::JobStarted;
use mesh_events::catalogue::SLURM_EVENTS;
use mesh_testkit::fixtures::{job, job_event};
use mesh_testkit::{NatsServer, wait_until};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{PATIENCE, connect};

/// Notes the sequences of each batch. The first batch waits for a permit.
#[derive(Clone)]
struct FirstWaits<const CONCURRENT: usize> {
    batches: Arc<Mutex<Vec<Vec<u64>>>>,
    permits: Arc<Semaphore>,
}

impl<const CONCURRENT: usize> FirstWaits<CONCURRENT> {
    fn new() -> Self {
        Self {
            batches: Arc::default(),
            permits: Arc::new(Semaphore::new(0)),
        }
    }

    fn begun(&self) -> usize {
        self.batches.lock().unwrap().len()
    }

    fn sequences(&self) -> Vec<u64> {
        self.batches.lock().unwrap().concat()
    }
}

impl<const CONCURRENT: usize> BatchHandler for FirstWaits<CONCURRENT> {
    const CONCURRENT_BATCHES: usize = CONCURRENT;

    async fn handle(&self, messages: &[Message]) -> Vec<Disposition> {
        let is_first = {
            let mut batches = self.batches.lock().unwrap();
            batches.push(messages.iter().map(|one| one.stream_sequence).collect());
            batches.len() == 1
        };
        if is_first {
            self.permits.acquire().await.unwrap().forget();
        }
        vec![Disposition::Ack; messages.len()]
    }
}

async fn publish_jobs(bus: &Bus, jobs: u32, shutdown: &CancellationToken) {
    let events = (1..=jobs).map(|id| job_event(JobStarted, job(id)));
    bus.publish_all(events.collect(), shutdown).await.unwrap();
}

/// Also more than the 128 messages that a task of tokio receives without a break.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_holds_all_messages_that_are_available() {
    const JOBS: u32 = 600;
    let nats = NatsServer::start().await;
    let bus = connect(&nats, "ledger").await;
    let shutdown = CancellationToken::new();
    publish_jobs(&bus, JOBS, &shutdown).await;
    let handler = FirstWaits::<1>::new();
    let consuming = bus.consume_batches(SLURM_EVENTS, "ledger", 1_000, handler.clone(), &shutdown);
    let done = async {
        let client = async_nats::connect(nats.url()).await.unwrap();
        let jetstream = async_nats::jetstream::new(client);
        let stream = jetstream.get_stream(SLURM_EVENTS).await.unwrap();
        wait_until("all are sent to the reader", PATIENCE, async || {
            let info = stream.consumer_info("ledger").await.unwrap();
            handler.begun() == 1 && info.num_pending == 0
        })
        .await;
        // On the reader's connection: its answer comes after them.
        bus.stored_from(SLURM_EVENTS, 1).await.unwrap();
        handler.permits.add_permits(1);
        wait_until("all are handled", PATIENCE, async || {
            handler.sequences().len() == JOBS as usize
        })
        .await;
        shutdown.cancel();
    };
    tokio::join!(consuming, done).0.unwrap();
    assert!(handler.begun() <= 2, "{} batches", handler.begun());
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_batches_begin_in_the_order_of_the_stream() {
    const JOBS: u32 = 300;
    let nats = NatsServer::start().await;
    let bus = connect(&nats, "ledger").await;
    let shutdown = CancellationToken::new();
    publish_jobs(&bus, JOBS, &shutdown).await;
    let handler = FirstWaits::<2>::new();
    let consuming = bus.consume_batches(SLURM_EVENTS, "ledger", 10, handler.clone(), &shutdown);
    let done = async {
        // Only one is handled: the others follow one another beside it.
        wait_until("all have begun beside the first", PATIENCE, async || {
            handler.sequences().len() == JOBS as usize
        })
        .await;
        handler.permits.add_permits(1);
        shutdown.cancel();
    };
    tokio::join!(consuming, done).0.unwrap();
    assert!(handler.sequences().into_iter().eq(1..=u64::from(JOBS)));
}
