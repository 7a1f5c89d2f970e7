//! Delivers events to webhooks: signed CloudEvents for pipelines, readable messages for chats.
//!
//! - [`domain`]: filters, retries, chat messages, forbidden addresses. Pure.
//! - [`config`]: the section of `mesh.toml` and its checked endpoints.
//! - [`handlers`]: per message: decide, send, store.
//! - [`lane`]: one endpoint at work, with its limits and retries.
//! - [`announce`]: outcomes become audit entries and dead letters.
//! - [`adapters`]: the HTTP client and the SQLite file.
//! - [`api`]: the REST routes under `/v1/webhooks`.
//!
//! Every endpoint has its own durable consumer and its own limits, so one that fails, hangs or floods only hurts itself. An event is
//! acknowledged when its outcome, or the fact that it waits, is on disk; a crash may repeat attempts that were under way, with the same
//! `webhook-id`.
//!
//! Deliberately absent for now: endpoints by API, disabling of endpoints, other chats, redelivery, several replicas.

pub mod adapters;
pub mod announce;
pub mod api;
pub mod config;
pub mod costs;
pub mod domain;
pub mod error;
pub mod handlers;
pub mod lane;
pub mod metrics;
pub mod post;
pub mod signature;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::{TimeDelta, Utc};
use mesh_bus::{Bus, EndpointConsumer};
use mesh_events::catalogue::SLURM_EVENTS;
use mesh_runtime::{BoxError, Condition, Context, Service, Started};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use config::{Config, DEFAULTS, Endpoint};
pub use error::Error;

use adapters::http::Http;
use adapters::store::Store;
use api::Api;
use domain::names;
use handlers::Intake;
use lane::{Lane, Shared};

/// Between tries of what NATS refused.
const RETRY: Duration = Duration::from_secs(1);

/// The service, as `mesh-runtime` runs it.
pub struct WebhookDispatcherService;

impl Service for WebhookDispatcherService {
    const NAME: &'static str = "webhook-dispatcher";
    const DEFAULTS: &'static str = DEFAULTS;
    const ABOUT: &'static str = "Delivers events to webhooks, signed, filtered and retried.";

    fn check(context: &Context) -> Result<(), BoxError> {
        configuration(context).map(drop)
    }

    async fn start(context: Context) -> Result<Started, BoxError> {
        let (config, endpoints) = configuration(&context)?;
        metrics::describe();
        let http = Http::new(&endpoints)?;
        let store = Store::open(&context.mesh.data_dir.join("webhook-dispatcher.db")).await?;
        let bus = Bus::connect(&context.mesh.nats, Self::NAME).await?;
        let shared = Arc::new(Shared {
            bus,
            store,
            http,
            cluster: context.mesh.cluster.clone(),
            cost_wait: config.cost_wait,
            outcomes: Notify::new(),
        });
        let lanes: Vec<_> = endpoints
            .into_iter()
            .map(|endpoint| Arc::new(Lane::new(Arc::clone(&shared), endpoint)))
            .collect();
        let router = api::router(Api {
            lanes: lanes.clone(),
            config_file: context.config_file(),
        });
        Ok(Started {
            router: context.audited(&shared.bus, router),
            run: Box::pin(run(context, shared, lanes, config.remember)),
        })
    }
}

/// The section, and its endpoints with their secrets read.
fn configuration(context: &Context) -> Result<(Config, Vec<Endpoint>), BoxError> {
    let config: Config = context.section(WebhookDispatcherService::NAME)?;
    let endpoints = config
        .validate(|path| std::fs::read_to_string(context.relative(path)))
        .map_err(|faults| {
            context.faults(&faults.iter().map(ToString::to_string).collect::<Vec<_>>())
        })?;
    Ok((config, endpoints))
}

/// Delivers until told to stop, then finishes what is under way.
async fn run(
    context: Context,
    shared: Arc<Shared>,
    lanes: Vec<Arc<Lane>>,
    remember: Duration,
) -> Result<(), BoxError> {
    let shutdown = context.shutdown.clone();
    context.watch_nats(WebhookDispatcherService::NAME, &shared.bus);
    // Outlives the others: their last outcomes are announced too.
    let finished = CancellationToken::new();
    let announcer = tokio::spawn(announce::run(Arc::clone(&shared), finished.clone()));
    let mut tasks = JoinSet::new();
    for lane in &lanes {
        tasks.spawn(Arc::clone(lane).retry(shutdown.clone()));
    }
    let database = context.health.condition("webhook-dispatcher.database");
    tasks.spawn(watch_database(
        Arc::clone(&shared),
        lanes.clone(),
        database,
        shutdown.clone(),
    ));
    let configured = lanes
        .iter()
        .map(|lane| lane.endpoint.name.clone())
        .collect();
    tasks.spawn(take_in(shared.bus.clone(), lanes, shutdown.clone()));
    tasks.spawn(forget(Arc::clone(&shared), configured, remember, shutdown));
    while let Some(ended) = tasks.join_next().await {
        ended?;
    }
    finished.cancel();
    announcer.await?;
    shared.store.close().await;
    shared.bus.close().await;
    Ok(())
}

