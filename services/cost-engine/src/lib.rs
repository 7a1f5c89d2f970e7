//! Computes costs from job events.
//!
//! ```text
//! job.started, job.baseline ─► burn rate, estimate ─► cost.estimated
//! job.suspended, job.resumed, job.resized ─► stored; after a resize ─► new burn rate and estimate ─► cost.estimated
//! the end of a run ─► exact cost, rounded once ─► cost.finalized
//! any of these, or job.corrected, after that ─► exact cost again ─► cost.adjusted
//! ```
//!
//! - [`domain`]: the formulas, pure.
//! - [`price_book`]: the site's prices from TOML, and checks of expected job costs. `price_book_watcher` follows changes of the file.
//! - [`usage`] and [`costing`]: from Slurm's snapshots to facts, and from facts to the payload of a cost event.
//! - `handlers`, [`adapters`] and `outbox`: job events in, one transaction, cost events out.
//! - [`restore`]: the rows of a lost database from the published events.
//! - [`budgets`]: what may be spent in a period, and `user.quota_*` events when that is nearly or fully used.
//! - [`focus`]: costs in the format of cloud bills.
//! - `node_costs`: cost of each node in a period, by category.
//! - [`accrual`]: when `cost.accrued` of a running job is due, and publishes it.
//! - `spending`: what people have spent this month, over Unix users and clusters.
//! - `tombstones`: deletes what is left of runs that never started.
//! - [`api`]: costs, reports, closed periods, nodes and budgets.

pub mod accrual;
pub mod adapters;
pub mod api;
pub mod budgets;
mod config;
pub mod costing;
pub mod domain;
pub mod error;
pub mod focus;
mod handlers;
mod metrics;
mod node_costs;
mod outbox;
pub mod price_book;
mod price_book_watcher;
mod recorded_report;
pub mod restore;
mod spending;
mod tombstones;
pub mod usage;
#[cfg(test)]
mod vectors;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mesh_bus::Bus;
use mesh_db::Location;
use mesh_db::damage::RecoveryMarker;
use mesh_events::catalogue::SLURM_EVENTS;
use mesh_runtime::{
    BoxError, Context, DatabaseStart, ReloadTimer, RenamedKeys, RunningService, Service,
};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

pub use config::Config;
pub use price_book::{PriceBook, PriceBookError};

use accrual::handled::HandledMessages;
use accrual::publisher::AccrualPublisher;
use adapters::{AUDIT_ENTRIES, Store};
use budgets::account_tree;
use budgets::evaluator::{BudgetEvaluator, DailyFacts, Evaluation};
use budgets::open_costs::CostCurves;
use budgets::pending_costs::PendingCosts;
use budgets::watcher::BudgetWatcher;
use error::Error;
use handlers::JobEvents;
use outbox::Outbox;
use price_book_watcher::PriceBookWatcher;
use spending::publisher::{ChangedUsers, SpendingPublisher};

/// Poll interval of audit entries, without a notification.
const AUDIT_POLL_INTERVAL: Duration = Duration::from_secs(30);

/// A price book with every feature, as a template for a site's own.
pub const EXAMPLE_PRICE_BOOK: &str = include_str!("../examples/price-book.toml");

/// Budgets with every feature, as a template.
pub const EXAMPLE_BUDGETS: &str = include_str!("../examples/budgets.toml");

/// The cost engine.
pub struct CostEngineService;

impl Service for CostEngineService {
    type Config = Config;
    const NAME: &'static str = "cost-engine";
    const DEFAULTS: &'static str = config::DEFAULTS;
    const RENAMED_KEYS: RenamedKeys = config::RENAMED_KEYS;
    const ABOUT: &'static str = "Computes the costs of jobs from their events.";

    fn check(context: &Context) -> Result<(), BoxError> {
        configuration(context).map(drop)
    }

    fn database_file(context: &Context) -> Result<Option<PathBuf>, BoxError> {
        let location = configuration(context)?.location;
        Ok(location.file().map(Path::to_owned))
    }

    const REMEDY: &'static str = "costs on damaged pages are lost until they are restored from the ledger and computed again from the bus (14 days): stop the cost-engine (or `smesh up`), run `smesh recover cost-engine`, start it again";

    async fn damage(file: &Path) -> Result<Option<String>, BoxError> {
        Ok(mesh_db::damage::damage(file).await?)
    }

