//! `smesh recover`: sets a service's damaged file aside, copies its readable content into a new one, and
//! restores what the ledger and the bus have of the rest.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use chrono::Utc;
use cost_engine::restore::RestoredRows;
use ledger::recorded::RecordedEvents;
use mesh_db::damage::{self, Recovered};
use mesh_runtime::{BoxError, Context, Service};

use super::data_dir::DataDir;
use crate::error::Error;

const COST_ENGINE: &str = cost_engine::CostEngineService::NAME;
const EXPORTER: &str = exporter::ExporterService::NAME;
const WORKFLOW_TRIGGER: &str = workflow_trigger::WorkflowTriggerService::NAME;

/// A recovered file.
pub struct RecoveredFile {
    /// Path of the file.
    pub path: PathBuf,
    /// What its readable part had.
    pub recovered: Recovered,
    /// What was restored besides, in a sentence.
    pub restored: String,
}

/// Recovers the file of a service while no process uses the data directory.
///
/// # Errors
/// If `smesh up` or the service runs, the service has no recoverable file, or files cannot be written.
pub async fn file(context: &Context, service: &str) -> Result<RecoveredFile, Error> {
    let file = match service {
        COST_ENGINE => cost_engine::CostEngineService::database_file(context),
        EXPORTER => exporter::ExporterService::database_file(context),
        WORKFLOW_TRIGGER => workflow_trigger::WorkflowTriggerService::database_file(context),
        _ => webhook_dispatcher::WebhookDispatcherService::database_file(context),
    };
    let file = file.map_err(|source| Error::Service {
        service: "configuration",
        source,
    })?;
    // What these published is in the ledger, in the audit or on the bus, so a lost file is replaced.
    let is_replaced = matches!(service, COST_ENGINE | WORKFLOW_TRIGGER | EXPORTER);
    let is_restorable = |path: &PathBuf| path.exists() || is_replaced;
    let Some(path) = file.filter(is_restorable) else {
        return Err(Error::Failed(format!("{service} has no SQLite file")));
    };
    let _only = DataDir::prepare(&context.mesh.data_dir)?;
    ensure_stopped(context, service)?;
    let suffix = format!("damaged-{}", Utc::now().format("%Y%m%dT%H%M%SZ"));
    let recovered = match service {
        COST_ENGINE => damage::recover(&path, &suffix, cost_engine::prepare_file).await,
        EXPORTER => damage::recover(&path, &suffix, exporter::prepare_file).await,
        WORKFLOW_TRIGGER => damage::recover(&path, &suffix, workflow_trigger::prepare_file).await,
        _ => damage::recover(&path, &suffix, webhook_dispatcher::prepare_file).await,
    };
    let recovered = recovered.map_err(|error| failed(error.into()))?;
    let restored = match service {
        COST_ENGINE => restore_costs(context, &path).await?,
        EXPORTER => "the next start counts all events on the bus (14 days); Prometheus takes that for a restart".into(),
        WORKFLOW_TRIGGER => "the next start reads from the audit what the rules have done, and fires none of it again; runs that had not ended are given up, and their rules are paused until you resume them (`smesh triggers list`); schedules begin from then".into(),
        _ => {
            let prepared = webhook_dispatcher::restore(context).await;
            prepared.map_err(failed)?;
            "the next start reads from the bus what was delivered, and sends the rest; what was delivered just before the stop may be sent again, with the same webhook-id"
                .into()
        }
    };
    Ok(RecoveredFile {
        path,
        recovered,
        restored,
    })
}

/// Restores costs from the ledger. The next start computes those that are only on the bus.
async fn restore_costs(context: &Context, path: &Path) -> Result<String, Error> {
    let found = ledger_costs(context, path).await;
    if !matches!(found, Ok(Some((_, 0)))) {
        let marked = cost_engine::mark_periods_incomplete(path.to_owned()).await;
        marked.map_err(failed)?;
    }
    let restored = match found {
        Ok(Some((restored, missing))) => {
            let missing = match missing {
                0 => String::new(),
                missing => format!("; {missing} of its entries were erased, or their archive is not here: later reports do not correct the closed periods"),
            };
            let periods = match restored.lost_periods {
                0 => String::new(),
                lost => format!("; {lost} closed periods are lost, the ledger has only the SHA-256 of their reports"),
            };
            format!(
                "{} cost events, {} budgets of the API and {} closed periods were restored from the ledger{periods}{missing}",
                restored.costs, restored.budgets, restored.periods
            )
        }
        Ok(None) => "there is no ledger here, so costs of jobs before the events on the bus (14 days), budgets of the API and closed periods are lost".into(),
        Err(error) => format!(
            "the ledger is not readable, so costs of jobs before the events on the bus (14 days), budgets of the API and closed periods are lost: {}",
            mesh_runtime::error_chain(&*error)
        ),
    };
    Ok(restored)
}

/// What was restored, and the number of ledger entries that are gone. `None` without a ledger on this host.
async fn ledger_costs(
    context: &Context,
    path: &Path,
) -> Result<Option<(RestoredRows, u64)>, BoxError> {
    let Some(mut recorded) = RecordedEvents::open(context, cost_engine::restore::TYPES).await?
    else {
        return Ok(None);
    };
    let mut restore = cost_engine::restore(context, path.to_owned()).await?;
    loop {
        let page = recorded.next().await?;
        if page.is_empty() {
            break;
        }
        restore.add(&page.events).await?;
        restore.add_audit(&page.audit);
    }
    let restored = restore.finish().await?;
    Ok(Some((restored, recorded.missing)))
}

fn failed(error: BoxError) -> Error {
    Error::Failed(mesh_runtime::error_chain(&*error))
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
        COST_ENGINE
        | EXPORTER
        | WORKFLOW_TRIGGER
        | webhook_dispatcher::WebhookDispatcherService::NAME => Ok(()),
        ledger::LedgerService::NAME => Err(Error::Failed(format!(
            "recovered rows of a ledger prove nothing; {}",
            <ledger::LedgerService as Service>::REMEDY
        ))),
        _ => Err(Error::Failed(format!(
            "{service} has no database file: its state is in NATS, and is restored automatically"
        ))),
    }
}
