//! Terms of leadership, one after the other, on one bus.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use mesh_bus::Bus;
use mesh_events::catalogue::SLURM_EVENTS;
use mesh_events::{Event, RunKey};
use mesh_runtime::Health;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet, yield_now};
use tokio_util::sync::CancellationToken;

use super::model::Model;
use super::world::{Kind, Question, Restart, STEP};
use crate::collector::Collector;
use crate::config::Config;
use crate::domain::RunState;
use crate::doorbells::{DoorbellOutcome, JobReadRequest};
use crate::identity::IdentityResolver;
use crate::job_workers::JobWorkers;

/// Rounds without a query or an event after which every task waits for the time.
const QUIET_ROUNDS: u32 = 6;

pub(super) struct Term {
    bus: Bus,
    cluster: String,
    collector: Collector,
    job_reads: mpsc::Sender<JobReadRequest>,
    shutdown: CancellationToken,
    workers: JoinHandle<()>,
}

/// A doorbell, which is delivered until it is answered.
pub(super) struct DeliveredDoorbell(Option<oneshot::Receiver<DoorbellOutcome>>);

impl DeliveredDoorbell {
    pub(super) const fn is_answered(&self) -> bool {
        self.0.is_none()
    }
}

impl Term {
    pub(super) async fn begin(bus: &Bus, cluster: &str, model: &Model) -> Self {
        let config = Arc::new(Config {
            // One poll in each step.
            poll_interval: Duration::from_secs(STEP - 1),
            ..Config::default()
        });
        let identities = Arc::new(IdentityResolver::new(None, &config.identity));
        let condition = Health::default().condition("ingest.state");
        let shutdown = CancellationToken::new();
        let collector = Collector::load(
            bus.clone(),
            cluster,
            false,
            config,
            identities,
            condition,
            shutdown.clone(),
        );
        let collector = collector.await.unwrap();
        let clients = (model.clone(), model.clone());
        let workers = JobWorkers::new(clients, bus, &collector, None, &shutdown);
        let workers = workers.await.unwrap();
        let job_reads = workers.job_reads.clone();
        let stopped = shutdown.clone();
        let workers = tokio::spawn(async move {
            let mut tasks = JoinSet::new();
            if Box::pin(workers.start(&mut tasks)).await.is_ok() {
                while let Some(done) = tasks.join_next().await {
                    let done = done.unwrap();
                    assert!(stopped.is_cancelled(), "a worker has ended: {done:?}");
                }
            }
        });
        Self {
            bus: bus.clone(),
            cluster: cluster.to_owned(),
            collector,
            job_reads,
            shutdown,
            workers,
        }
    }

    pub(super) async fn end(&mut self, restart: Restart) {
        if restart == Restart::Orderly {
            self.shutdown.cancel();
            (&mut self.workers).await.unwrap();
            self.collector.flush().await.unwrap();
        } else {
            self.workers.abort();
            assert!((&mut self.workers).await.unwrap_err().is_cancelled());
        }
    }

    /// Waits until every task waits for the time. Each round takes a turn at the run store and a request to NATS, as the tasks do.
    pub(super) async fn settle(&self, model: &Model) {
        let (mut seen, mut quiet) = (None, 0);
        while quiet < QUIET_ROUNDS {
            for _ in 0..20 {
                yield_now().await;
            }
            self.take_turn().await;
            let subject = format!("slurm.{}.>", self.cluster);
            let newest = self.bus.last_stored(SLURM_EVENTS, &subject).await.unwrap();
            let now = Some((model.queries(), newest.map(|message| message.sequence)));
            quiet = if now == seen { quiet + 1 } else { 0 };
            seen = now;
        }
        assert!(!self.workers.is_finished(), "the workers have ended");
    }

    /// Takes a turn at the run store. Whoever has it may wait for the time: on a busy machine, the last step may have cut off a write of it.
    async fn take_turn(&self) {
        let mut turn = pin!(self.collector.state());
        let mut began = std::time::Instant::now();
        loop {
            tokio::select! {
                biased;
                state = &mut turn => return drop(state),
                () = yield_now() => {}
            }
            if began.elapsed() > Duration::from_secs(1) {
                tokio::time::advance(Duration::from_millis(100)).await;
                began = std::time::Instant::now();
            }
        }
    }

    /// Delivers doorbells that are not answered, again if they were postponed or their receiver has ended.
    pub(super) async fn ring(
        &self,
        model: &Model,
        poll: u64,
        doorbells: &mut BTreeMap<u32, DeliveredDoorbell>,
    ) {
        for question in model.questions().iter().filter(|one| one.is_open(poll)) {
            let Some(evidence) = model.doorbell(question) else {
                continue;
            };
            let is_redelivery = poll > question.opens;
            if let Some(delivered) = doorbells.get_mut(&question.id) {
                let Some(answer) = &mut delivered.0 else {
                    continue;
                };
                match answer.try_recv() {
                    Ok(DoorbellOutcome::Recorded) => {
                        delivered.0 = None;
                        continue;
                    }
                    Ok(DoorbellOutcome::Refused(reason)) => panic!("{question:?}: {reason}"),
                    Err(oneshot::error::TryRecvError::Empty) => continue,
                    Ok(DoorbellOutcome::Postponed) | Err(oneshot::error::TryRecvError::Closed) => {}
                }
            }
            let (done, answer) = oneshot::channel();
            let request = JobReadRequest {
                hook: Some(evidence.hook),
                ended_run: evidence.end.as_ref().map(|end| end.run.clone()),
                end: evidence.end,
                is_redelivery,
                done: Some(done),
                ..JobReadRequest::for_job(question.id)
            };
            doorbells.insert(question.id, DeliveredDoorbell(Some(answer)));
            self.job_reads.send(request).await.unwrap();
        }
    }

    pub(super) async fn events(&self) -> Vec<Event> {
        let subjects = [format!("slurm.{}.>", self.cluster)];
        let page = self
            .bus
            .stored_page(SLURM_EVENTS, &subjects, 1, u64::MAX, 10_000);
        let page = page.await.unwrap().into_iter();
        page.map(|message| message.event().unwrap()).collect()
    }

    /// Whether a question has ended that needs no event: nobody is known as the canceller, or the id is of no job.
    pub(super) async fn is_closed(&self, question: &Question, submit: i64) -> bool {
        let state = self.collector.state().await;
        match question.kind {
            Kind::Canceller => {
                let run = RunKey {
                    cluster: self.cluster.clone(),
                    ..question.run(submit)
                };
                let settled = |state: &RunState| state.over() && !state.accounting_pending();
                state.run_store.get(&run).is_some_and(settled)
            }
            Kind::UnseenId => {
                let is_noted = state
                    .capture
                    .newest
                    .is_some_and(|newest| newest.id > question.id);
                let mut ranges = state.capture.unseen.iter();
                !question.is_found()
                    && is_noted
                    && !ranges.any(|range| (range.first..=range.last).contains(&question.id))
            }
            _ => false,
        }
    }
}
