//! Errors of this service, and whether a retry can help.

use mesh_bus::PutError;

/// Errors of the explainer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A newer version wrote the stored state.
    #[error(
        "read state {key}: a newer version wrote it; start that one, or delete the key to publish the explanations again"
    )]
    Newer {
        /// Key in the bucket.
        key: String,
    },
    /// The state cannot be written as JSON.
    #[error("write state {key}")]
    Json {
        /// Key in the bucket.
        key: String,
        /// Cause.
        #[source]
        source: serde_json::Error,
    },
    /// Another instance writes the same state. The state has been read again.
    #[error("write state {key}: another instance wrote it in the meantime")]
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
