//! Starts Slurm jobs and acts on jobs when events happen: each event of a rule exactly once.
//!
//! ```text
//! event ─► rules ─► guards ─► run, durable ─► event acknowledged
//!                              └─► driver: submit on hold ─► record ─► confirm ─► release
//! ```
//!
//! - [`domain`]: pure. Rules, what they do because of an event, guards, retries by cause.
//! - [`config`]: the rules of `mesh.toml`. `rules_watcher` follows changes of them. `active_rules`: those, and rules by API.
//! - `handlers`: events in, runs planned, before an event is acknowledged.
//! - `recovery`: after a loss of the database, what the audit has of it.
//! - `scheduler`: fires rules at the instants of their schedules.
//! - `driver`: drives runs with `slurm-submit`, each step stored before the next.
//! - [`adapters`]: the database.
//! - [`api`]: `/v1/triggers` and `/v1/trigger-runs`.
//!
//! Deliberately absent: how a job is submitted as its owner (`slurm-submit`), and the language of filters (`event-filter`).

mod active_rules;
pub mod adapters;
pub mod api;
pub mod config;
pub mod domain;
mod driver;
pub mod error;
mod handlers;
mod metrics;
mod recovery;
mod rules_watcher;
mod scheduler;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use mesh_bus::{Backoff, Bus};
use mesh_db::Location;
use mesh_db::damage::RecoveryMarker;
use mesh_events::catalogue::{MESH_IN, SLURM_EVENTS};
use mesh_runtime::{BoxError, Context, DatabaseStart, RunningService, Service, WatchedFiles};
use slurm_submit::Submitter;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use active_rules::ActiveRules;
use adapters::outbox::OUTBOX;
use adapters::store::Store;
use config::Config;
use config::configured_rules::ConfiguredRules;
use domain::intent::Backend;
use driver::{Driver, DueRuns};
use handlers::EventEvaluator;
use recovery::Recovery;
use rules_watcher::RulesWatcher;
use scheduler::Scheduler;

/// Interval of removing old runs.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(3_600);

/// Poll interval of audit entries: the driver adds them without a notification.
const AUDIT_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The workflow-trigger.
pub struct WorkflowTriggerService;

