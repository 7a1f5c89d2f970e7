//! Delivers events to webhooks: signed CloudEvents for pipelines, readable messages for chats.
//!
//! Each module imports only from those below it:
//!
//! - [`api`]: the Webhooks API, REST under `/v1/webhooks` and gRPC.
//! - [`endpoint`]: definitions of endpoints, and which of them this dispatcher runs.
//! - [`delivery`]: the events, attempts and retries of one endpoint.
//! - [`reader`]: reads the public bus once for all endpoints.
//! - [`store`]: tables in a SQLite file or a PostgreSQL database.
//! - [`config`]: the `[webhook-dispatcher]` section of `mesh.toml` and its validated endpoints.
//! - [`stream`]: events on their way to endpoints.
//! - [`attempt`]: admission and retries.
//!
//! Which events an endpoint receives is decided by the crate `event-filter`, what is sent by `event-message`, which
//! addresses it may reach by `guarded-http`.
//!
//! Every endpoint has its own bounded queue, its own position on the bus and its own limits, so a receiver that fails,
//! hangs or is flooded affects no other endpoint. An event is settled once its outcome, or its place in the retry queue,
//! is on disk; the position is stored in the same transaction.
//! A crash may repeat attempts that were in flight, with the same `webhook-id`.

pub mod api;
pub mod attempt;
pub mod clock;
pub mod config;
pub mod delivery;
pub mod endpoint;
pub mod error;
pub mod metrics;
pub mod names;
pub mod reader;
mod repeat;
pub mod store;
pub mod stream;
mod string_enum;

use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use mesh_bus::Bus;
use mesh_db::Location;
use mesh_runtime::{
    BoxError, Condition, Context, DatabaseStart, RenamedKeys, RunningService, Service, WatchedFiles,
};
use secrecy::ExposeSecret as _;
use tokio::sync::{Mutex, Notify, Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use config::{Config, Endpoint};
pub use error::Error;
pub use guarded_http::Network;

use api::{TestLimiter, Webhooks};
use delivery::costs::Costs;
use delivery::http::Http;
use delivery::spending::SpendingWait;
use delivery::worker_context::WorkerContext;
use delivery::{outbox_publisher, retention_schedule};
use endpoint::registry::Registry;
use endpoint::reload::{EndpointReloader, read_endpoints};
use endpoint::replay_listener;
use endpoint::vault::Vault;
use endpoint::worker_pool::WorkerPool;
use reader::EventReader;
use reader::recovery::{self, Recovery};
use repeat::{RETRY_INTERVAL, while_connected};
use store::Store;
use stream::event_cache::EventCache;

/// Interval between checks that nobody deleted the names on the bus.
const NAMES_CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// The service as run by `mesh-runtime`.
pub struct WebhookDispatcherService;

impl Service for WebhookDispatcherService {
    type Config = Config;
    const NAME: &'static str = "webhook-dispatcher";
    const DEFAULTS: &'static str = config::DEFAULTS;
    const RENAMED_KEYS: RenamedKeys = config::RENAMED_KEYS;
    const LIVE_KEYS: &'static [&'static str] = &["endpoints"];
    const ABOUT: &'static str = "Delivers events to webhooks, signed, filtered and retried.";

    fn check(context: &Context) -> Result<(), BoxError> {
        configuration(context).map(drop)
    }

    fn database_file(context: &Context) -> Result<Option<PathBuf>, BoxError> {
        let location = configuration(context)?.location;
        Ok(location.file().map(Path::to_owned))
    }

    const REMEDY: &'static str = "endpoints made by the API and waiting retries on damaged pages are lost, but not their events: stop the webhook-dispatcher (or `smesh up`), run `smesh recover webhook-dispatcher`, start it again";

    async fn damage(file: &Path) -> Result<Option<String>, BoxError> {
        Ok(mesh_db::damage::damage(file).await?)
    }

    async fn start(context: Context) -> Result<RunningService, BoxError> {
        let Configuration {
            config,
            endpoints,
            files,
            network,
            location,
        } = configuration(&context)?;
        metrics::describe();
        mesh_runtime::install_crypto_provider();
        let store = Store::connect(&location)?;
        let vault = vault(&context, &config, &store)?;
        let (retention, cost_join_timeout) = (config.retention, config.cost_join_timeout);
        let (auto_disable_after, max_in_flight) = (config.auto_disable_after, config.max_in_flight);
        let registry = Arc::new(Registry::new(config, endpoints, vault));
        let is_shared = store.is_shared();
        let mut database =
            DatabaseStart::new(&context, Self::NAME, is_shared, Error::is_unavailable);
        database.try_prepare(prepare(&store, &registry)).await?;
        let bus = Bus::connect(&context.mesh.nats, Self::NAME).await?;
        let shared = Arc::new(WorkerContext {
            bus,
            store,
            http: Http::new(network)?,
            event_cache: EventCache::default(),
            cluster: context.mesh.cluster.clone(),
            costs: Costs::new(cost_join_timeout),
            cost_join_timeout,
            spending_wait: SpendingWait::default(),
            auto_disable_after,
            outcomes: Notify::new(),
            in_flight_limit: Arc::new(Semaphore::new(max_in_flight)),
            owned: RwLock::default(),
            reader: EventReader::new(
                location
                    .file()
                    .map(|file| Recovery::of(file, &context.mesh.cluster)),
            ),
            replayed: Default::default(),
            names: watch::Sender::default(),
        });
        let worker_pool = Arc::new(WorkerPool::new(Arc::clone(&shared), Arc::clone(&registry)));
        let router = api::router(Arc::new(Webhooks {
            shared: Arc::clone(&shared),
            registry: Arc::clone(&registry),
            worker_pool: Arc::clone(&worker_pool),
            config_file: context.config_file(),
            turns: TestLimiter::default(),
            making: Mutex::default(),
        }));
        let reloader = EndpointReloader {
            context: context.clone(),
            files,
            store: shared.store.clone(),
            registry,
            worker_pool,
        };
        // Registered before `run` starts, so that readiness is false until then.
        let leases = context.health.condition(&format!("{}.leases", Self::NAME));
        Ok(RunningService {
            router: context.audited(&shared.bus, router),
            run: Box::pin(async move {
                let running = Arc::clone(&shared);
                let ended = run(context, database, leases, running, reloader, retention).await;
                // Close on every exit path: closing the SQLite file merges its write-ahead log.
                shared.store.close().await;
                ended
            }),
        })
    }
}

