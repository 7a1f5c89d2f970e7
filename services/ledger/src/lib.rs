//! The ledger: every event and audit entry once, in order, in a chain that shows any later change.
//!
//! - [`domain`]: facts, the chain, verification, questions and stories. Pure.
//! - [`handlers`]: messages of the bus become entries; acknowledged when they are durable.
//! - [`adapters`]: the tables, in a SQLite file or a PostgreSQL database.
//! - [`completer`]: fills columns for queries that are missing, before anything is answered.
//! - [`checkpointer`]: signs the Merkle tree over the entries.
//! - [`retention`]: takes the content of old entries out of the database.
//! - [`replayer`]: tells recorded events once more.
//! - [`api`]: queries, proofs and replays over REST and gRPC.

pub mod adapters;
pub mod api;
pub mod checkpointer;
mod completer;
pub mod config;
pub mod domain;
pub mod error;
pub mod handlers;
mod holes;
mod keeper;
pub mod metrics;
mod policy;
pub mod replayer;
pub mod retention;
pub mod witness;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mesh_bus::Bus;
use mesh_runtime::{BoxError, Condition, Context, Service, Started};

/// SQL that makes the roles of a ledger on PostgreSQL, and gives them their rights.
pub const POSTGRES_ROLES: &str = include_str!("../migrations/postgres_roles.sql");

pub use adapters::{
    Class, Completion, PUBLISHED, Progress, Report, Store, Trust, Unverified, VerifyError,
    verify_database, verify_database_with, verify_everything,
};
pub use config::{CheckpointConfig, Config, DEFAULTS, ReplayConfig, WitnessConfig};
pub use domain::verify::{Fault, FirstFault, VerifiedLedger};
pub use error::Error;
pub use mesh_db::Location;
pub use retention::Retention;

use adapters::KeyFile;
use api::{Events, Proofs, Replays};
use checkpointer::Checkpointer;
use completer::Completer;
use handlers::{Appender, Source};
use holes::Holes;
use policy::Policy;
use replayer::Replayer;

/// The service, as `mesh-runtime` runs it.
pub struct LedgerService;

impl Service for LedgerService {
    const NAME: &'static str = "ledger";
    const DEFAULTS: &'static str = DEFAULTS;
    const ABOUT: &'static str =
        "Keeps every event once, hash-chained, and answers queries over the history.";

    fn check(context: &Context) -> Result<(), BoxError> {
        configuration(context).map(drop)
    }

    fn database_file(context: &Context) -> Result<Option<PathBuf>, BoxError> {
        let config = configuration(context)?;
        Ok(match config.database(&context.mesh.data_dir)? {
            Location::Sqlite(path) => Some(path),
            Location::Postgres(_) => None,
        })
    }

    const REMEDY: &'static str = "what stands on damaged pages cannot be proven any more: stop the ledger (or `smesh up`) and put a backup of the file back, the bus gives what came within 14 days; `smesh verify` says which entries are concerned";

    async fn damage(file: &Path) -> Result<Option<String>, BoxError> {
        Ok(mesh_db::damage::damage(file).await?)
    }

    async fn start(context: Context) -> Result<Started, BoxError> {
        let config = configuration(&context)?;
        metrics::describe();
        // Named before anybody can ask: not ready until the ledger is open.
        let database = context.health.condition("ledger.database");
        let location = config.database(&context.mesh.data_dir)?;
        let (reader, db) = (config.reader()?, &config.db);
        let store = Store::connect_with(&location, reader.as_ref(), db.readers, db.query_timeout)?;
        let prepared = match store.prepare().await {
            Ok(()) => true,
            // The other services need not wait for it: `run` does.
            Err(error) if store.is_shared() && error.is_unavailable() => {
                tracing::warn!(
                    error = mesh_runtime::chain(&error),
                    "ledger is not there yet"
                );
                false
            }
            Err(error) => return Err(error.into()),
        };
        tracing::info!(%location, "ledger opened");
        let bus = Bus::connect(&context.mesh.nats, Self::NAME).await?;
        let events = Events::new(store.clone(), config.max_page, config.max_story);
        let checkpointer = Checkpointer::new(
            store.clone(),
            bus.clone(),
            KeyFile::new(config.checkpoint.key_file(&context.mesh.data_dir)),
            &config.checkpoint.origin(&context.mesh.cluster),
            &context.mesh.cluster,
        )
        .with_witnesses(config.checkpoint.witnesses()?);
        let proofs = Arc::new(Proofs::new(store.clone(), checkpointer.clone()));
        let replayer = Replayer::new(
            store.clone(),
            bus.clone(),
            &context.mesh.cluster,
            config.replay.keep,
        );
        let replays = Replays::new(store.clone(), replayer.clone(), config.replay.limits());
        let others = api::router(Arc::new(events)).merge(api::export_router(Arc::clone(&proofs)));
        let router = context
            .audited(&bus, others)
            .merge(api::proof_router(proofs))
            .merge(api::replay_router(Arc::new(replays)));
        let completer = Completer::new(store.clone());
        let router = completer.guard(router);
        let tasks = (checkpointer, replayer);
        let opening = Opening {
            prepared,
            completer,
            database,
        };
        Ok(Started {
            router,
            run: Box::pin(async move {
                let ended = Box::pin(run(context, bus, &store, config, tasks, opening)).await;
                // However it ended: a file that is not closed leaves its log unmerged.
                store.close().await;
                ended
            }),
        })
    }
}