impl Service for WorkflowTriggerService {
    type Config = Config;
    const NAME: &'static str = "workflow-trigger";
    const DEFAULTS: &'static str = config::DEFAULTS;
    const LIVE_KEYS: &'static [&'static str] = &["rules", "sources"];
    const ABOUT: &'static str = "Starts Slurm jobs and acts on jobs when events happen.";

    fn check(context: &Context) -> Result<(), BoxError> {
        configuration(context).map(drop)
    }

    fn database_file(context: &Context) -> Result<Option<PathBuf>, BoxError> {
        let location = configuration(context)?.location;
        Ok(location.file().map(Path::to_owned))
    }

    const REMEDY: &'static str = "runs that had not ended are given up, and their rules stay paused until somebody has looked: stop the workflow-trigger (or `smesh up`), run `smesh recover workflow-trigger`, start it again";

    async fn damage(file: &Path) -> Result<Option<String>, BoxError> {
        Ok(mesh_db::damage::damage(file).await?)
    }

    async fn start(context: Context) -> Result<RunningService, BoxError> {
        let Configuration {
            config,
            location,
            rules,
            files,
        } = configuration(&context)?;
        metrics::describe();
        // Registered before the first readiness request.
        let slurm = context.health.condition("workflow-trigger.slurm");
        let store = Store::connect(&location)?;
        let is_shared = store.database.is_shared();
        let mut start = DatabaseStart::new(
            &context,
            Self::NAME,
            is_shared,
            mesh_db::Error::is_unavailable,
        );
        start.try_prepare(store.database.prepare()).await?;
        let database = start.condition.clone();
        let bus = Bus::connect(&context.mesh.nats, Self::NAME).await?;
        context.watch_nats(Self::NAME, &bus);
        let recovery = Recovery::new(location.file().map(RecoveryMarker::of), &store);
        let note = context.health.note("workflow-trigger.rules");
        let active = ActiveRules::new(&store, config.api_rules, note, rules);
        let submitter = Submitter::new(config.submitter.clone());
        let (due_runs, recorded) = (Arc::<DueRuns>::default(), Arc::new(Notify::new()));
        let router = context.audited(
            &bus,
            api::router(api::Api {
                store: store.clone(),
                bus: bus.clone(),
                rules: active.subscribe(),
                active: active.clone(),
                submitter: submitter.clone(),
                limits: config.site_limits(),
                rules_per_user: config.limits.rules_per_user,
                allowances: Arc::new(config.allowances()),
                cluster: context.mesh.cluster.as_str().into(),
                due_runs: Arc::clone(&due_runs),
                recorded: Arc::clone(&recorded),
            }),
        );
        let trigger = WorkflowTrigger {
            evaluator: EventEvaluator {
                store: store.clone(),
                rules: active.subscribe(),
                config: config.clone(),
                cluster: context.mesh.cluster.as_str().into(),
                due_runs: Arc::clone(&due_runs),
                recorded: Arc::clone(&recorded),
                database: database.clone(),
                recovery: recovery.clone(),
            },
            recovery,
            scheduler: Scheduler {
                store: store.clone(),
                rules: active.subscribe(),
                limits: config.site_limits(),
                cluster: context.mesh.cluster.as_str().into(),
                due_runs: Arc::clone(&due_runs),
                recorded: Arc::clone(&recorded),
                database: database.clone(),
            },
            driver: Driver {
                store: store.clone(),
                submitter,
                bus: bus.clone(),
                config,
                started_at: Utc::now(),
                rules: active.subscribe(),
                due_runs,
                database,
                slurm,
            },
            watcher: RulesWatcher {
                context: context.clone(),
                files,
                active: active.clone(),
            },
            active,
            bus,
            recorded,
            shutdown: context.shutdown,
        };
        Ok(RunningService {
            router,
            run: Box::pin(async move {
                let ended = Box::pin(trigger.run(start)).await;
                // In every case: an unclosed file leaves its log unmerged.
                store.database.close().await;
                ended
            }),
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

/// The section, and what it names.
struct Configuration {
    config: Config,
    location: Location,
    rules: ConfiguredRules,
    /// The files that the rules are read from.
    files: WatchedFiles,
}

fn configuration(context: &Context) -> Result<Configuration, BoxError> {
    let config: Config = context.section(WorkflowTriggerService::NAME)?;
    let mut faults = config.faults();
    let mut files = context.watched_config();
    files.add_folder(context.relative(&config.scripts), |_| true);
    let rules = config.rules(&context.mesh.cluster, |path| context.relative(path));
    let rules = rules.unwrap_or_else(|problems| {
        faults.extend(problems);
        ConfiguredRules::default()
    });
    match config
        .db
        .location(WorkflowTriggerService::NAME, &context.mesh.data_dir)
    {
        Ok(location) if faults.is_empty() => Ok(Configuration {
            config,
            location,
            rules,
            files,
        }),
        Ok(_) => Err(context.faults(&faults).into()),
        Err(fault) => {
            faults.push(fault);
            Err(context.faults(&faults).into())
        }
    }
}

struct WorkflowTrigger {
    evaluator: EventEvaluator,
    recovery: Recovery,
    scheduler: Scheduler,
    driver: Driver,
    watcher: RulesWatcher,
    active: ActiveRules,
    bus: Bus,
    recorded: Arc<Notify>,
    shutdown: CancellationToken,
}

impl WorkflowTrigger {
    async fn run(self, mut start: DatabaseStart<mesh_db::Error>) -> Result<(), BoxError> {
        let Self {
            evaluator,
            recovery,
            scheduler,
            driver,
            watcher,
            active,
            bus,
            recorded,
            shutdown,
        } = self;
        let store = driver.store.clone();
        let prepared = start.finish(|| store.database.prepare(), &shutdown);
        if !prepared.await? {
            return Ok(());
        }
        store.clear_claims().await?;
        driver.database.ok();
        // Nothing was asked yet.
        driver.slurm.ok();
        // Before an event is read: it fires those rules, too.
        active.load(&shutdown).await;
        if let Err(mesh_bus::Error::Cancelled) = bus.ready(&shutdown).await {
            return Ok(());
        }
        // Before anything is planned or sent to Slurm.
        Box::pin(recovery.restore(&store, &bus, &shutdown)).await?;
        if shutdown.is_cancelled() {
            return Ok(());
        }
        let batch_size = driver.config.batch_size;
        let consume = bus.consume_batches(
            SLURM_EVENTS,
            WorkflowTriggerService::NAME,
            batch_size,
            evaluator.clone(),
            &shutdown,
        );
        let consume_incoming = bus.consume_batches(
            MESH_IN,
            WorkflowTriggerService::NAME,
            batch_size,
            evaluator,
            &shutdown,
        );
        // One task for all of it, so that dropping this future stops everything.
        let (consumed, incoming, (), (), (), (), (), (), (), (), (), ()) = tokio::join!(
            Box::pin(consume),
            Box::pin(consume_incoming),
            Box::pin(scheduler.run(&shutdown)),
            Box::pin(driver.run(Backend::Slurm, &shutdown)),
            Box::pin(driver.run(Backend::Bus, &shutdown)),
            driver.follow_approvers(&shutdown),
            driver.cancel_copies(&shutdown),
            OUTBOX.run(
                &store.database,
                &bus,
                (&*recorded, AUDIT_POLL_INTERVAL),
                &shutdown
            ),
            watcher.run(),
            active.follow(&shutdown),
            expire(&store, driver.config.retention, &shutdown),
            recovery.end(&bus, &shutdown),
        );
        consumed.and(incoming)?;
        bus.close().await;
        Ok(())
    }
}

/// Removes old runs until shutdown.
async fn expire(store: &Store, retention: Duration, shutdown: &CancellationToken) {
    let mut interval = Backoff::fixed(EXPIRY_INTERVAL);
    loop {
        if let Err(error) = store.expire(Utc::now() - retention).await {
            let error = mesh_runtime::error_chain(&error);
            tracing::warn!(error, "old runs not removed");
        }
        if !interval.wait(shutdown).await {
            return;
        }
    }
}

/// True if `smesh up` runs the workflow-trigger: it has rules, or there may be some by API.
///
/// # Errors
/// If the section is invalid.
pub fn is_enabled(context: &Context) -> Result<bool, BoxError> {
    Ok(configuration(context)?.config.may_have_rules())
}
