//! Streams, consumers, key-value buckets and roles as data.
//!
//! Set-up, permissions and the tables of `docs/events.md` come from here and from nowhere else.

use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const LEDGER_ACK_WAIT: Duration = Duration::from_secs(10);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const GIB: i64 = 1 << 30;

/// The public bus.
pub const SLURM_EVENTS: &str = "SLURM_EVENTS";
/// Doorbells, each for one ingest.
pub const MESH_HOOKS: &str = "MESH_HOOKS";
/// What the mesh itself did.
pub const MESH_AUDIT: &str = "MESH_AUDIT";
/// Messages that could not be processed.
pub const MESH_DEAD: &str = "MESH_DEAD";

/// State of `ingest`: last-seen jobs and counters, in shards.
pub const BUCKET_INGEST: &str = "mesh_ingest";
/// State of `ingest` about users: who had which access, and counters.
pub const BUCKET_USERS: &str = "mesh_users";
/// State of `node-watcher`: last-seen nodes and counters.
pub const BUCKET_NODES: &str = "mesh_nodes";
/// State of `pending-explainer`: what was last explained.
pub const BUCKET_EXPLAINER: &str = "mesh_explainer";
/// The newest queue snapshot of each cluster.
pub const BUCKET_QUEUE: &str = "mesh_queue";

/// How long JetStream remembers message ids.
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
    /// How much is kept, in bytes. When full, new messages are refused: publishers wait, Slurm remembers.
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
        subjects: &["mesh.*.hook.>"],
        work_queue: true,
        max_age: DAY.saturating_mul(7),
        max_bytes: GIB,
        summary: "Doorbells of hooks on their way to ingest.",
    },
    Stream {
        name: MESH_AUDIT,
        subjects: &["mesh.*.audit.>"],
        work_queue: false,
        max_age: DAY.saturating_mul(14),
        max_bytes: GIB,
        summary: "What the mesh itself did: deliveries. Webhook filters never match it.",
    },
    Stream {
        name: MESH_DEAD,
        // Not `mesh.dead.>`: it overlaps with `mesh.*.hook.>`, and the server refuses streams that overlap.
        subjects: &["mesh.dead.*"],
        work_queue: false,
        max_age: DAY.saturating_mul(30),
        max_bytes: GIB,
        summary: "Messages that could not be processed, with the reason.",
    },
];

/// A durable consumer that is made at set-up. The dispatcher makes its `wh-…` consumers itself, one per endpoint.
#[derive(Clone, Copy, Debug)]
pub struct Consumer {
    /// Stream.
    pub stream: &'static str,
    /// Durable name: the service's name.
    pub name: &'static str,
    /// Only these subjects; empty for all.
    pub filters: &'static [&'static str],
    /// After this time without an answer a message is delivered again. Longer than the slowest handling.
    pub ack_wait: Duration,
    /// How many messages may be unanswered.
    pub max_ack_pending: i64,
}

/// Every durable consumer but the webhooks'.
pub const CONSUMERS: &[Consumer] = &[
    Consumer {
        stream: MESH_HOOKS,
        name: "ingest",
        filters: &[],
        ack_wait: MINUTE,
        max_ack_pending: 1024,
    },
    Consumer {
        stream: SLURM_EVENTS,
        name: "cost-engine",
        filters: &["slurm.*.job.>"],
        ack_wait: MINUTE,
        max_ack_pending: 1024,
    },
    Consumer {
        stream: SLURM_EVENTS,
        name: "pending-explainer",
        filters: &["slurm.*.job.>"],
        ack_wait: MINUTE,
        max_ack_pending: 1024,
    },
    // Short, as it is what a killed ledger's messages wait for: one that comes twice is recognised by its id.
    Consumer {
        stream: SLURM_EVENTS,
        name: "ledger",
        filters: &[],
        ack_wait: LEDGER_ACK_WAIT,
        max_ack_pending: 8192,
    },
    Consumer {
        stream: MESH_AUDIT,
        name: "ledger",
        filters: &[],
        ack_wait: LEDGER_ACK_WAIT,
        max_ack_pending: 8192,
    },
];

/// A key-value bucket.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    /// Name.
    pub name: &'static str,
    /// Largest value in bytes.
    pub max_value_size: i32,
    /// What it is for.
    pub summary: &'static str,
}

/// Every key-value bucket.
pub const BUCKETS: &[Bucket] = &[
    Bucket {
        name: BUCKET_INGEST,
        max_value_size: 1 << 20,
        summary: "Last-seen jobs and counters of ingest, `<cluster>.<shard>`.",
    },
    Bucket {
        name: BUCKET_USERS,
        max_value_size: 1 << 20,
        summary: "Last-seen access and identities of users, and counters, of ingest, `<cluster>.<shard>`.",
    },
    Bucket {
        name: BUCKET_NODES,
        max_value_size: 1 << 20,
        summary: "Last-seen nodes and counters of node-watcher, `<cluster>.<shard>`.",
    },
    Bucket {
        name: BUCKET_EXPLAINER,
        max_value_size: 1 << 20,
        summary: "What pending-explainer last said, `<cluster>.<shard>`.",
    },
    Bucket {
        name: BUCKET_QUEUE,
        max_value_size: 1 << 20,
        summary: "Newest queue snapshot, `<cluster>.<chunk>`.",
    },
];

