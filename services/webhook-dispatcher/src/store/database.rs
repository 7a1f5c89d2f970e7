//! The dispatcher's database: a SQLite file for one process, or PostgreSQL for any number.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;
use std::time::Duration;

use mesh_db::{Limits, Tables};

use crate::error::Error;

pub(super) const LIMITS: Limits = Limits {
    readers: 4,
    // One for the group commits of deliveries, and one for statements that must not wait for them.
    writers: 2,
    query_timeout: Duration::from_secs(10),
};

pub(super) static TABLES: Tables = Tables {
    name: "webhook-dispatcher",
    sqlite: sqlx::migrate!("migrations/sqlite"),
    postgres: sqlx::migrate!("migrations/postgres"),
    first: "endpoints",
    remedy: "start the dispatcher once with the address of their owner",
};

/// Locks a SQLite file for one process. Replicas on one file would not see each other's clocks and caches; they need
/// a database server.
///
/// # Errors
/// If another process has it.
pub(super) fn lock_file(path: &Path) -> Result<File, Error> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let unusable = |source| mesh_db::Error::Create {
        name: TABLES.name,
        path: name.clone().into(),
        source,
    };
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&name)
        .map_err(unusable)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::InUse(path.to_owned())),
        Err(TryLockError::Error(source)) => Err(unusable(source).into()),
    }
}