    async fn start(context: Context) -> Result<RunningService, BoxError> {
        let Configuration {
            config,
            location,
            prices,
            budgets,
        } = configuration(&context)?;
        metrics::describe();
        if let Some(follower) = &prices {
            tracing::info!(
                price_book = follower.book.borrow().label(),
                "price book loaded"
            );
        }
        let store = Store::connect(&location)?;
        let is_shared = store.database.is_shared();
        let mut database =
            DatabaseStart::new(&context, Self::NAME, is_shared, Error::is_unavailable);
        let prepared = prepare(&store, prices.as_ref());
        database.try_prepare(prepared).await?;
        let bus = Bus::connect(&context.mesh.nats, Self::NAME).await?;
        context.watch_nats(Self::NAME, &bus);
        let book = prices.as_ref().map(|follower| follower.book.subscribe());
        let audit_pending = Arc::new(Notify::new());
        let evaluation = watch::Sender::new(Arc::new(Evaluation::default()));
        let router = context.audited(
            &bus,
            api::router(api::Api {
                store: store.clone(),
                book,
                file_budgets: budgets.as_ref().map(|watcher| watcher.of_files.subscribe()),
                evaluation: evaluation.subscribe(),
                cluster: context.mesh.cluster.clone(),
                audit_pending: Arc::clone(&audit_pending),
            }),
        );
        let engine = CostEngine {
            marker: location.file().map(RecoveryMarker::of),
            config,
            store: store.clone(),
            database,
            bus,
            cluster: context.mesh.cluster.clone(),
            evaluation,
            audit_pending,
            shutdown: context.shutdown,
        };
        Ok(RunningService {
            router,
            run: Box::pin(async move {
                let ended = engine.run(prices, budgets).await;
                // In every case: an unclosed file leaves its log unmerged.
                store.database.close().await;
                ended
            }),
        })
    }
}

/// Opens a recovered file, to restore what the ledger has of it.
///
/// # Errors
/// If the configuration is invalid, or the file cannot be used.
pub async fn restore(context: &Context, file: PathBuf) -> Result<restore::Restore, BoxError> {
    let configuration = configuration(context)?;
    let prices = configuration.prices;
    let currency = prices.map(|prices| prices.book.borrow().currency.clone());
    let budgets = configuration.budgets;
    let budgets = budgets.map(|watcher| Vec::clone(&watcher.of_files.borrow()));
    let restore = restore::Restore::open(file, currency.unwrap_or_default(), budgets);
    Ok(restore.await?)
}

/// Creates the tables in a new file.
///
/// # Errors
/// If it cannot be written.
pub async fn prepare_file(path: PathBuf) -> Result<(), BoxError> {
    Store::open(&Location::Sqlite(path))
        .await?
        .database
        .close()
        .await;
    Ok(())
}

/// Marks the closed periods of a recovered file in which costs are missing, so that reports of later periods do not correct them.
///
/// # Errors
/// If it cannot be written.
pub async fn mark_periods_incomplete(path: PathBuf) -> Result<(), BoxError> {
    let store = Store::open(&Location::Sqlite(path)).await?;
    let marked = store.mark_periods_incomplete().await;
    store.database.close().await;
    Ok(marked?)
}

/// The section, and what it names.
struct Configuration {
    config: Config,
    location: Location,
    prices: Option<PriceBookWatcher>,
    budgets: Option<BudgetWatcher>,
}

fn configuration(context: &Context) -> Result<Configuration, BoxError> {
    let config: Config = context.section(CostEngineService::NAME)?;
    let faults = config.faults();
    let location = match config
        .db
        .location(CostEngineService::NAME, &context.mesh.data_dir)
    {
        Ok(location) if faults.is_empty() => location,
        _ => return Err(context.faults(&faults).into()),
    };
    let prices = if config.price_book.as_os_str().is_empty() {
        None
    } else {
        let path = context.relative(&config.price_book);
        Some(PriceBookWatcher::new(path).map_err(Error::from)?)
    };
    let budgets = match &prices {
        Some(follower) if !config.budgets.as_os_str().is_empty() => {
            let folder = context.relative(&config.budgets);
            let note = context.health.note("cost-engine.budgets");
            let watcher = BudgetWatcher::new(folder, &follower.book.borrow(), note);
            Some(watcher.map_err(Error::from)?)
        }
        _ => None,
    };
    Ok(Configuration {
        config,
        location,
        prices,
        budgets,
    })
}

