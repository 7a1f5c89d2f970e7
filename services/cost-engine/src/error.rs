//! What can go wrong in this service.

use std::time::Duration;

use crate::price_book::PriceBookError;

/// An error of the cost engine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The price book cannot be used.
    #[error("cost-engine.price_book")]
    PriceBook(#[from] PriceBookError),
    /// The database cannot be opened or brought to this version.
    #[error(transparent)]
    Open(#[from] mesh_db::Error),
    /// The database took too long to store a batch.
    #[error("write costs: no answer within {0:?}; is the database reachable?")]
    TooSlow(Duration),
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
    /// True if the database may be there again by itself: it restarts, or the way to it is cut.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Open(error) => error.is_unavailable(),
            Self::TooSlow(_) => true,
            Self::Database { source, .. } => mesh_db::is_unavailable(source),
            Self::PriceBook(_) | Self::Damaged { .. } => false,
        }
    }

    pub(crate) fn database(action: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |source| Self::Database { action, source }
    }
}