/// What a NATS user may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// Subjects it may publish to.
    pub publish: Vec<String>,
    /// Subjects it may subscribe to.
    pub subscribe: Vec<String>,
}

/// NATS users: the services, the hooks, the administrator who sets up streams, and readers of the public bus.
pub const ROLES: &[&str] = &[
    "admin",
    "hook",
    "ingest",
    "node-watcher",
    "cost-engine",
    "ledger",
    "webhook-dispatcher",
    "pending-explainer",
    "reader",
];

/// Prefix of the inbox of a role; no role reads another's answers.
pub fn inbox_prefix(role: &str) -> String {
    format!("_INBOX_{role}")
}

/// The least a role needs.
///
/// Returns `None` for an unknown role.
pub fn permissions(role: &str) -> Option<Permissions> {
    if !ROLES.contains(&role) {
        return None;
    }
    let mut publish: Vec<String> = match role {
        "admin" => {
            return Some(Permissions {
                publish: vec![">".into()],
                subscribe: vec![">".into()],
            });
        }
        "hook" => vec!["mesh.*.hook.>".into()],
        "ingest" => vec![
            "slurm.*.job.>".into(),
            "slurm.*.user.>".into(),
            "slurm.*.capture.>".into(),
        ],
        "node-watcher" => vec!["slurm.*.node.>".into(), "slurm.*.capture.>".into()],
        "cost-engine" => vec!["slurm.*.cost.>".into(), "slurm.*.user.>".into()],
        "pending-explainer" => vec!["slurm.*.queue.>".into()],
        "webhook-dispatcher" => vec![
            "mesh.*.audit.>".into(),
            format!("$JS.API.CONSUMER.CREATE.{SLURM_EVENTS}.>"),
            format!("$JS.API.CONSUMER.DELETE.{SLURM_EVENTS}.*"),
            format!("$JS.API.CONSUMER.NAMES.{SLURM_EVENTS}"),
            format!("$JS.API.CONSUMER.INFO.{SLURM_EVENTS}.*"),
            format!("$JS.API.CONSUMER.MSG.NEXT.{SLURM_EVENTS}.*"),
            format!("$JS.API.STREAM.INFO.{SLURM_EVENTS}"),
            format!("$JS.ACK.{SLURM_EVENTS}.>"),
            format!("$JS.ACK.*.*.{SLURM_EVENTS}.>"),
        ],
        // Ordered consumers of `smesh events --follow` and `smesh wait`.
        "reader" => vec![
            format!("$JS.API.CONSUMER.CREATE.{SLURM_EVENTS}"),
            format!("$JS.API.CONSUMER.CREATE.{SLURM_EVENTS}.>"),
            format!("$JS.API.CONSUMER.INFO.{SLURM_EVENTS}.*"),
            format!("$JS.API.CONSUMER.MSG.NEXT.{SLURM_EVENTS}.*"),
            format!("$JS.API.STREAM.INFO.{SLURM_EVENTS}"),
        ],
        _ => Vec::new(),
    };
    for consumer in CONSUMERS.iter().filter(|consumer| consumer.name == role) {
        let Consumer { stream, name, .. } = consumer;
        publish.extend([
            format!("$JS.API.STREAM.INFO.{stream}"),
            format!("$JS.API.CONSUMER.INFO.{stream}.{name}"),
            format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}"),
            format!("$JS.ACK.{stream}.{name}.>"),
            format!("$JS.ACK.*.*.{stream}.{name}.>"),
        ]);
    }
    for (bucket, writes) in buckets_of(role) {
        publish.extend([
            format!("$JS.API.STREAM.INFO.KV_{bucket}"),
            format!("$JS.API.STREAM.MSG.GET.KV_{bucket}"),
            format!("$JS.API.DIRECT.GET.KV_{bucket}"),
            format!("$JS.API.DIRECT.GET.KV_{bucket}.>"),
            format!("$JS.API.CONSUMER.CREATE.KV_{bucket}.>"),
            format!("$JS.API.CONSUMER.CREATE.KV_{bucket}"),
            format!("$JS.API.CONSUMER.INFO.KV_{bucket}.*"),
            format!("$JS.API.CONSUMER.DELETE.KV_{bucket}.*"),
            format!("$JS.FC.KV_{bucket}.>"),
        ]);
        if *writes {
            publish.push(format!("$KV.{bucket}.>"));
        }
    }
    if role != "hook" && role != "reader" {
        publish.push(crate::subject::dead(role));
    }
    publish.push("$JS.API.INFO".into());
    Some(Permissions {
        publish,
        subscribe: vec![format!("{}.>", inbox_prefix(role))],
    })
}

/// Buckets a role uses, and whether it writes them.
fn buckets_of(role: &str) -> &'static [(&'static str, bool)] {
    match role {
        "ingest" => &[
            (BUCKET_INGEST, true),
            (BUCKET_USERS, true),
            (BUCKET_QUEUE, true),
        ],
        "node-watcher" => &[(BUCKET_NODES, true)],
        "pending-explainer" => &[(BUCKET_EXPLAINER, true), (BUCKET_QUEUE, false)],
        _ => &[],
    }
}
