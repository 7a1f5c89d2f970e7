//! Turns job events into what they cost.
//!
//! ```text
//! job.started, job.baseline ─► burn rate, estimate ─► cost.estimated
//! job.suspended, job.resumed, job.resized ─► remembered until the run ends
//! the end of a run ─► exact cost, rounded once ─► cost.finalized
//! ```
//!
//! - [`domain`]: the formulas, pure.
//! - [`price_book`]: what the site's nodes cost, from TOML, and what jobs must cost by that; `reload` follows its changes.
//! - [`usage`] and [`costing`]: from Slurm's snapshots to facts, and from facts to the payload of a cost event.
//! - `handlers`, [`adapters`] and `outbox`: job events in, one transaction, cost events out.
//! - [`api`]: `/v1/costs/live` and `/v1/costs`.
//!
//! Deliberately absent: budgets, adjustments of final costs and accrual events; they come later.

pub mod adapters;
pub mod api;
mod config;
pub mod costing;
pub mod domain;
pub mod error;
mod handlers;
mod metrics;
mod outbox;
pub mod price_book;
mod reload;
pub mod usage;
#[cfg(test)]
mod vectors;

use std::path::PathBuf;

use mesh_bus::Bus;
use mesh_events::catalogue::SLURM_EVENTS;
use mesh_runtime::{BoxError, Context, Service, Started};
use tokio_util::sync::CancellationToken;

pub use config::{Config, DEFAULTS};
pub use price_book::{PriceBook, PriceBookError};

use adapters::Store;
use handlers::JobEvents;
use outbox::Outbox;
use reload::Follower;

/// A price book that shows every form; a start for a site's own.
pub const EXAMPLE_PRICE_BOOK: &str = include_str!("../examples/price-book.toml");

/// The service.
pub struct CostEngineService;

impl Service for CostEngineService {
    const NAME: &'static str = "cost-engine";
    const DEFAULTS: &'static str = DEFAULTS;
    const ABOUT: &'static str = "Turns job events into what they cost";

    fn check(context: &Context) -> Result<(), BoxError> {
        configuration(context).map(drop)
    }

    fn database_file(context: &Context) -> Result<Option<PathBuf>, BoxError> {
        configuration(context).map(|(_, path, _)| Some(path))
    }

    async fn start(context: Context) -> Result<Started, BoxError> {
        let (config, database, prices) = configuration(&context)?;
        metrics::describe();
        if let Some(follower) = &prices {
            tracing::info!(
                price_book = follower.book.borrow().label(),
                "price book read"
            );
        }
        let store = Store::open(&database).await?;
        if let Some(follower) = &prices {
            follower.admit(&store).await?;
        }
        let bus = Bus::connect(&context.mesh.nats, Self::NAME).await?;
        context.watch_nats(Self::NAME, &bus);
        let book = prices.as_ref().map(|follower| follower.book.subscribe());
        let router = context.audited(
            &bus,
            api::router(api::Api {
                store: store.clone(),
                book,
            }),
        );
        let engine = Engine {
            config,
            store: store.clone(),
            bus,
            shutdown: context.shutdown,
        };
        Ok(Started {
            router,
            run: Box::pin(async move {
                let ended = engine.run(prices).await;
                // However it ended: a file that is not closed leaves its log unmerged.
                store.close().await;
                ended
            }),
        })
    }
}

/// Makes the tables in a file that is not there.
///
/// # Errors
/// If it cannot be written.
pub async fn prepare_file(path: PathBuf) -> Result<(), BoxError> {
    Store::open(&path).await?.close().await;
    Ok(())
}

/// The section, where the database is, and the price book if there is one.
fn configuration(context: &Context) -> Result<(Config, PathBuf, Option<Follower>), BoxError> {
    let config: Config = context.section(CostEngineService::NAME)?;
    let faults = config.faults();
    let Some(database) = config
        .database(&context.mesh.data_dir)
        .filter(|_| faults.is_empty())
    else {
        return Err(context.faults(&faults).into());
    };
    let prices = if config.price_book.as_os_str().is_empty() {
        None
    } else {
        let path = context.relative(&config.price_book);
        Some(Follower::new(path).map_err(error::Error::from)?)
    };
    Ok((config, database, prices))
}

struct Engine {
    config: Config,
    store: Store,
    bus: Bus,
    shutdown: CancellationToken,
}

impl Engine {
    async fn run(self, prices: Option<Follower>) -> Result<(), BoxError> {
        let Self {
            config,
            store,
            bus,
            shutdown,
        } = self;
        if let Err(mesh_bus::Error::Cancelled) = bus.ready(&shutdown).await {
            return Ok(());
        }
        let outbox = Outbox::default();
        let publish = outbox.clone().run(&store, &bus, &shutdown);
        // One task for all of it: whoever drops this future has stopped everything.
        if let Some(mut follower) = prices {
            let handler = JobEvents {
                store: store.clone(),
                book: follower.book.subscribe(),
                outbox,
            };
            let consume = bus.consume_batches(
                SLURM_EVENTS,
                CostEngineService::NAME,
                config.batch_size,
                handler,
                &shutdown,
            );
            let follow = follower.follow(config.reload_interval, &store, &shutdown);
            let (consumed, (), ()) = tokio::join!(Box::pin(consume), Box::pin(publish), follow);
            consumed?;
        } else {
            tracing::info!("no price book: no costs are computed; set cost-engine.price_book");
            publish.await;
        }
        bus.close().await;
        Ok(())
    }
}
