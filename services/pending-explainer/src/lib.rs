//! Explains in plain words why a job is pending, who can act, and until when.
//!
//! - [`domain`]: pure. [`domain::explain`] turns a record into sentences, [`domain::timeline`] decides when to publish them.
//! - [`handlers`]: consumes events about jobs and publishes `queue.explained`. Reads the queue snapshot for expected starts.
//! - [`estimates`]: estimates of starts, once per interval.
//! - [`adapters`]: state in the key-value bucket, fenced by its revision, with an outbox.
//! - [`api`]: why jobs are pending now: `/v1/queue`.
//!
//! Deliberately absent: Slurm. All input comes from events and from the snapshot that ingest stores after each poll.

pub mod adapters;
pub mod api;
pub mod config;
pub mod domain;
pub mod error;
pub mod estimates;
pub mod handlers;
pub mod metrics;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mesh_bus::{Backoff, Bus};
use mesh_events::catalogue;
use mesh_runtime::{BoxError, Condition, Context, RenamedKeys, RunningService, Service};

use adapters::store::Store;
use config::Config;
use error::Error;
use handlers::Explainer;

/// Counters in the values of the bucket `mesh_explainer`: of events, whose ids must not be used again.
pub const COUNTERS: &[&str] = &["runs.*.next", "next_from"];

/// The pending explainer.
pub struct PendingExplainerService;

impl Service for PendingExplainerService {
    type Config = Config;
    const NAME: &'static str = "pending-explainer";
    const DEFAULTS: &'static str = config::DEFAULTS;
    const RENAMED_KEYS: RenamedKeys = config::RENAMED_KEYS;
    const ABOUT: &'static str =
        "Explains why jobs are pending, who can act, and when they may start.";

    fn check(context: &Context) -> Result<(), BoxError> {
        configuration(context).map(drop)
    }

    async fn start(context: Context) -> Result<RunningService, BoxError> {
        let config = configuration(&context)?;
        metrics::describe();
        let bus = Bus::connect(&context.mesh.nats, Self::NAME).await?;
        context.watch_nats(Self::NAME, &bus);
        let health = context.health.condition("pending-explainer.state");
        let loaded = api::Loaded::default();
        let router = api::router(Arc::clone(&loaded));
        Ok(RunningService {
            router: context.audited(&bus, router),
            run: Box::pin(run(context, config, bus, health, loaded)),
        })
    }
}

fn configuration(context: &Context) -> Result<Config, BoxError> {
    let config: Config = context.section(PendingExplainerService::NAME)?;
    let faults = config.validate();
    if faults.is_empty() {
        Ok(config)
    } else {
        Err(context.faults(&faults).into())
    }
}

async fn run(
    context: Context,
    config: Config,
    bus: Bus,
    health: Condition,
    loaded: Arc<OnceLock<Explainer>>,
) -> Result<(), BoxError> {
    let shutdown = context.shutdown.clone();
    if bus.ready(&shutdown).await.is_err() {
        return Ok(());
    }
    let Some(store) = load(&context, &bus, &health).await else {
        return Ok(());
    };
    let explainer = Explainer {
        bus: bus.clone(),
        store: Arc::new(store),
        snapshots: handlers::Snapshots::default(),
        cluster: context.mesh.cluster.clone(),
        concurrency: config.concurrency,
        what_if: Arc::new(tokio::sync::Semaphore::new(1)),
        shutdown: shutdown.clone(),
    };
    let explainer = loaded.get_or_init(|| explainer);
    health.ok();
    let consume = bus.consume_batches(
        catalogue::SLURM_EVENTS,
        PendingExplainerService::NAME,
        config.batch_size,
        explainer.clone(),
        &shutdown,
    );
    let honesty = context.health.note("pending-explainer.estimates");
    let (consumed, (), ()) = tokio::join!(
        consume,
        explainer.follow_queue(config.poll_interval, &health),
        explainer.estimate_starts(config.estimate_interval, &honesty)
    );
    consumed?;
    // The shutdown signal has fired, but this one write is still allowed.
    if let Err(error) = explainer.store.settle(&shutdown).await {
        tracing::debug!(
            error = mesh_runtime::error_chain(&error),
            "published explanations not recorded"
        );
    }
    bus.close().await;
    Ok(())
}

/// Loads the state and retries while NATS is unavailable. `None` on shutdown.
async fn load(context: &Context, bus: &Bus, health: &Condition) -> Option<Store> {
    let mut backoff = Backoff::fixed(Duration::from_secs(1));
    loop {
        let loaded = async {
            Store::load(
                bus.bucket(catalogue::BUCKET_EXPLAINER).await?,
                &context.mesh.cluster,
            )
            .await
        };
        match loaded.await {
            Ok(store) => return Some(store),
            Err(error) => {
                let error: Error = error;
                tracing::warn!(
                    error = mesh_runtime::error_chain(&error),
                    "state not loaded, retrying"
                );
                health.fail(mesh_runtime::error_chain(&error));
            }
        }
        if !backoff.wait(&context.shutdown).await {
            return None;
        }
    }
}