/// Creates the tables in a new SQLite file.
///
/// # Errors
/// If the file cannot be written.
pub async fn prepare_file(path: PathBuf) -> Result<(), BoxError> {
    let store = Store::open(&Location::Sqlite(path)).await?;
    store.close().await;
    Ok(())
}

/// Prepares a recovered file for the next start, which reads from the bus what was delivered.
///
/// # Errors
/// If the configuration is invalid, or files cannot be written.
pub async fn restore(context: &Context) -> Result<(), BoxError> {
    let Configuration {
        endpoints,
        location,
        ..
    } = configuration(context)?;
    let store = Store::open(&location).await?;
    let prepared = recovery::prepare(&store, &endpoints).await;
    store.close().await;
    prepared
}

/// The section, as used.
struct Configuration {
    config: Config,
    endpoints: Vec<Endpoint>,
    /// `mesh.toml` and the files that its endpoints name.
    files: WatchedFiles,
    network: Network,
    location: Location,
}

/// Loads the section, its endpoints with their secrets, the network settings and the database location.
fn configuration(context: &Context) -> Result<Configuration, BoxError> {
    let config: Config = context.section(WebhookDispatcherService::NAME)?;
    let read = |path: &Path| std::fs::read_to_string(context.relative(path));
    let read_secret = |path: &Path| secret_file::read(&context.relative(path));
    let mut files = context.watched_config();
    let endpoints = read_endpoints(context, &config, &mut files);
    let network = config.network(read, read_secret);
    let location = config.location(&context.mesh.data_dir);
    match (endpoints, network, location) {
        (Ok(endpoints), Ok(network), Ok(location)) => Ok(Configuration {
            config,
            endpoints,
            files,
            network,
            location,
        }),
        // Report all faults at once. Faults of the location are already among those of the section.
        (endpoints, network, _) => {
            let faults = endpoints.err().into_iter().chain(network.err()).flatten();
            let sent: Vec<String> = faults.map(|fault| fault.to_string()).collect();
            Err(context.faults(&sent).into())
        }
    }
}

/// Opens the vault that encrypts secrets. Generates no key for a shared database: the other dispatchers could not
/// read it.
fn vault(context: &Context, config: &Config, store: &Store) -> Result<Option<Vault>, BoxError> {
    let fault = |problem| context.faults(&[format!("webhook-dispatcher.secrets_key: {problem}")]);
    if let Some(key) = &config.secrets_key {
        return Ok(Some(Vault::parse(key.expose_secret()).map_err(fault)?));
    }
    let named = !config.secrets_key_file.as_os_str().is_empty();
    if !named && store.is_shared() {
        return Ok(None);
    }
    let path = if named {
        context.relative(&config.secrets_key_file)
    } else {
        context.mesh.data_dir.join("webhook-dispatcher.key")
    };
    Ok(Some(Vault::open_or_make(&path)?))
}

