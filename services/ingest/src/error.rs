//! Errors of ingest.

/// Errors of ingest. An unavailable Slurm is none: ingest retries.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Stopped before all pending work was stored.
    #[error("stopped before all pending work was stored; it is repeated after the next start")]
    Stopped,
    /// Another ingest leads in this cluster.
    #[error("write {key} of bucket {bucket}: another ingest has taken over")]
    Fenced {
        /// Name of the bucket.
        bucket: &'static str,
        /// Key of the write.
        key: String,
    },
    /// The stored state is of a newer version, which must not be discarded.
    #[error("read state {key} of bucket {bucket}: written by a newer version")]
    State {
        /// Name of the bucket.
        bucket: &'static str,
        /// Key of the state.
        key: String,
        /// Cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The state cannot be serialized.
    #[error("encode state {key}")]
    Encode {
        /// Key of the state.
        key: String,
        /// Cause.
        #[source]
        source: serde_json::Error,
    },
    /// A task of ingest ended unexpectedly.
    #[error("run a part of ingest")]
    Task {
        /// Cause.
        #[source]
        source: tokio::task::JoinError,
    },
    /// The bus failed permanently.
    #[error("publish")]
    Bus(#[from] mesh_bus::Error),
}

impl Error {
    /// Whether this error is the result of a shutdown.
    pub const fn is_shutdown(&self) -> bool {
        matches!(self, Self::Stopped | Self::Bus(mesh_bus::Error::Cancelled))
    }
}
