//! Errors of this service, and their meaning for the polling loop.

use mesh_bus::PutError;

/// Errors of the watcher.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Slurm gave no usable answer. The nodes' state is unknown, never "gone". Retried later.
    #[error("read nodes from Slurm")]
    Slurm(#[from] slurm_client::Error),
    /// The stored state is not in this version's format.
    #[error(
        "read state {key}; if a newer version wrote it, start that one; or delete the cluster's keys for a new baseline"
    )]
    State {
        /// Key in the bucket.
        key: String,
        /// Cause.
        #[source]
        source: serde_json::Error,
    },
    /// Another instance is the leader of this cluster.
    #[error("write state {key}: another instance has taken over")]
    Conflict {
        /// Key in the bucket.
        key: String,
    },
    /// The bus does not answer.
    #[error("use the bus")]
    Bus(#[from] mesh_bus::Error),
}

impl From<PutError> for Error {
    fn from(error: PutError) -> Self {
        match error {
            PutError::Conflict { key } => Self::Conflict { key },
            PutError::Bus(error) => Self::Bus(error),
        }
    }
}
