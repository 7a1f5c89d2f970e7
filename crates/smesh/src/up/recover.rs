//! `smesh recover`: a service's damaged file is set aside, and what can be read of it goes on in a new one.

use std::fs;
use std::path::{Path, PathBuf};

use chrono::Utc;
use mesh_bus::Bus;
use mesh_db::damage::{self, Recovered};
use mesh_events::catalogue::SLURM_EVENTS;
use mesh_runtime::{Context, Service};

use super::data_dir::DataDir;
use super::databases;
use super::nats_child::NatsChild;
use crate::error::Error;

const COST_ENGINE: &str = cost_engine::CostEngineService::NAME;

/// Recovers the file of a service while nothing runs on the data directory.
///
/// # Errors
/// If `smesh up` runs, the service has no file that can be recovered, or files cannot be written.
pub async fn file(context: &Context, service: &str) -> Result<(PathBuf, Recovered), Error> {
    let file = match service {
        COST_ENGINE => cost_engine::CostEngineService::database_file(context),
        _ => webhook_dispatcher::WebhookDispatcherService::database_file(context),
    };
    let file = file.map_err(|source| Error::Service {
        service: "configuration",
        source,
    })?;
    let Some(path) = file.filter(|path| path.exists()) else {
        return Err(Error::Failed(format!(
            "{service} has no file of SQLite here"
        )));
    };
    let _only = DataDir::prepare(&context.mesh.data_dir)?;
    let suffix = format!("damaged-{}", Utc::now().format("%Y%m%dT%H%M%SZ"));
    let recovered = match service {
        COST_ENGINE => damage::recover(&path, &suffix, cost_engine::prepare_file).await,
        _ => damage::recover(&path, &suffix, webhook_dispatcher::prepare_file).await,
    };
    let recovered = recovered.map_err(|error| Error::Failed(mesh_runtime::chain(&error)))?;
    if service == COST_ENGINE {
        let marker = marker(&path);
        fs::write(&marker, "").map_err(|source| Error::io("write", &marker, source))?;
    }
    Ok((path, recovered))
}

/// Lets the cost-engine read everything that the bus has once more, after its file was recovered.
///
/// # Errors
/// If NATS refuses.
pub async fn compute_again(context: &Context, child: Option<&NatsChild>) -> Result<(), Error> {
    // What is wrong with the configuration is said by the service.
    let file = cost_engine::CostEngineService::database_file(context);
    let Some(marker) = file.ok().flatten().map(|file| marker(&file)) else {
        return Ok(());
    };
    if !marker.exists() {
        return Ok(());
    }
    let config = match child {
        Some(child) => child.config(COST_ENGINE)?,
        None => context.mesh.nats.clone(),
    };
    let bus = Bus::connect(&config, COST_ENGINE).await?;
    bus.ready(&context.shutdown).await?;
    bus.consume_again(SLURM_EVENTS, COST_ENGINE).await?;
    bus.close().await;
    tracing::info!("costs are computed again from everything that the bus has");
    fs::remove_file(&marker).map_err(|source| Error::io("remove", &marker, source))
}

fn marker(file: &Path) -> PathBuf {
    PathBuf::from(format!("{}.compute-again", file.display()))
}

/// The services whose files can be recovered, and what to do about another one.
///
/// # Errors
/// What to do instead.
pub fn is_recoverable(service: &str) -> Result<(), Error> {
    match service {
        COST_ENGINE | webhook_dispatcher::WebhookDispatcherService::NAME => Ok(()),
        ledger::LedgerService::NAME => Err(Error::Failed(format!(
            "rows of a ledger that are put together anew prove nothing; {}",
            databases::remedy(service)
        ))),
        _ => Err(Error::Failed(format!(
            "{service} keeps nothing in a file: its state is in NATS, and is written again by itself"
        ))),
    }
}
