//! Starts ingest from its configuration, in this order: NATS, leadership, state, first poll, then everything else.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use futures_util::future::BoxFuture;
use mesh_bus::Bus;
use mesh_events::catalogue::{self, MESH_HOOKS, SLURM_EVENTS};
use mesh_runtime::{BoxError, Condition, Context, RenamedKeys, RunningService, Service};
use slurm_client::Slurm;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::accounting::gap_fill::GapFiller;
use crate::adapters::chunks::ChunkPublisher;
use crate::collector::Collector;
use crate::config::{self, Config};
use crate::doorbells::Doorbells;
use crate::identity::IdentityResolver;
use crate::job_workers::JobWorkers;
use crate::listing::JobLister;
use crate::scheduler_state::SchedulerStateReader;
use crate::scheduling::SchedulingReader;
use crate::users::{AccessWatcher, Logins, StepNotices};

/// Maximum number of doorbells handled at the same time. Each waits for the facts of its job, so the limit is high enough for a start to be
/// handled behind many ends.
const MAX_CONCURRENT_DOORBELLS: usize = 4_096;

/// Minimum timeout for accounting to list an hour, even if the timeout of short answers is lower.
const MIN_LONG_TIMEOUT: Duration = Duration::from_secs(60);

/// The ingest service.
pub struct IngestService;

impl Service for IngestService {
    type Config = Config;
    const NAME: &'static str = "ingest";
    const DEFAULTS: &'static str = config::DEFAULTS;
    const RENAMED_KEYS: RenamedKeys = config::RENAMED_KEYS;
    const ABOUT: &'static str =
        "Reads Slurm's job records and publishes each fact about them exactly once.";

    fn check(context: &Context) -> Result<(), BoxError> {
        context.section::<slurm_client::Config>("slurm")?;
        configuration(context).map(drop)
    }

    async fn start(context: Context) -> Result<RunningService, BoxError> {
        let config = configuration(&context)?;
        crate::metrics::describe();
        let client: slurm_client::Config = context.section("slurm")?;
        let long = client.command_timeout.max(MIN_LONG_TIMEOUT);
        let slurm = Slurm::new(client);
        let long_timeout_slurm = slurm.with_timeout(long);
        let identity_file = context
            .mesh
            .identity_map
            .as_ref()
            .map(|path| context.relative(path));
        let identities = Arc::new(IdentityResolver::new(identity_file, &config.identity));
        let bus = Bus::connect(&context.mesh.nats, Self::NAME).await?;
        context.watch_nats(Self::NAME, &bus);
        let condition = |name: &str| context.health.condition(&format!("ingest.{name}"));
        let conditions = ReadinessConditions {
            slurmctld: condition("slurmctld"),
            record_poll: condition("first_poll"),
            state: condition("state"),
            users_state: condition("users_state"),
        };
        // They report failures; the first poll reports success.
        conditions.state.ok();
        conditions.users_state.ok();
        let run = Ingest {
            context,
            conditions,
            config: Arc::new(config),
            slurm,
            long_timeout_slurm,
            identities,
            bus,
        };
        Ok(RunningService {
            router: Router::new(),
            run: Box::pin(async move { Box::pin(run.run()).await.map_err(BoxError::from) }),
        })
    }
}

fn configuration(context: &Context) -> Result<Config, BoxError> {
    let config: Config = context.section(IngestService::NAME)?;
    let faults = config.faults();
    if faults.is_empty() {
        Ok(config)
    } else {
        Err(context.faults(&faults).into())
    }
}

/// Conditions of readiness.
#[derive(Clone)]
struct ReadinessConditions {
    slurmctld: Condition,
    record_poll: Condition,
    state: Condition,
    users_state: Condition,
}

struct Ingest {
    context: Context,
    conditions: ReadinessConditions,
    config: Arc<Config>,
    slurm: Slurm,
    /// Client for long answers.
    long_timeout_slurm: Slurm,
    identities: Arc<IdentityResolver>,
    bus: Bus,
}

impl Ingest {
    async fn run(self) -> Result<(), Error> {
        if self.bus.ready(&self.context.shutdown).await.is_err() {
            return Ok(());
        }
        let (context, bus) = (self.context.clone(), self.bus.clone());
        let conditions = self.conditions.clone();
        let standby = || {
            conditions.slurmctld.ok();
            conditions.record_poll.ok();
            conditions.state.ok();
            conditions.users_state.ok();
        };
        let ingest = Arc::new(self);
        let term = |stop| Self::lead(Arc::clone(&ingest), stop);
        context.lead(&bus, standby, term).await
    }

