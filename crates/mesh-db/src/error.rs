//! Errors of opening and migrating a database.

use std::path::PathBuf;

use sqlx::migrate::MigrateError;

use crate::Location;

/// An error of a database. `name` is the service that owns it, such as `ledger`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database could not be opened.
    #[error("open {name} {location}")]
    Open {
        /// Owning service.
        name: &'static str,
        /// Address.
        location: Location,
        /// Cause.
        #[source]
        source: sqlx::Error,
    },
    /// The database file could not be created.
    #[error("create {name} {}; check that the folder exists and is writable", path.display())]
    Create {
        /// Owning service.
        name: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// The server's version or settings are not supported.
    #[error("open {name} {location}: {fault}")]
    Unsupported {
        /// Owning service.
        name: &'static str,
        /// Address.
        location: Location,
        /// The fault and the requirement.
        fault: String,
    },
    /// A migration failed.
    #[error("set up {name} {location}")]
    Migrate {
        /// Owning service.
        name: &'static str,
        /// Address.
        location: Location,
        /// Cause.
        #[source]
        source: MigrateError,
    },
    /// A newer version has changed the tables in a way that this one cannot work with.
    #[error(
        "set up {name} {location}: a newer version has changed its tables so that this version cannot use them (migration {migration}); start the newer version"
    )]
    Newer {
        /// Owning service.
        name: &'static str,
        /// Address.
        location: Location,
        /// The migration.
        migration: String,
    },
    /// The tables are missing or outdated, and the role may not migrate them.
    #[error(
        "set up {name} {location}: its tables are not those of this version, and this role may not create them; {remedy}"
    )]
    NotMigrated {
        /// Owning service.
        name: &'static str,
        /// Address.
        location: Location,
        /// Instruction for the operator.
        remedy: &'static str,
    },
    /// The database refuses a statement.
    #[error("{action}")]
    Statement {
        /// What was being done.
        action: &'static str,
        /// Cause.
        #[source]
        source: sqlx::Error,
    },
}

impl Error {
    /// The error of a refused statement.
    pub fn statement(action: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |source| Self::Statement { action, source }
    }

    /// True if the failure is transient: a retry may succeed.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Open { source, .. }
            | Self::Statement { source, .. }
            | Self::Migrate {
                source: MigrateError::Execute(source) | MigrateError::ExecuteMigration(source, _),
                ..
            } => is_unavailable(source),
            _ => false,
        }
    }
}

/// True if a query exceeded the time limit of its connection.
pub fn is_timeout(error: &sqlx::Error) -> bool {
    // PostgreSQL's query_canceled and SQLite's SQLITE_INTERRUPT.
    let code = match error {
        sqlx::Error::Database(error) => error.code(),
        _ => None,
    };
    code.is_some_and(|code| ["57014", "9"].contains(&&*code))
}

/// True if the failure is transient, such as a server restart or a network outage.
pub fn is_unavailable(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::Protocol(_) => true,
        // Classes 08: connection, 53: insufficient resources, 57: operator intervention or restart.
        // 55P03: lock not available.
        sqlx::Error::Database(error) => error.code().is_some_and(|code| {
            ["08", "53", "55P03", "57"]
                .iter()
                .any(|class| code.starts_with(class))
        }),
        _ => false,
    }
}