/// Consumes for every endpoint once NATS is there.
async fn take_in(bus: Bus, lanes: Vec<Arc<Lane>>, shutdown: CancellationToken) {
    if bus.ready(&shutdown).await.is_err() {
        // Told to stop before NATS came.
        return;
    }
    let wanted = lanes
        .iter()
        .map(|lane| names::consumer(&lane.endpoint.name))
        .collect();
    let mut tasks = JoinSet::new();
    tasks.spawn(remove_old(bus, wanted, shutdown.clone()));
    for lane in lanes {
        tasks.spawn(consume(lane, shutdown.clone()));
    }
    tasks.join_all().await;
}

/// Makes the endpoint's consumer, and consumes.
async fn consume(lane: Arc<Lane>, shutdown: CancellationToken) {
    let (bus, endpoint) = (&lane.shared.bus, &lane.endpoint);
    let consumer = consumer(&lane);
    while let Err(error) = bus.endpoint_consumer(&consumer).await {
        tracing::warn!(
            error = mesh_runtime::chain(&error),
            endpoint = endpoint.name,
            "declare consumer, trying again"
        );
        if !pause(RETRY, &shutdown).await {
            return;
        }
    }
    let intake = Intake(Arc::clone(&lane));
    if let Err(error) = bus
        .consume(
            SLURM_EVENTS,
            &consumer.name,
            endpoint.concurrency,
            intake,
            &shutdown,
        )
        .await
    {
        tracing::error!(
            error = mesh_runtime::chain(&error),
            endpoint = endpoint.name,
            "consume"
        );
    }
}

fn consumer(lane: &Lane) -> EndpointConsumer {
    let endpoint = &lane.endpoint;
    EndpointConsumer {
        name: names::consumer(&endpoint.name),
        description: format!("webhook {}", endpoint.name),
        filters: endpoint.filter.subjects(&lane.companions),
        // As many again as are handled wait at hand, so that the next is there when one is done.
        max_ack_pending: i64::try_from(2 * endpoint.concurrency).unwrap_or(i64::MAX),
        // A message may wait for the requests before it, then for its own.
        ack_wait: (endpoint.timeout * 3).max(Duration::from_secs(30)),
    }
}

/// Deletes the consumers of endpoints that are in the configuration no more.
async fn remove_old(bus: Bus, wanted: BTreeSet<String>, shutdown: CancellationToken) {
    while let Err(error) = try_remove_old(&bus, &wanted).await {
        tracing::warn!(
            error = mesh_runtime::chain(&error),
            "delete consumers of removed webhooks, trying again"
        );
        if !pause(RETRY, &shutdown).await {
            return;
        }
    }
}

async fn try_remove_old(bus: &Bus, wanted: &BTreeSet<String>) -> Result<(), mesh_bus::Error> {
    for name in bus.endpoint_consumers().await? {
        if !wanted.contains(&name) {
            bus.delete_endpoint_consumer(&name).await?;
            tracing::info!(consumer = name, "deleted the consumer of a removed webhook");
        }
    }
    Ok(())
}

/// Says whether the database writes, and lets everybody go on once it does again.
async fn watch_database(
    shared: Arc<Shared>,
    lanes: Vec<Arc<Lane>>,
    condition: Condition,
    shutdown: CancellationToken,
) {
    let mut trouble = shared.store.trouble();
    loop {
        let reason = trouble.borrow_and_update().clone();
        match reason {
            None => {
                condition.ok();
                lanes.iter().for_each(|lane| lane.wake());
                shared.outcomes.notify_one();
            }
            Some(reason) => {
                condition.fail(format!("nothing is sent while it does not write: {reason}"))
            }
        }
        tokio::select! {
            changed = trouble.changed() => if changed.is_err() { return },
            () = shutdown.cancelled() => return,
        }
    }
}

/// Ends what waits for removed endpoints and forgets old outcomes, now and every hour.
async fn forget(
    shared: Arc<Shared>,
    configured: BTreeSet<String>,
    remember: Duration,
    shutdown: CancellationToken,
) {
    loop {
        let now = Utc::now();
        let before = now - TimeDelta::from_std(remember).unwrap_or(TimeDelta::days(14));
        let forgotten = shared.store.forget(configured.clone(), before, now).await;
        shared.outcomes.notify_one();
        match forgotten {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "forgot old deliveries"),
            Err(error) => {
                tracing::warn!(error = mesh_runtime::chain(&error), "forget old deliveries")
            }
        }
        if !pause(Duration::from_secs(60 * 60), &shutdown).await {
            return;
        }
    }
}

/// Waits; false when told to stop.
async fn pause(time: Duration, shutdown: &CancellationToken) -> bool {
    tokio::select! {
        () = shutdown.cancelled() => false,
        () = tokio::time::sleep(time) => true,
    }
}
