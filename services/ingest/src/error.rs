//! What can go wrong here.

/// Errors of ingest. Slurm being away is none: it is waited for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Told to stop while something was held.
    #[error("stopped before everything held was stored; it is done again at the next start")]
    Stopped,
    /// Another ingest leads in this cluster.
    #[error("write {key} of bucket {bucket}: another ingest has taken over")]
    Fenced {
        /// The bucket.
        bucket: &'static str,
        /// The key.
        key: String,
    },
    /// The stored state cannot be read.
    #[error("read state {key} of bucket {bucket}; it was written by another version or damaged")]
    State {
        /// The bucket.
        bucket: &'static str,
        /// The key.
        key: String,
        /// Cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The state cannot be written.
    #[error("encode state {key}")]
    Encode {
        /// The key.
        key: String,
        /// Cause.
        #[source]
        source: serde_json::Error,
    },
    /// A part of ingest ended where it should not.
    #[error("run a part of ingest")]
    Task {
        /// Cause.
        #[source]
        source: tokio::task::JoinError,
    },
    /// The bus refused for good.
    #[error("publish")]
    Bus(#[from] mesh_bus::Error),
}

impl Error {
    /// Whether this is the way a shutdown looks from inside.
    pub const fn is_shutdown(&self) -> bool {
        matches!(self, Self::Stopped | Self::Bus(mesh_bus::Error::Cancelled))
    }
}
