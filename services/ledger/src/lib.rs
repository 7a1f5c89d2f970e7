//! The ledger: every event and audit entry once, in order, in a chain that shows any later change.
//!
//! - [`domain`]: facts, the chain, verification, questions and stories. Pure.
//! - [`handlers`]: messages of the bus become entries; acknowledged when they are durable.
//! - [`adapters`]: the SQLite file.
//! - [`api`]: queries over REST and gRPC.
//!
//! Deliberately absent: proofs by Merkle tree and signature, retention, replay. The tables leave room for them.

pub mod adapters;
pub mod api;
pub mod config;
pub mod domain;
pub mod error;
pub mod handlers;
pub mod metrics;

use std::sync::Arc;

use mesh_bus::Bus;
use mesh_runtime::{BoxError, Context, Service, Started};

pub use adapters::{Progress, Store, VerifyError, verify_database};
pub use config::{Config, DEFAULTS};
pub use domain::verify::{Fault, FirstBad, Verified};
pub use error::Error;

use api::Events;
use handlers::{Appender, Source};

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

    async fn start(context: Context) -> Result<Started, BoxError> {
        let config = configuration(&context)?;
        metrics::describe();
        let path = config.database(&context.mesh.data_dir)?;
        let store = Store::open(&path, config.db.readers).await?;
        let head = store.head().await?;
        tracing::info!(path = %path.display(), seq = head.seq, "ledger opened");
        let bus = Bus::connect(&context.mesh.nats, Self::NAME).await?;
        let events = Events::new(store.clone(), config.max_page, config.max_story);
        Ok(Started {
            router: api::router(Arc::new(events)),
            run: Box::pin(run(context, bus, store, config.batch_size)),
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

/// Takes in both streams until told to stop.
async fn run(context: Context, bus: Bus, store: Store, batch: usize) -> Result<(), BoxError> {
    context.watch_nats(LedgerService::NAME, &bus);
    let database = context.health.condition("ledger.database");
    database.ok();
    let shutdown = &context.shutdown;
    if bus.ready(shutdown).await.is_err() {
        // Told to stop before NATS could be reached: nothing is held.
        return Ok(());
    }
    let consume = |source: Source| {
        let appender = Appender::new(source, store.clone(), database.clone(), shutdown.clone());
        let bus = bus.clone();
        async move {
            bus.consume_batches(
                source.stream(),
                LedgerService::NAME,
                batch,
                appender,
                shutdown,
            )
            .await
        }
    };
    let (events, audit) = tokio::join!(consume(Source::Events), consume(Source::Audit));
    store.close().await;
    events?;
    audit?;
    Ok(())
}
