//! Selects the mesh: configuration, API address, cluster.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use mesh_runtime::{ConfigFile, Context};
use tokio_util::sync::CancellationToken;

use crate::cli::Global;
use crate::client::{ApiAddress, Client};
use crate::error::Error;
use crate::services;

/// Default configuration, if none is named and the current folder has none.
pub const SYSTEM_CONFIG: &str = "/etc/slurm-mesh/mesh.toml";
/// Name of the API's socket in the data directory of `smesh up`.
pub const API_SOCKET: &str = "api.sock";
/// Name of the hooks' configuration in the data directory.
pub const HOOK_CONFIG: &str = "hook.toml";

/// Path of the configuration: the one named, else one in the current folder, else the system's.
///
/// # Errors
/// If another user may have written the file in the current folder. The file says which programs to run, and root visits many folders.
pub fn config_path(global: &Global) -> Result<PathBuf, Error> {
    let here = Path::new("mesh.toml");
    match &global.config {
        Some(path) => Ok(path.clone()),
        None if here.is_file() => trusted(here).map(|()| here.to_owned()),
        None => Ok(PathBuf::from(SYSTEM_CONFIG)),
    }
}

/// Checks that only root and the present user can write to a file.
fn trusted(path: &Path) -> Result<(), Error> {
    let file = path
        .canonicalize()
        .map_err(|source| Error::io("find", path, source))?;
    // Also its folder: write access there is enough to replace the file.
    for path in file.ancestors().take(2) {
        let meta = path
            .metadata()
            .map_err(|source| Error::io("inspect", path, source))?;
        let uid = rustix::process::geteuid().as_raw();
        let problem = if ![0, uid].contains(&meta.uid()) {
            format!("belongs to uid {}", meta.uid())
        } else if meta.mode() & 0o022 != 0 {
            format!("may be written by others (mode {:o})", meta.mode() & 0o7777)
        } else {
            continue;
        };
        return Err(Error::Usage(format!(
            "{} {problem}: to use the configuration {} anyway, pass it with --config",
            path.display(),
            file.display()
        )));
    }
    Ok(())
}

/// Loads the configuration.
///
/// # Errors
/// If it does not exist, or `[mesh]` is invalid.
pub fn load(global: &Global, shutdown: CancellationToken) -> Result<Context, Error> {
    let path = config_path(global)?;
    // Absolute, because a service may resolve the file's paths after the working directory has changed.
    let path = std::path::absolute(&path).map_err(|source| Error::io("find", &path, source))?;
    Ok(Context::new(
        ConfigFile::load(&services::sections(), Some(&path))?,
        shutdown,
    )?)
}

/// Socket of the API of `smesh up`.
pub fn socket(context: &Context) -> PathBuf {
    let configured = &context.mesh.api.socket;
    if configured.as_os_str().is_empty() {
        context.mesh.data_dir.join(API_SOCKET)
    } else {
        configured.clone()
    }
}

/// A client of the selected API.
///
/// # Errors
/// If no address is known, or the token cannot be read.
pub fn client(global: &Global) -> Result<Client, Error> {
    if let Some(url) = &global.url {
        return client_of(global, "--url", url);
    }
    if global.ca_file.is_some() {
        return Err(Error::Usage(
            "--ca-file is for an address: --url URL is missing".into(),
        ));
    }
    if let Some(socket) = &global.socket {
        return Client::new(ApiAddress::Unix(socket.clone()));
    }
    let context = load(global, CancellationToken::new())?;
    Client::new(ApiAddress::Unix(socket(&context)))
}

/// A client of an API over TCP, which an option names.
///
/// # Errors
/// If the address is none, or the token or a certificate cannot be read.
pub fn client_of(global: &Global, option: &str, url: &str) -> Result<Client, Error> {
    let token = match (&global.token_file, std::env::var("SMESH_TOKEN")) {
        (Some(file), _) => secret_file::read_of_any_owner(file)
            .map_err(|source| Error::io("read token", file, source))?,
        (None, Ok(token)) if !token.trim().is_empty() => token,
        (None, _) => {
            return Err(Error::Usage(format!(
                "{option} needs a token: --token-file FILE, or the token in SMESH_TOKEN"
            )));
        }
    };
    let address = ApiAddress::tcp(url, token.trim(), global.ca_file.as_deref())?;
    Client::new(address)
}

/// Name of the selected cluster.
///
/// # Errors
/// If neither the command line nor a configuration names it.
pub fn cluster(global: &Global) -> Result<String, Error> {
    match &global.cluster {
        Some(cluster) => Ok(cluster.clone()),
        None => match load(global, CancellationToken::new()) {
            Ok(context) => Ok(context.mesh.cluster),
            Err(error) => Err(Error::Usage(format!(
                "several clusters: select one with -M ({})",
                mesh_runtime::error_chain(&error)
            ))),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_renamed_key_leads_to_one_that_there_is() {
        for section in services::sections() {
            let defaults: toml::Table = section.defaults.parse().unwrap();
            // The section holds the defaults of the endpoint's settings.
            let find = |path: &str| {
                let keys = path.trim_start_matches("endpoints[].").split('.');
                let value = keys.fold(defaults.get(section.name), |table, key| table?.get(key));
                value.is_some()
            };
            for (old, new) in section.renamed_keys {
                assert!(find(new) && !find(old), "[{}] {old}: {new}", section.name);
            }
        }
    }
}
