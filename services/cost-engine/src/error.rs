//! Errors of this service.

use std::time::Duration;

use mesh_runtime::api::Problem;

use crate::price_book::PriceBookError;

/// An error of the cost engine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The price book is invalid.
    #[error("cost-engine.price_book")]
    PriceBook(#[from] PriceBookError),
    /// Budgets are invalid.
    #[error("cost-engine.budgets")]
    Budgets(#[from] crate::budgets::error::BudgetsError),
    /// The database cannot be used, or refuses a statement.
    #[error(transparent)]
    Database(#[from] mesh_db::Error),
    /// NATS does not answer.
    #[error(transparent)]
    Bus(#[from] mesh_bus::Error),
    /// The database took too long to store a batch.
    #[error("write costs: no answer within {0:?}; is the database reachable?")]
    TooSlow(Duration),
    /// An amount does not fit 64 bits.
    #[error("add costs")]
    Amount(#[from] crate::domain::PriceError),
    /// A report cannot be written as JSON.
    #[error("write report")]
    Json(#[source] serde_json::Error),
    /// An amount of a stored report is not a number.
    #[error("read the report of {period}: an amount is not a number")]
    Report {
        /// The closed period.
        period: String,
        /// Cause.
        #[source]
        source: std::num::ParseIntError,
    },
    /// A report cannot be written as CSV.
    #[error("write report")]
    Csv(#[source] csv::Error),
    /// A computation panicked, or the process ends.
    #[error("compute costs")]
    Interrupted(#[source] tokio::task::JoinError),
    /// A stored value is not a valid message, so another program wrote it.
    #[error("{action}: stored message of {run} is damaged")]
    Damaged {
        /// The operation.
        action: &'static str,
        /// Entity key of the run, or id of the event.
        run: String,
        /// Cause.
        #[source]
        source: prost::DecodeError,
    },
}

impl Error {
    /// True if the database may recover by itself: it is restarting, or unreachable.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Database(error) => error.is_unavailable(),
            Self::TooSlow(_) => true,
            Self::PriceBook(_)
            | Self::Budgets(_)
            | Self::Bus(_)
            | Self::Amount(_)
            | Self::Json(_)
            | Self::Report { .. }
            | Self::Csv(_)
            | Self::Interrupted(_)
            | Self::Damaged { .. } => false,
        }
    }

    pub(crate) fn database(action: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |source| mesh_db::Error::statement(action)(source).into()
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self::of_failure(&error, error.is_unavailable())
    }
}
