//! Serves the state of the cluster and what happened to its jobs as Prometheus metrics, in the mesh's names and in those of other exporters.
//!
//! - [`domain`]: pure. What an event adds to which counter, what snapshots say, and the exposition text.
//! - [`handlers`]: counts events, each once. [`adapters`]: the counters' database, and the snapshots on the bus.
//! - [`families`]: the metrics, one file per family. [`refresh`]: makes the pages at an interval. [`api`]: `/metrics/<page>`.
//!
//! Deliberately absent: Slurm. Gauges come from the snapshots that ingest and node-watcher store after each poll, counters from events.

pub mod adapters;
pub mod api;
pub mod config;
pub mod domain;
pub mod error;
pub mod families;
pub mod handlers;
pub mod metrics;
pub mod refresh;

use std::path::{Path, PathBuf};
use std::time::Duration;

use mesh_bus::{Backoff, Bus};
use mesh_db::Location;
use mesh_db::damage::RecoveryMarker;
use mesh_events::catalogue::SLURM_EVENTS;
use mesh_runtime::{BoxError, Context, DatabaseStart, RunningService, Service};
use tokio_util::sync::CancellationToken;

use adapters::store::Store;
use config::Config;
use domain::exemplars::SharedExemplars;
use error::Error;
use handlers::EventCounter;
use refresh::{Published, Refresher};

/// Delay between the attempts to count again after a recovery.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The exporter.
pub struct ExporterService;

impl Service for ExporterService {
    type Config = Config;
    const NAME: &'static str = "exporter";
    const DEFAULTS: &'static str = config::DEFAULTS;
    const ABOUT: &'static str =
        "Serves the state of the cluster and counts of events as Prometheus metrics.";

    fn check(context: &Context) -> Result<(), BoxError> {
        configuration(context).map(drop)
    }

    fn database_file(context: &Context) -> Result<Option<PathBuf>, BoxError> {
        let (_, location) = configuration(context)?;
        Ok(location.file().map(Path::to_owned))
    }

    const REMEDY: &'static str = "counts of events that the bus no longer has (14 days) are lost, which Prometheus takes for a restart: stop the exporter (or `smesh up`), run `smesh recover exporter`, start it again";

    async fn damage(file: &Path) -> Result<Option<String>, BoxError> {
        Ok(mesh_db::damage::damage(file).await?)
    }

    async fn start(context: Context) -> Result<RunningService, BoxError> {
        let (config, location) = configuration(&context)?;
        metrics::describe();
        // Registered before the first readiness request.
        let pages = context.health.condition("exporter.pages");
        let store = Store::connect(&location)?;
        let is_shared = store.database.is_shared();
        let mut database = DatabaseStart::new(
            &context,
            Self::NAME,
            is_shared,
            mesh_db::Error::is_unavailable,
        );
        database.try_prepare(store.database.prepare()).await?;
        let bus = Bus::connect(&context.mesh.nats, Self::NAME).await?;
        context.watch_nats(Self::NAME, &bus);
        let published = Published::default();
        let router = api::router(published.clone());
        let consumption = Consumption {
            batch_size: config.batch_size,
            marker: location.file().map(RecoveryMarker::of),
        };
        let refresher = Refresher {
            bus,
            store: store.clone(),
            config,
            cluster: context.mesh.cluster.clone(),
            exemplars: SharedExemplars::default(),
            published,
            health: pages,
        };
        let run = async move {
            let running = run(context, &refresher, database, consumption);
            let ended = Box::pin(running).await;
            // In every case: an unclosed file leaves its log unmerged.
            store.database.close().await;
            ended
        };
        Ok(RunningService {
            router,
            run: Box::pin(run),
        })
    }
}

/// Creates the tables in a new file.
///
/// # Errors
/// If it cannot be written.
pub async fn prepare_file(path: PathBuf) -> Result<(), BoxError> {
    let store = Store::connect(&Location::Sqlite(path))?;
    store.database.prepare().await?;
    store.database.close().await;
    Ok(())
}

fn configuration(context: &Context) -> Result<(Config, Location), BoxError> {
    let config: Config = context.section(ExporterService::NAME)?;
    let mut faults = config.faults();
    match config
        .db
        .location(ExporterService::NAME, &context.mesh.data_dir)
    {
        Ok(location) if faults.is_empty() => Ok((config, location)),
        Ok(_) => Err(context.faults(&faults).into()),
        Err(fault) => {
            faults.push(fault);
            Err(context.faults(&faults).into())
        }
    }
}

/// How events are read.
struct Consumption {
    batch_size: usize,
    /// If set, all events on the bus are counted. `None` on a database server.
    marker: Option<RecoveryMarker>,
}

async fn run(
    context: Context,
    refresher: &Refresher,
    mut database: DatabaseStart<mesh_db::Error>,
    Consumption { batch_size, marker }: Consumption,
) -> Result<(), BoxError> {
    let shutdown = context.shutdown;
    let (bus, store) = (&refresher.bus, &refresher.store);
    if !database
        .finish(|| store.database.prepare(), &shutdown)
        .await?
    {
        return Ok(());
    }
    let database = database.condition;
    database.ok();
    if let Err(mesh_bus::Error::Cancelled) = bus.ready(&shutdown).await {
        return Ok(());
    }
    if let Some(marker) = marker.filter(RecoveryMarker::is_set) {
        if !count_again(store, bus, &shutdown).await {
            return Ok(());
        }
        marker.clear()?;
        tracing::info!("database was recovered, counting the events on the bus");
    }
    let handler = EventCounter {
        store: store.clone(),
        cluster: refresher.cluster.clone(),
        exemplars: refresher.exemplars.clone(),
        database,
    };
    let consume = bus.consume_batches(
        SLURM_EVENTS,
        ExporterService::NAME,
        batch_size,
        handler,
        &shutdown,
    );
    let (consumed, ()) = tokio::join!(consume, refresher.run(&shutdown));
    consumed?;
    bus.close().await;
    Ok::<(), BoxError>(())
}

/// Makes the next events those that the bus has, from the first one. Retries until shutdown; false then.
async fn count_again(store: &Store, bus: &Bus, shutdown: &CancellationToken) -> bool {
    let mut interval = Backoff::fixed(RETRY_INTERVAL);
    loop {
        match try_count_again(store, bus).await {
            Ok(true) => return true,
            Ok(false) => tracing::warn!("consumer not deleted, retrying"),
            Err(error) => {
                let error = mesh_runtime::error_chain(&error);
                tracing::warn!(error, "counters not cleared, retrying");
            }
        }
        if !interval.wait(shutdown).await {
            return false;
        }
    }
}

/// False if the consumer is still the one of before: it would not deliver what it had delivered.
async fn try_count_again(store: &Store, bus: &Bus) -> Result<bool, Error> {
    let name = ExporterService::NAME;
    store.clear().await?;
    bus.recreate_consumer(SLURM_EVENTS, name).await?;
    let progress = bus.consumer_progress(SLURM_EVENTS, name).await?;
    let state = bus.stream_state(SLURM_EVENTS).await?;
    // A new consumer says that it delivered what the stream no longer has.
    Ok(progress.delivered < state.first_sequence.max(1))
}

/// True if `smesh up` runs the exporter.
///
/// # Errors
/// If the section is invalid.
pub fn is_enabled(context: &Context) -> Result<bool, BoxError> {
    Ok(configuration(context)?.0.enabled)
}
