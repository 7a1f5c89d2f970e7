//! The ledger stores every event and audit entry once, in order, in a tamper-evident chain.
//!
//! - [`domain`]: records, the chain, verification, queries and job histories. Pure.
//! - [`handlers`]: appends messages from the bus, and acknowledges them once they are durable.
//! - [`adapters`]: the tables, in a SQLite file or a PostgreSQL database.
//! - [`index_backfill`]: fills missing index rows before the API answers queries.
//! - [`checkpointer`]: signs the Merkle tree over the entries.
//! - [`retention`]: removes the content of old entries from the database.
//! - [`recorded`]: reads recorded events while the service does not run.
//! - [`replayer`]: publishes recorded events again.
//! - [`api`]: queries, proofs and replays over REST and gRPC.

pub mod adapters;
pub mod api;
pub mod checkpointer;
pub mod config;
pub mod domain;
pub mod error;
mod gaps;
pub mod handlers;
mod index_backfill;
pub mod metrics;
pub mod recorded;
pub mod replayer;
mod replica_poller;
pub mod retention;
mod retention_schedule;
pub mod witness;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mesh_bus::Bus;
use mesh_runtime::{BoxError, Context, DatabaseStart, RenamedKeys, RunningService, Service};

/// SQL that creates the roles of a ledger on PostgreSQL, and grants their rights.
pub const POSTGRES_ROLES: &str = include_str!("../migrations/postgres_roles.sql");

pub use adapters::{
    BackfillProgress, Class, EXPORTED, Elsewhere, INTEGRITY_CACHE_KIB, PUBLISHED, RemovedAudit,
    Store, TrustAnchors, UnverifiedLedger, VerifyError, VerifyProgress, VerifyReport,
    verify_database, verify_database_with, verify_everything,
};
pub use config::{CheckpointConfig, Config, ReplayConfig, WitnessConfig};
pub use domain::verify::{Fault, FirstFault, VerifiedLedger};
pub use error::Error;
pub use mesh_db::Location;
pub use retention::Retention;

use adapters::KeyFile;
use api::{Events, Proofs, Replays};
use checkpointer::Checkpointer;
use gaps::GapMonitor;
use handlers::{Appender, Source};
use index_backfill::IndexBackfill;
use replayer::Replayer;
use retention_schedule::RetentionSchedule;

/// The ledger service, run by `mesh-runtime`.
pub struct LedgerService;

impl Service for LedgerService {
    type Config = Config;
    const NAME: &'static str = "ledger";
    const DEFAULTS: &'static str = config::DEFAULTS;
    const RENAMED_KEYS: RenamedKeys = config::RENAMED_KEYS;
    const ABOUT: &'static str =
        "Stores every event once in a hash chain, and answers queries about the history.";

    fn check(context: &Context) -> Result<(), BoxError> {
        configuration(context).map(drop)
    }

    fn database_file(context: &Context) -> Result<Option<PathBuf>, BoxError> {
        let config = configuration(context)?;
        let location = config.database(&context.mesh.data_dir)?;
        Ok(location.file().map(Path::to_owned))
    }

    const REMEDY: &'static str = "entries on damaged pages can no longer be verified: stop the ledger (or `smesh up`) and restore the file from a backup; entries of the last 14 days come from the bus; `smesh verify` lists the damaged entries";

    async fn damage(file: &Path) -> Result<Option<String>, BoxError> {
        Ok(mesh_db::damage::damage(file).await?)
    }

