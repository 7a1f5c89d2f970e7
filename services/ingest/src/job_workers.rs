//! The tasks that capture jobs in one term of leadership: polls, reads for doorbells, and what asks accounting.

#[cfg(test)]
mod open_questions;

use std::sync::Arc;

use mesh_bus::Bus;
use mesh_events::catalogue;
use mesh_events::proto::mesh::metrics::v1::SchedulerState;
use mesh_runtime::Condition;
use slurm_client::Slurm;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::accounting::array_reconcile::ArrayReconciler;
use crate::accounting::catch_up::CatchUp;
use crate::accounting::rate_limit::AccountingRateLimit;
use crate::accounting::resolver::{AccountingResolver, LookupQueue, LookupRequest};
use crate::accounting::usage::UsageReconciler;
use crate::adapters::chunks::ChunkPublisher;
use crate::collector::Collector;
use crate::doorbells::{JobReadRequest, JobReader, UnknownJobLimiter};
use crate::job_queries::JobQueries;
use crate::poll::{HookHealth, LookupRotations, Poller};
use crate::scheduling::Demand;
use crate::sources::{SLURMDBD, SlurmSource};

/// Capacity of the channel. Senders wait while it is full.
const CHANNEL_CAPACITY: usize = 4_096;

/// What the workers share with the rest of ingest.
pub struct JobWorkers<S = Slurm> {
    /// Requests to read a job.
    pub job_reads: mpsc::Sender<JobReadRequest>,
    /// Works off the accounting backlog.
    pub catch_up: CatchUp<S>,
    /// Rate limit of accounting requests.
    pub rate_limit: Arc<AccountingRateLimit>,
    /// Whether jobs wait, as the last poll saw it.
    pub demand: watch::Receiver<Demand>,
    /// Where the newest state of the scheduler goes.
    pub scheduler: watch::Sender<Option<SchedulerState>>,
    poller: Poller<S>,
    reader: JobReader<S>,
    job_read_receiver: mpsc::Receiver<JobReadRequest>,
    resolver: AccountingResolver<S>,
    lookup_receiver: mpsc::Receiver<LookupRequest>,
    usage: UsageReconciler<S>,
    arrays: ArrayReconciler<S>,
}

impl<S: JobQueries> JobWorkers<S> {
    /// Builds the workers. `long_timeout_slurm` is used for long answers of accounting.
    ///
    /// # Errors
    /// On shutdown.
    pub async fn new(
        (slurm, long_timeout_slurm): (S, S),
        bus: &Bus,
        collector: &Collector,
        slurmctld_condition: Option<Condition>,
        shutdown: &CancellationToken,
    ) -> Result<Self, Error> {
        let config = &collector.config;
        let slurmctld = SlurmSource::new("slurmctld", collector.clone(), slurmctld_condition);
        let slurmctld = Arc::new(slurmctld.await);
        let slurmdbd = Arc::new(SlurmSource::new(SLURMDBD, collector.clone(), None).await);
        let (job_reads, job_read_receiver) = mpsc::channel(CHANNEL_CAPACITY);
        let (lookups, lookup_receiver) = LookupQueue::new();
        let (hooks, nudge) = (Arc::new(HookHealth::default()), Arc::new(Notify::new()));
        let publisher =
            |bucket| ChunkPublisher::take_over(bus, bucket, &collector.cluster, shutdown);
        let queue = publisher(catalogue::BUCKET_QUEUE).await?;
        let job_counts = publisher(catalogue::BUCKET_JOB_COUNTS).await?;
        let (demand, demand_receiver) = watch::channel(Demand::default());
        let (scheduler, scheduler_receiver) = watch::channel(None);
        let rate_limit = Arc::new(AccountingRateLimit::default());
        Ok(Self {
            poller: Poller {
                slurm: slurm.clone(),
                collector: collector.clone(),
                slurmctld: Arc::clone(&slurmctld),
                lookups: lookups.clone(),
                queue,
                job_counts,
                scheduler: scheduler_receiver,
                demand,
                live: false,
                rotations: LookupRotations::default(),
                hooks: Arc::clone(&hooks),
                nudge: Arc::clone(&nudge),
                shutdown: shutdown.clone(),
            },
            reader: JobReader {
                slurm: slurm.clone(),
                collector: collector.clone(),
                slurmctld,
                lookups: lookups.clone(),
                unknown_jobs: UnknownJobLimiter::new(config.unknown_jobs_per_minute),
                hooks,
                nudge,
                shutdown: shutdown.clone(),
            },
            resolver: AccountingResolver {
                slurm: slurm.clone(),
                collector: collector.clone(),
                slurmdbd: Arc::clone(&slurmdbd),
                rate_limit: Arc::clone(&rate_limit),
                job_reads: job_reads.clone(),
                shutdown: shutdown.clone(),
            },
            usage: UsageReconciler {
                slurm,
                collector: collector.clone(),
                slurmdbd: Arc::clone(&slurmdbd),
                rate_limit: Arc::clone(&rate_limit),
                shutdown: shutdown.clone(),
            },
            arrays: ArrayReconciler {
                slurm: long_timeout_slurm.clone(),
                collector: collector.clone(),
                slurmdbd: Arc::clone(&slurmdbd),
                rate_limit: Arc::clone(&rate_limit),
                shutdown: shutdown.clone(),
            },
            catch_up: CatchUp {
                slurm: long_timeout_slurm,
                collector: collector.clone(),
                slurmdbd,
                lookups,
                shutdown: shutdown.clone(),
            },
            job_reads,
            rate_limit,
            demand: demand_receiver,
            scheduler,
            job_read_receiver,
            lookup_receiver,
        })
    }

    /// Polls once, then starts every task. Before the first poll no live job is known, and a doorbell would publish a baseline job as new.
    ///
    /// # Errors
    /// On shutdown, or if another ingest has taken over.
    pub async fn start(mut self, tasks: &mut JoinSet<Result<(), Error>>) -> Result<(), Error> {
        tasks.spawn(self.resolver.run(self.lookup_receiver));
        self.poller.first().await?;
        tasks.spawn(self.reader.run(self.job_read_receiver));
        tasks.spawn(self.poller.run());
        tasks.spawn(self.catch_up.run());
        tasks.spawn(self.usage.run());
        tasks.spawn(self.arrays.run());
        Ok(())
    }
}
