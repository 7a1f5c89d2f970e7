//! `manifest.json`: what a backup contains.

use chrono::{DateTime, Utc};
use mesh_bus::{ConsumerPosition, StreamSnapshot};
use serde::{Deserialize, Serialize};

/// Version of the format.
pub const FORMAT: u32 = 1;
/// Name of the last entry.
pub const FILE: &str = "manifest.json";

/// The content of a backup.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the format.
    pub format: u32,
    /// Version of slurm-mesh that wrote it.
    pub version: String,
    /// Cluster of the configuration.
    pub cluster: String,
    /// Host on which it was made.
    pub host: String,
    /// Begin.
    pub started_at: DateTime<Utc>,
    /// End.
    pub ended_at: DateTime<Utc>,
    /// Positions of the durable consumers, from before the databases were copied.
    pub consumers: Vec<ConsumerPosition>,
    /// Newest checkpoint in the copied ledger.
    pub checkpoint: Option<String>,
    /// The other entries of the file, in their order.
    pub parts: Vec<BackupPart>,
}

/// An entry of the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BackupPart {
    /// Path in the file.
    pub path: String,
    /// Length.
    pub bytes: u64,
    /// SHA-256, in hexadecimal digits.
    pub sha256: String,
    /// What it is.
    #[serde(flatten)]
    pub content: PartContent,
}

/// What an entry is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PartContent {
    /// A SQLite file.
    Sqlite {
        /// Its service.
        service: String,
    },
    /// A dump of PostgreSQL.
    Postgres {
        /// Its service.
        service: String,
    },
    /// A snapshot of a stream or bucket.
    Stream(StreamSnapshot),
    /// Price book or identity map.
    Configuration,
    /// A key, or `mesh.toml`.
    Secret,
}

impl Manifest {
    /// Snapshots of streams and buckets.
    pub fn streams(&self) -> impl Iterator<Item = (&BackupPart, &StreamSnapshot)> {
        self.parts.iter().filter_map(|part| match &part.content {
            PartContent::Stream(snapshot) => Some((part, snapshot)),
            _ => None,
        })
    }
}