/// Migrates the tables and stores the content of the price book.
async fn prepare(store: &Store, prices: Option<&PriceBookWatcher>) -> Result<(), Error> {
    store.database.prepare().await?;
    match prices {
        Some(follower) => follower.admit(store).await,
        None => Ok(()),
    }
}

struct CostEngine {
    /// If set, costs that the recovered file lacks are computed from the bus. `None` on a database server.
    marker: Option<RecoveryMarker>,
    config: Config,
    store: Store,
    database: DatabaseStart<Error>,
    bus: Bus,
    /// Cluster of this process.
    cluster: String,
    /// The last evaluation of budgets, for the API.
    evaluation: watch::Sender<Arc<Evaluation>>,
    /// Notified when an audit entry was committed.
    audit_pending: Arc<Notify>,
    shutdown: CancellationToken,
}

impl CostEngine {
    async fn run(
        self,
        prices: Option<PriceBookWatcher>,
        budgets: Option<BudgetWatcher>,
    ) -> Result<(), BoxError> {
        let Self {
            marker,
            config,
            store,
            mut database,
            bus,
            cluster,
            evaluation,
            audit_pending,
            shutdown,
        } = self;
        let prepared = || prepare(&store, prices.as_ref());
        if !database.finish(prepared, &shutdown).await? {
            return Ok(());
        }
        let database = database.condition;
        database.ok();
        if let Err(mesh_bus::Error::Cancelled) = bus.ready(&shutdown).await {
            return Ok(());
        }
        if let Some(marker) = marker.filter(RecoveryMarker::is_set) {
            bus.recreate_consumer(SLURM_EVENTS, CostEngineService::NAME)
                .await?;
            marker.clear()?;
            tracing::info!("database was recovered, computing what it lacks from the bus");
        }
        let outbox = Outbox::default();
        let publish = outbox.clone().run(&store, &bus, &shutdown);
        let notice = (&*audit_pending, AUDIT_POLL_INTERVAL);
        let publish_audit = AUDIT_ENTRIES.run(&store.database, &bus, notice, &shutdown);
        let publish = async { tokio::join!(publish, publish_audit) };
        // One task for all of it, so that dropping this future stops everything.
        if let Some(mut follower) = prices {
            let committed = Arc::new(Notify::new());
            let changed_users = ChangedUsers::default();
            let rules = Arc::new(config.accrual_rules());
            let handled = HandledMessages::default();
            let handler = JobEvents {
                store: store.clone(),
                book: follower.book.subscribe(),
                rules: Arc::clone(&rules),
                outbox: outbox.clone(),
                handled: handled.clone(),
                committed: Arc::clone(&committed),
                changed_users: changed_users.clone(),
                database,
            };
            let sums = SpendingPublisher {
                store: store.clone(),
                book: follower.book.subscribe(),
                bus: bus.clone(),
                changed_users,
            };
            let accruals = AccrualPublisher {
                store: store.clone(),
                book: follower.book.subscribe(),
                rules,
                outbox: outbox.clone(),
                bus: bus.clone(),
                handled,
                known: HashMap::new(),
            };
            let book = follower.book.subscribe();
            let timer = || ReloadTimer::every(config.reload_interval, shutdown.clone());
            let evaluate = async {
                let Some(mut watcher) = budgets else { return };
                let evaluator = BudgetEvaluator {
                    store: store.clone(),
                    budgets: watcher.budgets.subscribe(),
                    book: book.clone(),
                    evaluation,
                    committed: Arc::clone(&committed),
                    outbox,
                    cluster,
                    curves: CostCurves::default(),
                    daily: DailyFacts::default(),
                    pending_costs: PendingCosts::default(),
                };
                tokio::join!(
                    evaluator.run(&shutdown),
                    watcher.follow(timer(), book, &store),
                    account_tree::follow(&store, &bus, &committed, &shutdown)
                );
            };
            let consume = bus.consume_batches(
                SLURM_EVENTS,
                CostEngineService::NAME,
                config.batch_size,
                handler,
                &shutdown,
            );
            let follow = follower.follow(timer(), &store);
            let (consumed, ((), ()), (), (), (), (), ()) = tokio::join!(
                Box::pin(consume),
                Box::pin(publish),
                follow,
                Box::pin(evaluate),
                Box::pin(sums.run(&shutdown)),
                Box::pin(accruals.run(&shutdown)),
                tombstones::run(&store, &shutdown)
            );
            consumed?;
        } else {
            tracing::info!("no price book, costs not computed; set cost-engine.price_book");
            publish.await;
        }
        bus.close().await;
        Ok(())
    }
}
