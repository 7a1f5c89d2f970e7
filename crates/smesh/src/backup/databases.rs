//! Databases and keys of the services.

use std::path::PathBuf;

use ledger::adapters::KeyFile;
use mesh_db::Location;
use mesh_runtime::{Context, Service};
use serde::Deserialize;

use crate::error::Error;
use crate::services::{SERVICES, ServiceEntry};

/// The database of a service.
pub struct Database {
    /// The service.
    pub service: &'static str,
    /// URL in the configuration, with its password.
    pub url: String,
    /// The same, parsed.
    pub location: Location,
}

#[derive(Deserialize)]
struct Section {
    db: Db,
}

#[derive(Deserialize)]
struct Db {
    url: String,
}

/// The databases that backups copy, as configured.
///
/// # Errors
/// If the configuration is invalid.
pub fn configured(context: &Context) -> Result<Vec<Database>, Error> {
    let is_backed_up = |service: &&ServiceEntry| {
        let database = service.database.as_ref();
        database.is_some_and(|database| database.is_backed_up)
    };
    SERVICES
        .iter()
        .filter(is_backed_up)
        .map(|service| {
            let service = service.name();
            let mut url = context.section::<Section>(service)?.db.url;
            if url.is_empty() {
                url = format!("sqlite:{service}.db");
            }
            let location = Location::parse(&url, &context.mesh.data_dir)
                .map_err(|fault| Error::Failed(format!("{service}.db.url: {fault}")))?;
            Ok(Database {
                service,
                url,
                location,
            })
        })
        .collect()
}

/// The ledger's signing key, and the newest note beside it.
///
/// # Errors
/// If the configuration is invalid.
pub fn ledger_key(context: &Context) -> Result<KeyFile, Error> {
    let config: ledger::Config = context.section(ledger::LedgerService::NAME)?;
    Ok(KeyFile::new(
        config.checkpoint.key_file(&context.mesh.data_dir),
    ))
}

/// Names of secrets in a backup, and their files as configured.
///
/// # Errors
/// If the configuration is invalid.
pub fn keys(context: &Context) -> Result<[(&'static str, PathBuf); 2], Error> {
    let dispatcher: webhook_dispatcher::Config =
        context.section(webhook_dispatcher::WebhookDispatcherService::NAME)?;
    let named = dispatcher.secrets_key_file;
    let vault = match named.as_os_str().is_empty() {
        true => context.mesh.data_dir.join("webhook-dispatcher.key"),
        false => context.relative(&named),
    };
    let ledger = ledger_key(context)?.path().to_owned();
    Ok([
        ("ledger-checkpoint.key", ledger),
        ("webhook-dispatcher.key", vault),
    ])
}
