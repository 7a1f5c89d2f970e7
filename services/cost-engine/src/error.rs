//! What can go wrong in this service.

use std::path::PathBuf;

use crate::price_book::PriceBookError;

/// An error of the cost engine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The price book cannot be used.
    #[error("cost-engine.price_book")]
    PriceBook(#[from] PriceBookError),
    /// The database file cannot be made or opened.
    #[error("open cost database {path}", path = path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The tables cannot be brought to this version.
    #[error("prepare cost database {path}", path = path.display())]
    Migrate {
        /// The file.
        path: PathBuf,
        /// Cause.
        #[source]
        source: sqlx::migrate::MigrateError,
    },
    /// The database refuses to do something.
    #[error("{action}")]
    Database {
        /// What.
        action: &'static str,
        /// Cause.
        #[source]
        source: sqlx::Error,
    },
    /// What the database holds is no message of the contract: it was written by something else.
    #[error("{action}: stored message of {run} is damaged")]
    Damaged {
        /// What was being done.
        action: &'static str,
        /// Which run or event.
        run: String,
        /// Cause.
        #[source]
        source: prost::DecodeError,
    },
}

impl Error {
    pub(crate) fn database(action: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |source| Self::Database { action, source }
    }
}
