//! Errors of this service.

use std::time::Duration;

use mesh_runtime::api::Problem;

/// An error of the workflow-trigger.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database cannot be used, or refuses a statement.
    #[error(transparent)]
    Database(#[from] mesh_db::Error),
    /// The database took too long.
    #[error("store runs: no answer within {0:?}; is the database reachable?")]
    TooSlow(Duration),
    /// A stored row cannot be read.
    #[error("read run {key}: {problem}")]
    Damaged {
        /// Key of the run.
        key: String,
        /// What is wrong.
        problem: String,
    },
    /// The database was recovered and is being restored.
    #[error("the database was recovered, and what was planned before is being read from the audit")]
    Restoring,
    /// The bus does not answer.
    #[error("use the bus")]
    Bus(#[from] mesh_bus::Error),
}

impl Error {
    /// True if the database may recover by itself: it is restarting, or unreachable.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Database(error) => error.is_unavailable(),
            Self::TooSlow(_) | Self::Bus(_) | Self::Restoring => true,
            Self::Damaged { .. } => false,
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