fn configuration(context: &Context) -> Result<Config, BoxError> {
    let config: Config = context.section(LedgerService::NAME)?;
    config
        .validate()
        .map_err(|faults| context.faults(&faults))?;
    config.database(&context.mesh.data_dir)?;
    Ok(config)
}

/// What is left to do before the ledger is open.
struct Opening {
    prepared: bool,
    completer: Completer,
    database: Condition,
}

/// Takes in both streams until told to stop.
async fn run(
    context: Context,
    bus: Bus,
    store: &Store,
    config: Config,
    (checkpointer, replayer): (Checkpointer, Replayer),
    opening: Opening,
) -> Result<(), BoxError> {
    context.watch_nats(LedgerService::NAME, &bus);
    let Opening {
        prepared,
        completer,
        database,
    } = opening;
    let reading = context.health.condition("ledger.reading");
    let shutdown = &context.shutdown;
    if !prepared && !keeper::open(store, &database, shutdown).await? {
        return Ok(());
    }
    if !completer.run(&database, shutdown).await? {
        return Ok(());
    }
    reading.ok();
    if bus.ready(shutdown).await.is_err() {
        // Told to stop before NATS could be reached: nothing is held.
        return Ok(());
    }
    let checkpoints = context.health.condition("ledger.checkpoints");
    checkpoints.ok();
    if let Err(error) = checkpointer.look_back().await {
        let error = mesh_runtime::chain(&error);
        tracing::error!(error, "compare the ledger with what was signed");
        checkpoints.fail(error);
    }
    let consume = |source: Source| {
        let appender = Appender::new(source, store.clone(), database.clone(), shutdown.clone());
        let bus = bus.clone();
        async move {
            // What comes next was appended before, in an order that has to be found again.
            let whole = shutdown.run_until_cancelled(store.until_not_set_back());
            match whole.await {
                None => return Ok(()),
                Some(Err(error)) => tracing::warn!(
                    error = mesh_runtime::chain(&error),
                    "compare the ledger with what was signed"
                ),
                Some(Ok(())) => {}
            }
            bus.consume_batches(
                source.stream(),
                LedgerService::NAME,
                config.batch_size,
                appender,
                shutdown,
            )
            .await
        }
    };
    let holes = Holes {
        store: store.clone(),
        bus: bus.clone(),
        cluster: context.mesh.cluster.clone(),
        note: context.health.note("ledger.holes"),
    };
    holes.begin().await;
    let retained = context.health.condition("ledger.retention");
    retained.ok();
    let policy = policy(&context, &config, store)?;
    let cluster = &context.mesh.cluster;
    let stop = shutdown.child_token();
    let replaying = tokio::spawn(replayer.keep(stop.clone()));
    let (events, audit) = tokio::select! {
        both = async { tokio::join!(consume(Source::Events), consume(Source::Audit)) } => both,
        () = keeper::keep(store, &reading) => (Ok(()), Ok(())),
        () = checkpointer.keep(config.checkpoint.interval, &checkpoints) => (Ok(()), Ok(())),
        () = holes.keep() => (Ok(()), Ok(())),
        () = policy::keep(store, &bus, cluster, policy.as_ref(), &retained) => (Ok(()), Ok(())),
    };
    stop.cancel();
    replaying.await?;
    events?;
    audit?;
    Ok(())
}

/// How long content is kept; `None` for ever.
fn policy(context: &Context, config: &Config, store: &Store) -> Result<Option<Policy>, BoxError> {
    let Some(keep) = config.retention.keep()? else {
        return Ok(None);
    };
    let location = match config.dropper()? {
        Some(location) => location,
        None => store.location().clone(),
    };
    let folder = config.retention.archive_dir(&context.mesh.data_dir);
    let key = KeyFile::new(config.checkpoint.key_file(&context.mesh.data_dir));
    Ok(Some(Policy {
        retention: Retention::new(store.clone(), &location, key),
        keep,
        folder: (!config.retention.erase).then_some(folder),
    }))
}
