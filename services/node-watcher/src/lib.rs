//! Publishes `node.*` events, with cause and actor, from Slurm's node records.
//!
//! - [`domain`]: pure. [`domain::diff`] compares a node with its known state, [`domain::absence`] a complete answer.
//! - [`watch`]: the loop: poll Slurm, compare, write, publish. [`doorbells`]: requests for an immediate poll.
//! - [`downtimes`]: what was down between two polls or while nobody polled, from accounting.
//! - [`noticed_jobs`]: the jobs on a node that its provider will reclaim.
//! - [`node_list`]: the list of nodes of a poll, for metrics.
//! - [`adapters`]: state in the key-value bucket, fenced by its revision, with an outbox.
//!
//! slurmctld does not report times for these facts, so they are *sampled*: published once, with an id that counts per node. A change that
//! is reverted between two polls is not seen, unless accounting has it.
//! Deliberately absent: jobs, but for their keys in the events of such nodes, and `capture.source_down`, which ingest publishes.

pub mod adapters;
pub mod config;
pub mod domain;
pub mod doorbells;
pub mod downtimes;
pub mod error;
pub mod metrics;
pub mod node_list;
pub mod noticed_jobs;
pub mod watch;

use axum::Router;
use futures_util::future::BoxFuture;
use mesh_bus::Bus;
use mesh_runtime::{BoxError, Context, RenamedKeys, RunningService, Service};
use slurm_client::Slurm;

use config::Config;
use error::Error;
use watch::Watcher;

/// Counters in the values of the bucket `mesh_nodes`: of events, whose ids must not be used again.
pub const COUNTERS: &[&str] = &["nodes.*.n", "drifts.count", "seq_from"];

/// The node watcher.
pub struct NodeWatcherService;

impl Service for NodeWatcherService {
    type Config = Config;
    const NAME: &'static str = "node-watcher";
    const DEFAULTS: &'static str = config::DEFAULTS;
    const RENAMED_KEYS: RenamedKeys = config::RENAMED_KEYS;
    const ABOUT: &'static str = "Polls Slurm's nodes and publishes node.* events.";

    fn check(context: &Context) -> Result<(), BoxError> {
        context.section::<slurm_client::Config>("slurm")?;
        configuration(context).map(drop)
    }

    async fn start(context: Context) -> Result<RunningService, BoxError> {
        let config = configuration(&context)?;
        let slurm: slurm_client::Config = context.section("slurm")?;
        metrics::describe();
        let bus = Bus::connect(&context.mesh.nats, Self::NAME).await?;
        context.watch_nats(Self::NAME, &bus);
        let watcher = Watcher {
            bus,
            slurm: Slurm::new(slurm),
            cluster: context.mesh.cluster.clone(),
            config,
            state_health: context.health.condition("node-watcher.state"),
            slurm_health: context.health.condition("node-watcher.slurm"),
        };
        Ok(RunningService {
            router: Router::new(),
            run: Box::pin(run(context, watcher)),
        })
    }
}

async fn run(context: Context, watcher: Watcher) -> Result<(), BoxError> {
    if watcher.bus.ready(&context.shutdown).await.is_ok() {
        let standby = || {
            watcher.state_health.ok();
            watcher.slurm_health.ok();
        };
        let term = |stop| -> BoxFuture<'static, Result<(), Error>> {
            Box::pin(watcher.clone().term(stop))
        };
        context.lead(&watcher.bus, standby, term).await?;
    }
    watcher.bus.close().await;
    Ok(())
}

fn configuration(context: &Context) -> Result<Config, BoxError> {
    let config: Config = context.section(NodeWatcherService::NAME)?;
    let faults = config.validate();
    if faults.is_empty() {
        Ok(config)
    } else {
        Err(context.faults(&faults).into())
    }
}
