//! What can go wrong with a database before it is asked anything.

use std::path::PathBuf;

use sqlx::migrate::MigrateError;

use crate::Location;

/// A database that cannot be used. `name` is whose it is, as `ledger`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be opened.
    #[error("open {name} {location}")]
    Open {
        /// Whose it is.
        name: &'static str,
        /// Where it is.
        location: Location,
        /// Why.
        #[source]
        source: sqlx::Error,
    },
    /// Its file could not be made.
    #[error("create {name} {}; check that the folder exists and is writable", path.display())]
    Create {
        /// Whose it is.
        name: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The server is not one that can be used.
    #[error("open {name} {location}: {fault}")]
    Unfit {
        /// Whose it is.
        name: &'static str,
        /// Where it is.
        location: Location,
        /// What is wrong, and what is needed.
        fault: String,
    },
    /// The tables could not be made or brought up to date.
    #[error("set up {name} {location}")]
    Migrate {
        /// Whose it is.
        name: &'static str,
        /// Where it is.
        location: Location,
        /// Why.
        #[source]
        source: MigrateError,
    },
    /// The tables are missing or old, and the role may not make them.
    #[error(
        "set up {name} {location}: its tables are not those of this version, and this role may not make them; {remedy}"
    )]
    NotMigrated {
        /// Whose it is.
        name: &'static str,
        /// Where it is.
        location: Location,
        /// What to do.
        remedy: &'static str,
    },
}

impl Error {
    /// True if the database may be there again by itself.
    pub fn is_away(&self) -> bool {
        match self {
            Self::Open { source, .. }
            | Self::Migrate {
                source: MigrateError::Execute(source) | MigrateError::ExecuteMigration(source, _),
                ..
            } => is_away(source),
            _ => false,
        }
    }
}

/// True if a query was ended as it took longer than its connection allows.
pub fn is_too_long(error: &sqlx::Error) -> bool {
    // PostgreSQL's query_canceled and SQLite's SQLITE_INTERRUPT.
    let code = match error {
        sqlx::Error::Database(error) => error.code(),
        _ => None,
    };
    code.is_some_and(|code| ["57014", "9"].contains(&&*code))
}

/// True if the database may be there again by itself: it restarts, or the way to it is cut.
pub fn is_away(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::Protocol(_) => true,
        // 08: connection, 53: out of a resource, 55P03: lock not available, 57: by an operator or a restart.
        sqlx::Error::Database(error) => error.code().is_some_and(|code| {
            ["08", "53", "55P03", "57"]
                .iter()
                .any(|class| code.starts_with(class))
        }),
        _ => false,
    }
}