/// Migrates the tables and stores the endpoints of `mesh.toml`.
async fn prepare(store: &Store, registry: &Registry) -> Result<(), Error> {
    store.prepare().await?;
    let files = registry.files();
    let files = files
        .iter()
        .map(|endpoint| (endpoint.name.as_str(), endpoint.public.as_str()));
    store.note_files(files, clock::now()).await
}

/// Delivers until shutdown, then finishes the requests in flight.
async fn run(
    context: Context,
    mut database: DatabaseStart<Error>,
    leases: Condition,
    shared: Arc<WorkerContext>,
    reloader: EndpointReloader,
    retention: Duration,
) -> Result<(), BoxError> {
    let shutdown = context.shutdown.clone();
    context.watch_nats(WebhookDispatcherService::NAME, &shared.bus);
    let prepared = || prepare(&shared.store, &reloader.registry);
    if !database.finish(prepared, &shutdown).await? {
        return Ok(());
    }
    // Cancelled last, so that the final outcomes of the other tasks are published too.
    let finished = CancellationToken::new();
    let announcer = tokio::spawn(outbox_publisher::run(Arc::clone(&shared), finished.clone()));
    let mut tasks = JoinSet::new();
    let worker_pool = Arc::clone(&reloader.worker_pool);
    let (pool, stop) = (Arc::clone(&worker_pool), shutdown.clone());
    // The remaining time is for releasing leases and publishing the last outcomes.
    let patience = context.mesh.work_deadline().mul_f64(0.8);
    tasks.spawn(async move { pool.run(leases, stop, patience).await });
    tasks.spawn(watch_database(
        Arc::clone(&shared),
        Arc::clone(&worker_pool),
        database.condition,
        shutdown.clone(),
    ));
    tasks.spawn(reloader.run());
    tasks.spawn(replay_listener::listen(
        Arc::clone(&shared),
        worker_pool,
        shutdown.clone(),
    ));
    let (reading, stop) = (Arc::clone(&shared), shutdown.clone());
    tasks.spawn(async move {
        let (bus, store, events) = (&reading.bus, &reading.store, &reading.event_cache);
        reading.reader.run(bus, store, events, &stop).await;
    });
    tasks.spawn(publish_names(Arc::clone(&shared), shutdown.clone()));
    tasks.spawn(retention_schedule::run(
        Arc::clone(&shared),
        retention,
        shutdown,
    ));
    while let Some(ended) = tasks.join_next().await {
        ended?;
    }
    finished.cancel();
    announcer.await?;
    shared.bus.close().await;
    Ok(())
}

/// Publishes the names of all endpoints, for the ledger, until shutdown.
async fn publish_names(shared: Arc<WorkerContext>, shutdown: CancellationToken) {
    let action = "publishing endpoint names to NATS";
    while_connected(&shared.bus, &shutdown, action, || write_names(&shared)).await;
}

async fn write_names(shared: &WorkerContext) -> Result<(), mesh_bus::Error> {
    let mut names = shared.names.subscribe();
    let mut written = shared.bus.webhook_names().await?;
    loop {
        let known = names.borrow_and_update().clone();
        let complete = match &known {
            Some(known) => written.write(known).await?,
            None => true,
        };
        let pause = if complete {
            NAMES_CHECK_INTERVAL
        } else {
            RETRY_INTERVAL
        };
        tokio::select! {
            changed = names.changed() => if changed.is_err() { return Ok(()) },
            () = tokio::time::sleep(pause) => written.check().await?,
        }
    }
}

/// Reports whether database writes succeed, and wakes the workers once they succeed again.
async fn watch_database(
    shared: Arc<WorkerContext>,
    worker_pool: Arc<WorkerPool>,
    condition: Condition,
    shutdown: CancellationToken,
) {
    let mut trouble = shared.store.trouble();
    loop {
        let reason = trouble.borrow_and_update().clone();
        match reason {
            None => {
                condition.ok();
                if let Err(error) = worker_pool.wake_waiting().await {
                    let error = mesh_runtime::error_chain(&error);
                    tracing::debug!(error, "waiting deliveries not read");
                }
                shared.outcomes.notify_one();
            }
            Some(reason) => condition.fail(format!("not writable, nothing is sent: {reason}")),
        }
        tokio::select! {
            changed = trouble.changed() => if changed.is_err() { return },
            () = shutdown.cancelled() => return,
        }
    }
}
