//! The services of the mesh, in one table. The configuration, `smesh up`, backups, `smesh recover` and the man pages read it, so a new
//! service is one entry here.

mod restore;

use std::path::{Path, PathBuf};

use cost_engine::CostEngineService;
use exporter::ExporterService;
use futures_util::future::{BoxFuture, FutureExt as _};
use ingest::IngestService;
use ledger::LedgerService;
use mesh_runtime::{BoxError, Context, RunningService, Service, ServiceSection};
use node_watcher::NodeWatcherService;
use pending_explainer::PendingExplainerService;
use webhook_dispatcher::WebhookDispatcherService;
use workflow_trigger::WorkflowTriggerService;

/// Every service. Backups have the databases in this order.
pub static SERVICES: [ServiceEntry; 8] = [
    ServiceEntry::of::<IngestService>(),
    ServiceEntry::of::<NodeWatcherService>(),
    ServiceEntry::of::<LedgerService>().with_database(DatabaseEntry {
        is_backed_up: true,
        recovery: None,
    }),
    ServiceEntry::of::<CostEngineService>().with_database(DatabaseEntry {
        is_backed_up: true,
        recovery: Some(Recovery {
            prepare_file: |path| cost_engine::prepare_file(path).boxed(),
            replaces_lost_file: true,
            restore: |context, path| restore::costs(context, path).boxed(),
        }),
    }),
    ServiceEntry::of::<WebhookDispatcherService>().with_database(DatabaseEntry {
        is_backed_up: true,
        recovery: Some(Recovery {
            prepare_file: |path| webhook_dispatcher::prepare_file(path).boxed(),
            replaces_lost_file: false,
            restore: |context, _| restore::deliveries(context).boxed(),
        }),
    }),
    ServiceEntry::of::<PendingExplainerService>(),
    ServiceEntry::of::<ExporterService>()
        .enabled_if(exporter::is_enabled)
        .with_database(DatabaseEntry {
            is_backed_up: false,
            recovery: Some(Recovery {
                prepare_file: |path| exporter::prepare_file(path).boxed(),
                replaces_lost_file: true,
                restore: |_, _| restored_at_next_start("the next start counts all events on the bus (14 days); Prometheus takes that for a restart"),
            }),
        }),
    ServiceEntry::of::<WorkflowTriggerService>()
        .enabled_if(workflow_trigger::is_enabled)
        .with_database(DatabaseEntry {
            is_backed_up: false,
            recovery: Some(Recovery {
                prepare_file: |path| workflow_trigger::prepare_file(path).boxed(),
                replaces_lost_file: true,
                restore: |_, _| restored_at_next_start("the next start reads from the audit what the rules have done, and fires none of it again; runs that had not ended are given up, and their rules are paused until you resume them (`smesh triggers list`); schedules begin from then"),
            }),
        }),
];

/// A service with what the commands need of it. The functions are those of [`Service`].
pub struct ServiceEntry {
    /// Name and configuration.
    pub section: ServiceSection,
    /// Command line of the service as a process of its own.
    pub command: fn() -> clap::Command,
    /// True if `smesh up` runs it.
    pub is_enabled: fn(&Context) -> Result<bool, BoxError>,
    /// Checks all of the configuration, as `--check-config` does.
    pub check_config: fn(&Context) -> Result<(), BoxError>,
    /// Checks only the service's configuration.
    pub check: fn(&Context) -> Result<(), BoxError>,
    /// Path of its SQLite file, if it has one.
    pub database_file: fn(&Context) -> Result<Option<PathBuf>, BoxError>,
    /// How to repair that file.
    pub remedy: &'static str,
    /// Starts the service.
    pub start: for<'a> fn(&'a Context) -> BoxFuture<'a, Result<RunningService, BoxError>>,
    /// Its database. `None` if its state is in NATS.
    pub database: Option<DatabaseEntry>,
}

/// The database of a service.
pub struct DatabaseEntry {
    /// True if backups copy it. The others are filled again from the bus.
    pub is_backed_up: bool,
    /// How a damaged file is recovered. `None` if recovered rows would prove nothing.
    pub recovery: Option<Recovery>,
}

/// Steps of `smesh recover` for one service.
pub struct Recovery {
    /// Writes an empty file with the service's tables.
    pub prepare_file: fn(PathBuf) -> BoxFuture<'static, Result<(), BoxError>>,
    /// True if a new file replaces one that does not exist: what it had is in the ledger, in the audit or on the bus.
    pub replaces_lost_file: bool,
    /// Restores what the file does not have, and says in a sentence what that was.
    pub restore: for<'a> fn(&'a Context, &'a Path) -> BoxFuture<'a, Result<String, BoxError>>,
}

impl ServiceEntry {
    const fn of<S: Service>() -> Self {
        Self {
            section: ServiceSection::of::<S>(),
            command: mesh_runtime::command::<S>,
            is_enabled: |_| Ok(true),
            check_config: mesh_runtime::check_config::<S>,
            check: S::check,
            database_file: S::database_file,
            remedy: S::REMEDY,
            start: |context| Box::pin(mesh_runtime::start_service::<S>(context)),
            database: None,
        }
    }

    const fn enabled_if(self, is_enabled: fn(&Context) -> Result<bool, BoxError>) -> Self {
        Self { is_enabled, ..self }
    }

    const fn with_database(self, database: DatabaseEntry) -> Self {
        Self {
            database: Some(database),
            ..self
        }
    }

    /// Name of the service.
    pub const fn name(&self) -> &'static str {
        self.section.name
    }
}

/// Sections of every service.
pub fn sections() -> Vec<ServiceSection> {
    SERVICES.iter().map(|service| service.section).collect()
}

/// The service of this name.
pub fn find(name: &str) -> Option<&'static ServiceEntry> {
    SERVICES.iter().find(|service| service.name() == name)
}

fn restored_at_next_start(sentence: &str) -> BoxFuture<'_, Result<String, BoxError>> {
    std::future::ready(Ok(sentence.to_owned())).boxed()
}

#[cfg(test)]
mod tests {
    use mesh_events::catalogue::ROLES;

    use super::*;

    #[test]
    fn every_service_has_a_nats_user_and_every_other_user_is_known() {
        let named = |role: &&str| find(role).is_none();
        let others: Vec<&&str> = ROLES.iter().filter(|role| named(role)).collect();
        assert_eq!(others, [&"admin", &"hook", &"reader"]);
        assert_eq!(ROLES.len(), SERVICES.len() + others.len());
    }

    #[test]
    fn only_a_service_with_a_database_says_how_to_repair_its_file() {
        for service in &SERVICES {
            let has_remedy = !service.remedy.is_empty();
            assert_eq!(service.database.is_some(), has_remedy, "{}", service.name());
        }
    }
}