    async fn start(context: Context) -> Result<RunningService, BoxError> {
        let config = configuration(&context)?;
        metrics::describe();
        let location = config.database(&context.mesh.data_dir)?;
        let (reader, db) = (config.reader()?, &config.db);
        let store = Store::connect_with(&location, reader.as_ref(), db.readers, db.query_timeout)?;
        let is_shared = store.is_shared();
        let mut database =
            DatabaseStart::new(&context, Self::NAME, is_shared, Error::is_unavailable);
        database.try_prepare(store.prepare()).await?;
        tracing::info!(%location, "ledger opened");
        let bus = Bus::connect(&context.mesh.nats, Self::NAME).await?;
        let events = Events::new(
            store.clone(),
            config.max_page_size,
            config.max_history_events,
        );
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
            config.replay.retention,
        );
        let replays = Replays::new(store.clone(), replayer.clone(), config.replay.limits());
        let others = api::router(Arc::new(events)).merge(api::export_router(Arc::clone(&proofs)));
        let router = context
            .audited(&bus, others)
            .merge(api::proof_router(proofs))
            .merge(api::replay_router(Arc::new(replays)));
        let index_backfill = IndexBackfill::new(store.clone());
        let router = index_backfill.guard(router);
        let tasks = (checkpointer, replayer);
        let startup = (database, index_backfill);
        Ok(RunningService {
            router,
            run: Box::pin(async move {
                let ended = Box::pin(run(context, bus, &store, config, tasks, startup)).await;
                // Closed after an error as well, so that the WAL is checkpointed.
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

/// Consumes both streams until shutdown.
async fn run(
    context: Context,
    bus: Bus,
    store: &Store,
    config: Config,
    (checkpointer, replayer): (Checkpointer, Replayer),
    (mut database, index_backfill): (DatabaseStart<Error>, IndexBackfill),
) -> Result<(), BoxError> {
    context.watch_nats(LedgerService::NAME, &bus);
    let reading = context.health.condition("ledger.reading");
    let shutdown = &context.shutdown;
    if !database.finish(|| store.prepare(), shutdown).await? {
        return Ok(());
    }
    let database = database.condition;
    if !index_backfill.run(&database, shutdown).await? {
        return Ok(());
    }
    reading.ok();
    if bus.ready(shutdown).await.is_err() {
        // Shut down before NATS was available.
        return Ok(());
    }
    let checkpoints = context.health.condition("ledger.checkpoints");
    checkpoints.ok();
    if let Err(error) = checkpointer.check_published_checkpoints().await {
        let error = mesh_runtime::error_chain(&error);
        tracing::error!(error, "comparison with published checkpoints failed");
        checkpoints.fail(error);
    }
    let consume = |source: Source| {
        let appender = Appender::new(source, store.clone(), database.clone(), shutdown.clone());
        let bus = bus.clone();
        async move {
            // A restored ledger must recover its entries in their original order first.
            let whole = shutdown.run_until_cancelled(store.wait_until_complete());
            match whole.await {
                None => return Ok(()),
                Some(Err(error)) => tracing::warn!(
                    error = mesh_runtime::error_chain(&error),
                    "comparison with published checkpoints failed"
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
    let gaps = GapMonitor {
        store: store.clone(),
        bus: bus.clone(),
        cluster: context.mesh.cluster.clone(),
        note: context.health.note("ledger.gaps"),
    };
    gaps.begin().await;
    let retained = context.health.condition("ledger.retention");
    retained.ok();
    let schedule = configured_retention(&context, &config, store, &checkpointer)?;
    let cluster = &context.mesh.cluster;
    let stop = shutdown.child_token();
    let replaying = tokio::spawn(replayer.run(stop.clone()));
    let (events, audit) = tokio::select! {
        both = async { tokio::join!(consume(Source::Events), consume(Source::Audit)) } => both,
        () = replica_poller::run(store, &reading) => (Ok(()), Ok(())),
        () = checkpointer.run(config.checkpoint.interval, &checkpoints) => (Ok(()), Ok(())),
        () = gaps.run() => (Ok(()), Ok(())),
        () = retention_schedule::run(store, &bus, cluster, schedule.as_ref(), &retained) => (Ok(()), Ok(())),
    };
    stop.cancel();
    replaying.await?;
    events?;
    audit?;
    Ok(())
}

/// Returns the configured retention, or `None` if content is stored permanently.
fn configured_retention(
    context: &Context,
    config: &Config,
    store: &Store,
    checkpointer: &Checkpointer,
) -> Result<Option<RetentionSchedule>, BoxError> {
    let Some(max_age) = config.retention.max_age()? else {
        return Ok(None);
    };
    let location = match config.eraser()? {
        Some(location) => location,
        None => store.location().clone(),
    };
    let folder = config.retention.archive_dir(&context.mesh.data_dir);
    let key = KeyFile::new(config.checkpoint.key_file(&context.mesh.data_dir));
    Ok(Some(RetentionSchedule {
        retention: Retention::new(store.clone(), &location, key).compared_by(checkpointer.clone()),
        max_age,
        folder: (!config.retention.erase).then_some(folder),
    }))
}
