//! The streams.

use std::time::Duration;

use crate::subject;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const GIB: i64 = 1 << 30;

/// The public bus.
pub const SLURM_EVENTS: &str = "SLURM_EVENTS";
/// Doorbells, each for one service of its cluster.
pub const MESH_HOOKS: &str = "MESH_HOOKS";
/// What the mesh itself did.
pub const MESH_AUDIT: &str = "MESH_AUDIT";
/// Signed checkpoints of ledgers.
pub const MESH_CHECKPOINTS: &str = "MESH_CHECKPOINTS";
/// The order in which ledgers stored their entries.
pub const MESH_ORDER: &str = "MESH_ORDER";
/// Messages that could not be processed.
pub const MESH_DEAD: &str = "MESH_DEAD";
/// Events from outside of Slurm.
pub const MESH_IN: &str = "MESH_IN";
/// Events of the ledger, published again.
pub const MESH_REPLAY: &str = "MESH_REPLAY";

/// JetStream's deduplication window of message ids.
pub const DEDUPE_WINDOW: Duration = Duration::from_secs(10 * 60);

/// A stream.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    /// Name.
    pub name: &'static str,
    /// Subjects it keeps.
    pub subjects: &'static [&'static str],
    /// True if a message is gone once its consumer has acknowledged it.
    pub work_queue: bool,
    /// How long messages are kept.
    pub max_age: Duration,
    /// How much is kept, in bytes. When full, new messages are refused: publishers wait, and Slurm keeps its records.
    pub max_bytes: i64,
    /// What it is for.
    pub summary: &'static str,
}

/// Every stream.
pub const STREAMS: &[Stream] = &[
    Stream {
        name: SLURM_EVENTS,
        subjects: &["slurm.>"],
        work_queue: false,
        max_age: DAY.saturating_mul(14),
        max_bytes: 8 * GIB,
        summary: "The public bus: every event.",
    },
    Stream {
        name: MESH_HOOKS,
        // Not `mesh.*.hook.>`: it overlaps with replays, and the server refuses streams that overlap.
        subjects: &["mesh.*.hook.*"],
        work_queue: true,
        max_age: DAY.saturating_mul(7),
        max_bytes: GIB,
        summary: "Doorbells of hooks on their way to ingest or node-watcher.",
    },
    Stream {
        name: MESH_AUDIT,
        subjects: &["mesh.*.audit.*"],
        work_queue: false,
        max_age: DAY.saturating_mul(14),
        max_bytes: GIB,
        summary: "Audit entries, e.g. of deliveries and of reads of other users' data. Webhook filters never match them.",
    },
    Stream {
        name: MESH_CHECKPOINTS,
        subjects: &["mesh.checkpoint.*"],
        work_queue: false,
        // A checkpoint is a few hundred bytes, and there is one in ten seconds at most.
        max_age: DAY.saturating_mul(365),
        max_bytes: GIB,
        summary: "Signed checkpoints of the ledger, for other hosts to store. Not recorded in the ledger itself.",
    },
    Stream {
        name: MESH_ORDER,
        subjects: &["mesh.order.*"],
        work_queue: false,
        // As long as the messages that it puts in order.
        max_age: DAY.saturating_mul(14),
        max_bytes: GIB,
        summary: "The order in which a ledger stored SLURM_EVENTS and MESH_AUDIT, to restore entries after a restore from a backup.",
    },
    Stream {
        name: MESH_DEAD,
        // Not `mesh.dead.>`: it overlaps with `mesh.*.hook.*`, and the server refuses streams that overlap.
        subjects: &["mesh.dead.*"],
        work_queue: false,
        max_age: DAY.saturating_mul(30),
        max_bytes: GIB,
        summary: "Messages that could not be processed, with the reason.",
    },
    Stream {
        name: MESH_IN,
        subjects: &["mesh.*.in.*", "mesh.*.raw.*"],
        work_queue: false,
        max_age: DAY.saturating_mul(14),
        max_bytes: GIB,
        summary: "Events from outside, for rules: `in` as workflow-trigger checked and published them, `raw` as senders without HTTP (MinIO) publish them.",
    },
    // After MESH_HOOKS and MESH_AUDIT, whose subjects of former versions overlap with these.
    Stream {
        name: MESH_REPLAY,
        subjects: &["mesh.replay.*.slurm.>", subject::ENDPOINT_REPLAY_SUBJECTS],
        work_queue: false,
        max_age: DAY.saturating_mul(3),
        max_bytes: GIB.saturating_mul(2),
        summary: "Replayed events of the ledger. A replay waits while it is full.",
    },
];
