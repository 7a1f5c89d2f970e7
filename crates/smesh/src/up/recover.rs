//! `smesh recover`: sets a service's damaged file aside, copies its readable content into a new one, and restores the rest.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use chrono::Utc;
use mesh_db::damage::{self, Recovered};
use mesh_runtime::{BoxError, Context};

use super::data_dir::DataDir;
use crate::error::Error;
use crate::services::{Recovery, ServiceEntry};

/// A recovered file.
pub struct RecoveredFile {
    /// Path of the file.
    pub path: PathBuf,
    /// What its readable part had.
    pub recovered: Recovered,
    /// What was restored besides, in a sentence.
    pub restored: String,
}

/// How the file of a service can be recovered.
///
/// # Errors
/// If it cannot. The text says what to do instead.
pub fn recovery(service: &ServiceEntry) -> Result<&Recovery, Error> {
    let name = service.name();
    match &service.database {
        Some(database) => database.recovery.as_ref().ok_or_else(|| {
            let remedy = service.remedy;
            Error::Failed(format!(
                "recovered rows of a {name} prove nothing; {remedy}"
            ))
        }),
        None => Err(no_database_file(name)),
    }
}

/// Error for a service without a database.
pub fn no_database_file(service: &str) -> Error {
    Error::Failed(format!(
        "{service} has no database file: its state is in NATS, and is restored automatically"
    ))
}

/// Recovers the file of a service while no process uses the data directory.
///
/// # Errors
/// If `smesh up` or the service runs, the service has no recoverable file, or files cannot be written.
pub async fn file(context: &Context, service: &ServiceEntry) -> Result<RecoveredFile, Error> {
    let recovery = recovery(service)?;
    let file = (service.database_file)(context).map_err(|source| Error::Service {
        service: "configuration",
        source,
    })?;
    let is_restorable = |path: &PathBuf| path.exists() || recovery.replaces_lost_file;
    let Some(path) = file.filter(is_restorable) else {
        let name = service.name();
        return Err(Error::Failed(format!("{name} has no SQLite file")));
    };
    let _only = DataDir::prepare(&context.mesh.data_dir)?;
    ensure_stopped(context, service.name())?;
    let suffix = format!("damaged-{}", Utc::now().format("%Y%m%dT%H%M%SZ"));
    let recovered = damage::recover(&path, &suffix, recovery.prepare_file).await;
    let recovered = recovered.map_err(|error| failed(error.into()))?;
    let restored = (recovery.restore)(context, &path).await.map_err(failed)?;
    Ok(RecoveredFile {
        path,
        recovered,
        restored,
    })
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
