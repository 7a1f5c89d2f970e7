//! `smesh recover`: sets a service's damaged file aside and copies its readable content into a new one.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use chrono::Utc;
use mesh_db::damage::{self, Recovered};
use mesh_runtime::{Context, Service};

use super::data_dir::DataDir;
use crate::error::Error;

const COST_ENGINE: &str = cost_engine::CostEngineService::NAME;

/// Recovers the file of a service while no process uses the data directory.
///
/// # Errors
/// If `smesh up` or the service runs, the service has no recoverable file, or files cannot be written.
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
        return Err(Error::Failed(format!("{service} has no SQLite file")));
    };
    let _only = DataDir::prepare(&context.mesh.data_dir)?;
    ensure_stopped(context, service)?;
    let suffix = format!("damaged-{}", Utc::now().format("%Y%m%dT%H%M%SZ"));
    let recovered = match service {
        COST_ENGINE => damage::recover(&path, &suffix, cost_engine::prepare_file).await,
        _ => damage::recover(&path, &suffix, webhook_dispatcher::prepare_file).await,
    };
    let recovered = recovered.map_err(|error| Error::Failed(mesh_runtime::error_chain(&error)))?;
    if service == COST_ENGINE {
        let noted = cost_engine::recompute(&path);
        noted.map_err(|source| Error::io("write beside", &path, source))?;
    }
    Ok((path, recovered))
}

/// Checks that a service does not run as its own process.
///
/// # Errors
/// If it does.
pub fn ensure_stopped(context: &Context, service: &str) -> Result<(), Error> {
    // The service may run as its own process.
    let own = context.mesh.data_dir.join(format!("{service}.sock"));
    for socket in [&context.mesh.api.socket, &own] {
        if UnixStream::connect(socket).is_ok() {
            return Err(Error::Failed(format!(
                "a process serves {}: stop {service} first",
                socket.display()
            )));
        }
    }
    Ok(())
}

/// Checks that the file of a service can be recovered.
///
/// # Errors
/// If it cannot. The text says what to do instead.
pub fn is_recoverable(service: &str) -> Result<(), Error> {
    match service {
        COST_ENGINE | webhook_dispatcher::WebhookDispatcherService::NAME => Ok(()),
        ledger::LedgerService::NAME => Err(Error::Failed(format!(
            "recovered rows of a ledger prove nothing; {}",
            <ledger::LedgerService as Service>::REMEDY
        ))),
        _ => Err(Error::Failed(format!(
            "{service} has no database file: its state is in NATS, and is restored automatically"
        ))),
    }
}
