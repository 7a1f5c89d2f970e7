//! Which mesh is meant: configuration, API address, cluster.

use std::path::{Path, PathBuf};

use mesh_runtime::{ConfigFile, Context, Service};
use tokio_util::sync::CancellationToken;

use crate::cli::Global;
use crate::client::{Address, Client};
use crate::error::Error;

/// Where the configuration is when nothing else is said and there is none in the current folder.
pub const SYSTEM_CONFIG: &str = "/etc/slurm-mesh/mesh.toml";
/// Name of the API's socket in the data directory of `smesh up`.
pub const API_SOCKET: &str = "api.sock";
/// Name of the hooks' configuration in the data directory.
pub const HOOK_CONFIG: &str = "hook.toml";

/// Defaults of every section.
pub const DEFAULTS: &[&str] = &[
    <ingest::IngestService as Service>::DEFAULTS,
    <node_watcher::NodeWatcherService as Service>::DEFAULTS,
    <cost_engine::CostEngineService as Service>::DEFAULTS,
    <ledger::LedgerService as Service>::DEFAULTS,
    <webhook_dispatcher::WebhookDispatcherService as Service>::DEFAULTS,
    <pending_explainer::PendingExplainerService as Service>::DEFAULTS,
];

/// The configuration file that is meant: the one that was named, else one that is there, else the system's.
pub fn config_path(global: &Global) -> PathBuf {
    match &global.config {
        Some(path) => path.clone(),
        None if Path::new("mesh.toml").is_file() => PathBuf::from("mesh.toml"),
        None => PathBuf::from(SYSTEM_CONFIG),
    }
}

/// Reads the configuration.
///
/// # Errors
/// If it is not there, or `[mesh]` has a fault.
pub fn load(global: &Global, shutdown: CancellationToken) -> Result<Context, Error> {
    let path = config_path(global);
    // Absolute, since a service may resolve paths of the file after the working directory has changed.
    let path = std::path::absolute(&path).map_err(|source| Error::io("find", &path, source))?;
    let mut context = Context::new(ConfigFile::load(DEFAULTS, Some(&path))?, shutdown)?;
    context.mesh.data_dir = context.relative(&context.mesh.data_dir);
    Ok(context)
}

/// Socket of the API of `smesh up`.
pub fn socket(context: &Context) -> PathBuf {
    let configured = &context.mesh.api.socket;
    if configured.as_os_str().is_empty() {
        context.mesh.data_dir.join(API_SOCKET)
    } else {
        context.relative(configured)
    }
}

/// A client of the API that is meant.
///
/// # Errors
/// If no address is known, or the token cannot be read.
pub fn client(global: &Global) -> Result<Client, Error> {
    if let Some(url) = &global.url {
        let file = global
            .token_file
            .as_ref()
            .ok_or_else(|| Error::Usage("--url needs --token-file FILE".into()))?;
        let token = std::fs::read_to_string(file)
            .map_err(|source| Error::io("read token", file, source))?;
        return Client::new(Address::tcp(url, token.trim())?);
    }
    if let Some(socket) = &global.socket {
        return Client::new(Address::Unix(socket.clone()));
    }
    let context = load(global, CancellationToken::new())?;
    Client::new(Address::Unix(socket(&context)))
}

/// The cluster that is meant.
///
/// # Errors
/// If it was not named and there is no configuration that names it.
pub fn cluster(global: &Global) -> Result<String, Error> {
    match &global.cluster {
        Some(cluster) => Ok(cluster.clone()),
        None => match load(global, CancellationToken::new()) {
            Ok(context) => Ok(context.mesh.cluster),
            Err(error) => Err(Error::Usage(format!(
                "which cluster? name it with -M ({})",
                mesh_runtime::chain(&error)
            ))),
        },
    }
}
