//! Backups: one tar file with a part per database and stream, and `manifest.json` as the last entry.
//!
//! The order of the parts keeps them consistent, although every one of them is of a different moment:
//!
//! ```text
//! positions of consumers ─► checkpoints, order ─► databases ─► other streams ─► buckets
//! ```
//!
//! - A consumer begins at a position that every database has passed: messages are handled again, never skipped.
//! - A restored ledger has all entries that its published checkpoints cover.
//! - Counters in the buckets are newer than all events that were counted.

pub mod archive;
pub mod create;
pub mod databases;
pub mod manifest;
pub mod restore;
pub mod verify;

use mesh_events::catalogue::{
    BUCKET_EXPLAINER, BUCKET_INGEST, BUCKET_LEASES, BUCKET_NODES, BUCKET_USERS, BUCKETS,
    MESH_CHECKPOINTS, MESH_HOOKS, MESH_ORDER, STREAMS,
};

/// Which parts a command is about.
#[derive(Clone, Copy, Debug)]
pub struct Selection {
    /// Databases of services.
    pub databases: bool,
    /// Streams and buckets.
    pub streams: bool,
}

impl Selection {
    /// The selected kinds of parts; both if none is named.
    pub const fn new(databases: bool, streams: bool) -> Self {
        let all = !databases && !streams;
        Self {
            databases: databases || all,
            streams: streams || all,
        }
    }
}

/// Streams that are copied before the databases.
fn streams_before_databases() -> Vec<String> {
    [MESH_CHECKPOINTS, MESH_ORDER].map(str::to_owned).into()
}

/// Streams and buckets that are copied after the databases. Doorbells before the events that they lead to; buckets last. Leases are
/// not copied.
fn streams_after_databases() -> Vec<String> {
    let before = streams_before_databases();
    let mut names: Vec<String> = STREAMS
        .iter()
        .map(|stream| stream.name.to_owned())
        .collect();
    names.retain(|name| !before.contains(name));
    names.sort_by_key(|name| name != MESH_HOOKS);
    let buckets = BUCKETS.iter().filter(|bucket| bucket.name != BUCKET_LEASES);
    names.extend(buckets.map(|bucket| format!("KV_{}", bucket.name)));
    names
}

/// Buckets with counters, and where those are in the values.
fn counters() -> [(&'static str, &'static [&'static str]); 4] {
    let [ingest, users] = ingest::COUNTERS;
    [
        (BUCKET_INGEST, ingest),
        (BUCKET_USERS, users),
        (BUCKET_NODES, node_watcher::COUNTERS),
        (BUCKET_EXPLAINER, pending_explainer::COUNTERS),
    ]
}
