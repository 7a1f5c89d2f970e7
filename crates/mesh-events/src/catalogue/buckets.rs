//! The key-value buckets.

use sha2::{Digest as _, Sha256};

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
/// The newest evidence of each cluster: what explains the scheduler's decisions.
pub const BUCKET_EVIDENCE: &str = "mesh_evidence";
/// The newest counts of jobs of each cluster, for metrics.
pub const BUCKET_JOB_COUNTS: &str = "mesh_job_counts";
/// The newest list of nodes of each cluster, for metrics.
pub const BUCKET_NODE_LIST: &str = "mesh_node_list";
/// The newest list of all jobs of each cluster, as squeue prints it.
pub const BUCKET_LISTING: &str = "mesh_listing";
/// Who coordinates which accounts, by user, and the parent of each account.
pub const BUCKET_COORDINATORS: &str = "mesh_coordinators";
/// Who leads each service of each cluster.
pub const BUCKET_LEASES: &str = "mesh_leases";
/// What people have spent this month, by user.
pub const BUCKET_SPENDING: &str = "mesh_spending";
/// Reads of other people's data that are not in the audit yet.
pub const BUCKET_READS: &str = "mesh_reads";
/// Names of the webhook endpoints, in shards.
pub const BUCKET_WEBHOOKS: &str = "mesh_webhooks";

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
        summary: "Last explanations of pending-explainer, `<cluster>.<shard>`.",
    },
    Bucket {
        name: BUCKET_QUEUE,
        max_value_size: 1 << 20,
        summary: "Newest queue snapshot, `<cluster>.<chunk>`.",
    },
    Bucket {
        name: BUCKET_EVIDENCE,
        max_value_size: 1 << 20,
        summary: "Newest limits, nodes, partitions, reservations, licenses and running jobs, by ingest for pending-explainer, `<cluster>.<chunk>`.",
    },
    Bucket {
        name: BUCKET_JOB_COUNTS,
        max_value_size: 1 << 20,
        summary: "Newest counts of jobs by partition, account, user, QOS, state and reason, by ingest for exporter, `<cluster>.<chunk>`.",
    },
    Bucket {
        name: BUCKET_NODE_LIST,
        max_value_size: 1 << 20,
        summary: "Newest list of nodes, by node-watcher for exporter, `<cluster>.<chunk>`.",
    },
    Bucket {
        name: BUCKET_LISTING,
        max_value_size: 1 << 20,
        summary: "Newest list of all jobs as squeue prints it, by ingest for pending-explainer, which answers pollers from it, `<cluster>.<chunk>`.",
    },
    Bucket {
        name: BUCKET_COORDINATORS,
        max_value_size: 1 << 18,
        summary: "Accounts that a user coordinates, `<cluster>.user.<user>`, written by ingest and read by the services with an API; the parent of each account, `<cluster>.account.<account>`, read by cost-engine.",
    },
    Bucket {
        name: BUCKET_LEASES,
        max_value_size: 1 << 10,
        summary: "Leases of the leaders, `<cluster>.<service>`.",
    },
    Bucket {
        name: BUCKET_SPENDING,
        max_value_size: 1 << 12,
        summary: "What the person behind a user has spent this month (`mesh.cost.v1.Spending`), by cost-engine for messages of webhook-dispatcher to job owners, `<cluster>.user.<user>`.",
    },
    Bucket {
        name: BUCKET_READS,
        max_value_size: 1 << 20,
        summary: "Reads of other people's data (`mesh.audit.v1.AuditEntry`) until the end of their minute, when they become audit entries, by the services with an API, `<cluster>.<service>.<slot>`.",
    },
    Bucket {
        name: BUCKET_WEBHOOKS,
        max_value_size: 1 << 20,
        summary: "Names of the webhook endpoints, by webhook-dispatcher for the ledger, which replays to them, `names.<shard>`.",
    },
];

/// The shard of [`BUCKET_WEBHOOKS`] that has the name of a webhook endpoint.
pub fn webhook_shard(endpoint: &str) -> u8 {
    Sha256::digest(endpoint.as_bytes())[0]
}