    fn lead(ingest: Arc<Self>, stop: CancellationToken) -> BoxFuture<'static, Result<(), Error>> {
        Box::pin(async move {
            match Box::pin(ingest.term(stop)).await {
                Err(error) if error.is_shutdown() => Ok(()),
                Err(Error::Fenced { bucket, key }) => {
                    tracing::info!(
                        bucket,
                        key,
                        "leadership lost: another instance has taken over"
                    );
                    Ok(())
                }
                done => done,
            }
        })
    }

    /// Runs one term of leadership, from the stored state to the last write.
    async fn term(&self, shutdown: CancellationToken) -> Result<(), Error> {
        let ReadinessConditions {
            slurmctld: answers,
            record_poll,
            state,
            users_state,
        } = self.conditions.clone();
        record_poll.fail("the first poll is running");
        let collector = Collector::load(
            self.bus.clone(),
            &self.context.mesh.cluster,
            self.slurm.over_rest(),
            Arc::clone(&self.config),
            Arc::clone(&self.identities),
            state,
            shutdown.clone(),
        )
        .await?;
        let workers = JobWorkers::new(
            (self.slurm.clone(), self.long_timeout_slurm.clone()),
            &self.bus,
            &collector,
            Some(answers),
            &shutdown,
        )
        .await?;
        let publisher =
            |bucket| ChunkPublisher::take_over(&self.bus, bucket, &collector.cluster, &shutdown);
        let scheduling = SchedulingReader {
            slurm: self.slurm.clone(),
            cluster: collector.cluster.clone(),
            publisher: publisher(catalogue::BUCKET_EVIDENCE).await?,
            interval: self.config.evidence_interval,
            demand: workers.demand.clone(),
            shutdown: shutdown.clone(),
        };
        let statistics = SchedulerStateReader {
            slurm: self.slurm.clone(),
            config: self.config.statistics,
            newest: workers.scheduler.clone(),
            shutdown: shutdown.clone(),
        };
        let lister = JobLister {
            slurm: self.slurm.clone(),
            cluster: collector.cluster.clone(),
            publisher: publisher(catalogue::BUCKET_LISTING).await?,
            interval: self.config.list_interval,
            shutdown: shutdown.clone(),
        };
        let users = AccessWatcher {
            slurm: self.long_timeout_slurm.clone(),
            slurmdbd: Arc::clone(&workers.catch_up.slurmdbd),
            rate_limit: Arc::clone(&workers.rate_limit),
            collector: collector.clone(),
            bus: self.bus.clone(),
            cluster: collector.cluster.clone(),
            config: Arc::clone(&self.config),
            identities: Arc::clone(&self.identities),
            state_health: users_state,
            shutdown: shutdown.clone(),
        };
        let logins = Logins::new(
            &collector.cluster,
            self.bus.clone(),
            Arc::clone(&self.identities),
            self.config.users.logins_per_minute,
            shutdown.clone(),
        );
        let steps = StepNotices::new(
            collector.clone(),
            self.slurm.clone(),
            self.bus.clone(),
            Arc::clone(&self.identities),
            shutdown.clone(),
        );
        let gap_filler = GapFiller {
            catch_up: workers.catch_up.clone(),
            bus: self.bus.clone(),
        };
        let mut tasks: JoinSet<Result<(), Error>> = JoinSet::new();
        let job_reads = workers.job_reads.clone();
        tasks.spawn(collector.clone().report_drifts(self.slurm.clone()));
        Box::pin(workers.start(&mut tasks)).await?;
        record_poll.ok();
        tasks.spawn(scheduling.run());
        tasks.spawn(statistics.run());
        tasks.spawn(lister.run());
        tasks.spawn(users.run());
        let durable = catalogue::durable(SLURM_EVENTS, IngestService::NAME, &collector.cluster);
        let (bus, stop) = (self.bus.clone(), shutdown.clone());
        tasks.spawn(async move {
            // One at a time, because each reads accounting.
            Ok(bus
                .consume(SLURM_EVENTS, &durable, 1, gap_filler, &stop)
                .await?)
        });
        let durable = catalogue::durable(MESH_HOOKS, IngestService::NAME, &collector.cluster);
        let doorbells = Doorbells::new(collector.cluster.clone(), job_reads, logins, steps);
        let (bus, stop) = (self.bus.clone(), shutdown.clone());
        tasks.spawn(async move {
            Ok(bus
                .consume(
                    MESH_HOOKS,
                    &durable,
                    MAX_CONCURRENT_DOORBELLS,
                    doorbells,
                    &stop,
                )
                .await?)
        });
        let (identities, stop) = (Arc::clone(&self.identities), shutdown.clone());
        let every = self.config.identity_reload_interval;
        tasks.spawn(async move {
            identities.reload_periodically(every, stop).await;
            Ok(())
        });
        let mut result = Ok(());
        while let Some(done) = tasks.join_next().await {
            let done = done.unwrap_or_else(|error| Err(Error::Task { source: error }));
            if let Err(error) = done
                && !error.is_shutdown()
                && result.is_ok()
            {
                result = Err(error);
                shutdown.cancel();
            }
        }
        if result.is_ok() {
            collector.flush().await?;
        }
        result
    }
}
