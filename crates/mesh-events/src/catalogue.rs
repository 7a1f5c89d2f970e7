//! Streams, consumers, key-value buckets and roles as data.
//!
//! Set-up, permissions and the tables of `docs/reference/bus.md` and `events.md` come from here and from nowhere else.

use std::time::Duration;

use sha2::{Digest as _, Sha256};

use crate::{hooks, subject};

const MINUTE: Duration = Duration::from_secs(60);
const LEDGER_ACK_WAIT: Duration = Duration::from_secs(10);
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
/// In which order ledgers took in what they hold.
pub const MESH_ORDER: &str = "MESH_ORDER";
/// Messages that could not be processed.
pub const MESH_DEAD: &str = "MESH_DEAD";
/// Events of the ledger, told once more.
pub const MESH_REPLAY: &str = "MESH_REPLAY";

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
/// Who coordinates which accounts, by user.
pub const BUCKET_COORDINATORS: &str = "mesh_coordinators";
/// Who leads each service of each cluster.
pub const BUCKET_LEASES: &str = "mesh_leases";
/// Names of the webhook endpoints, in shards.
pub const BUCKET_WEBHOOKS: &str = "mesh_webhooks";

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

/// A durable consumer that is made at set-up.
#[derive(Clone, Copy, Debug)]
pub struct Consumer {
    /// Stream.
    pub stream: &'static str,
    /// The service's name: the durable name, or its beginning.
    pub name: &'static str,
    /// One for each cluster: `<name>-<cluster>`, declared by the service itself, and the `*` of its filters is that cluster.
    pub per_cluster: bool,
    /// Only these subjects; empty for all.
    pub filters: &'static [&'static str],
    /// After this time without an answer a message is delivered again. Longer than the slowest handling.
    pub ack_wait: Duration,
    /// How many messages may be unanswered.
    pub max_ack_pending: i64,
}

/// Every durable consumer.
pub const CONSUMERS: &[Consumer] = &[
    // Many: an end that only accounting can prove is unanswered until it does, and must not keep a start from being heard.
    Consumer {
        stream: MESH_HOOKS,
        name: "ingest",
        per_cluster: true,
        filters: hooks::JOB_HOOK_SUBJECTS,
        ack_wait: MINUTE,
        max_ack_pending: 20_000,
    },
    Consumer {
        stream: MESH_HOOKS,
        name: "node-watcher",
        per_cluster: true,
        filters: hooks::NODE_HOOK_SUBJECTS,
        ack_wait: MINUTE,
        max_ack_pending: 1024,
    },
    // Holes that a ledger found: what it lacks is told again.
    Consumer {
        stream: SLURM_EVENTS,
        name: "ingest",
        per_cluster: true,
        filters: &["slurm.*.capture.gap_opened.stream"],
        ack_wait: MINUTE,
        max_ack_pending: 16,
    },
    Consumer {
        stream: SLURM_EVENTS,
        name: "cost-engine",
        per_cluster: false,
        filters: &["slurm.*.job.>"],
        ack_wait: MINUTE,
        max_ack_pending: 1024,
    },
    Consumer {
        stream: SLURM_EVENTS,
        name: "pending-explainer",
        per_cluster: false,
        filters: &["slurm.*.job.>"],
        ack_wait: MINUTE,
        max_ack_pending: 1024,
    },
    // Short, as it is what a killed ledger's messages wait for: one that comes twice is recognised by its id.
    Consumer {
        stream: SLURM_EVENTS,
        name: "ledger",
        per_cluster: false,
        filters: &[],
        ack_wait: LEDGER_ACK_WAIT,
        max_ack_pending: 8192,
    },
    Consumer {
        stream: MESH_AUDIT,
        name: "ledger",
        per_cluster: false,
        filters: &[],
        ack_wait: LEDGER_ACK_WAIT,
        max_ack_pending: 8192,
    },
];

/// Durable name of the consumer that a webhook endpoint had in former versions: `wh-` and 12 hexadecimal digits of its name's SHA-256.
pub fn former_endpoint_consumer(endpoint: &str) -> String {
    let digest = Sha256::digest(endpoint.as_bytes());
    format!("wh-{}", hex::encode(&digest[..6]))
}

/// The shard of [`BUCKET_WEBHOOKS`] that has the name of a webhook endpoint.
pub fn webhook_shard(endpoint: &str) -> u8 {
    Sha256::digest(endpoint.as_bytes())[0]
}

/// Consumers of former versions that stand in the way of the present ones: stream and durable name.
pub const RETIRED_CONSUMERS: &[(&str, &str)] = &[(MESH_HOOKS, "ingest")];

impl Consumer {
    /// Its durable name, for a cluster.
    pub fn durable(&self, cluster: &str) -> String {
        self.of(&subject::token(cluster))
    }

    /// Its durable name, for a cluster's token.
    pub fn of(&self, token: &str) -> String {
        match self.per_cluster {
            true => format!("{}-{token}", self.name),
            false => self.name.to_owned(),
        }
    }

    /// The consumer of a durable name that is one of a cluster's, and the cluster's token.
    pub fn of_cluster<'a>(stream: &str, durable: &'a str) -> Option<(&'static Self, &'a str)> {
        let token = |consumer: &Self| durable.strip_prefix(consumer.name)?.strip_prefix('-');
        CONSUMERS
            .iter()
            .filter(|consumer| consumer.per_cluster && consumer.stream == stream)
            .find_map(|consumer| Some((consumer, token(consumer)?)))
    }

    /// Its filters, for a cluster's token.
    pub fn filters_of(&self, token: &str) -> Vec<String> {
        let of = |filter: &&str| match self.per_cluster {
            true => filter.replacen('*', token, 1),
            false => (*filter).to_owned(),
        };
        self.filters.iter().map(of).collect()
    }
}

/// The durable consumer of a service on a stream, for a cluster.
pub fn durable(stream: &str, service: &str, cluster: &str) -> String {
    CONSUMERS
        .iter()
        .find(|consumer| consumer.stream == stream && consumer.name == service)
        .map_or_else(|| service.to_owned(), |consumer| consumer.durable(cluster))
}

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
        summary: "Newest limits, nodes, partitions, reservations, licences and running jobs, by ingest for pending-explainer, `<cluster>.<chunk>`.",
    },
    Bucket {
        name: BUCKET_COORDINATORS,
        max_value_size: 1 << 18,
        summary: "Accounts that a user coordinates, written by ingest and read by the services with an API, `<cluster>.user.<user>`.",
    },
    Bucket {
        name: BUCKET_LEASES,
        max_value_size: 1 << 10,
        summary: "Leases of the leaders, `<cluster>.<service>`.",
    },
    Bucket {
        name: BUCKET_WEBHOOKS,
        max_value_size: 1 << 20,
        summary: "Names of the webhook endpoints, by webhook-dispatcher for the ledger, which replays to them, `names.<shard>`.",
    },
];

/// What a NATS user may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// Subjects it may publish to.
    pub publish: Vec<String>,
    /// Of these, subjects it may not publish to: NATS' wildcards stand for whole tokens, so a prefix of consumer names cannot be allowed.
    pub publish_denied: Vec<String>,
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

/// Who has an API tells what it showed to whom.
const AUDITED_READS: &str = "mesh.*.audit.read";

/// The least a role needs in a cluster. Who serves one cluster has rights in that cluster only; who serves all, in all.
///
/// Returns `None` for an unknown role.
pub fn permissions(role: &str, cluster: &str) -> Option<Permissions> {
    if !ROLES.contains(&role) {
        return None;
    }
    let cluster = &subject::token(cluster);
    let mut publish: Vec<String> = match role {
        "admin" => {
            return Some(Permissions {
                publish: vec![">".into()],
                publish_denied: Vec::new(),
                subscribe: vec![">".into()],
            });
        }
        "hook" => hooks::JOB_HOOKS
            .iter()
            .chain(hooks::NODE_HOOKS)
            .map(|name| format!("mesh.{cluster}.hook.{name}"))
            .collect(),
        "ingest" => ["job", "user", "capture"]
            .map(|category| format!("slurm.{cluster}.{category}.>"))
            .into(),
        "node-watcher" => vec![
            format!("slurm.{cluster}.node.>"),
            // What slurmctld printed of nodes in a form that nobody knows.
            format!("slurm.{cluster}.capture.schema_drift.nodes"),
        ],
        "cost-engine" => vec![
            "slurm.*.cost.>".into(),
            "slurm.*.user.>".into(),
            AUDITED_READS.into(),
        ],
        "pending-explainer" => vec!["slurm.*.queue.>".into(), AUDITED_READS.into()],
        "ledger" => vec![
            AUDITED_READS.into(),
            "mesh.checkpoint.*".into(),
            "mesh.order.*".into(),
            "mesh.*.audit.history".into(),
            "mesh.*.audit.key".into(),
            "mesh.*.audit.retention".into(),
            "mesh.*.audit.replay".into(),
            "mesh.replay.>".into(),
            // What a replay told is taken away some time after its end.
            format!("$JS.API.STREAM.PURGE.{MESH_REPLAY}"),
            // What is gone from a stream before it was taken in; and what is there and was taken in by nobody.
            "slurm.*.capture.gap_opened.stream".into(),
            "slurm.*.capture.gap_closed.stream".into(),
            format!("$JS.API.STREAM.MSG.GET.{SLURM_EVENTS}"),
            format!("$JS.API.STREAM.MSG.GET.{MESH_AUDIT}"),
            // `smesh verify` compares the ledger with all that it has published.
            format!("$JS.API.DIRECT.GET.{MESH_CHECKPOINTS}"),
            // What it signed, which a database that was set back does not know.
            format!("$JS.API.STREAM.MSG.GET.{MESH_CHECKPOINTS}"),
            format!("$JS.API.STREAM.MSG.GET.{MESH_ORDER}"),
        ],
        // No more kinds: what the ledger tells of keys and archives is its own.
        "webhook-dispatcher" => vec![
            AUDITED_READS.into(),
            "mesh.*.audit.delivery".into(),
            "mesh.*.audit.webhook".into(),
        ],
        // No consumers: who may create one may take another's name, and a push consumer publishes wherever its creator says.
        "reader" => READ_BY_READERS
            .iter()
            .flat_map(|(stream, _)| read_directly(stream))
            .collect(),
        _ => Vec::new(),
    };
    let mut publish_denied = Vec::new();
    if role == "webhook-dispatcher" {
        for stream in [SLURM_EVENTS, MESH_REPLAY] {
            publish.extend(read_directly(stream));
            publish.extend([
                // The ephemeral consumer by which each dispatcher reads the stream. Nothing is acknowledged.
                format!("$JS.API.CONSUMER.CREATE.{stream}.*"),
                format!("$JS.API.CONSUMER.CREATE.{stream}.*.>"),
                format!("$JS.API.CONSUMER.INFO.{stream}.*"),
                format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.*"),
                // Its end, and the removal of the consumers that endpoints had in former versions.
                format!("$JS.API.CONSUMER.DELETE.{stream}.*"),
                format!("$JS.API.CONSUMER.LIST.{stream}"),
                // Only the leader knows that there is nothing more to read.
                format!("$JS.API.STREAM.MSG.GET.{stream}"),
            ]);
        }
        let of_others = CONSUMERS.iter().filter(|one| one.stream == SLURM_EVENTS);
        for other in of_others {
            let (stream, name) = (other.stream, other.of(cluster));
            publish_denied.extend([
                format!("$JS.API.CONSUMER.CREATE.{stream}.{name}"),
                format!("$JS.API.CONSUMER.CREATE.{stream}.{name}.>"),
                format!("$JS.API.CONSUMER.DELETE.{stream}.{name}"),
                format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}"),
            ]);
        }
    }
    // Its own consumers, by their exact names; it repairs them itself.
    for consumer in CONSUMERS.iter().filter(|consumer| consumer.name == role) {
        let (stream, name) = (consumer.stream, consumer.of(cluster));
        publish.extend([
            format!("$JS.API.CONSUMER.CREATE.{stream}.{name}"),
            format!("$JS.API.CONSUMER.DELETE.{stream}.{name}"),
            format!("$JS.API.STREAM.INFO.{stream}"),
            format!("$JS.API.CONSUMER.INFO.{stream}.{name}"),
            format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}"),
            format!("$JS.ACK.{stream}.{name}.>"),
            format!("$JS.ACK.*.*.{stream}.{name}.>"),
        ]);
    }
    let mut subscribe = vec![format!("{}.>", inbox_prefix(role))];
    if role == "reader" {
        let subjects = READ_BY_READERS.iter().flat_map(|(_, subjects)| *subjects);
        subscribe.extend(subjects.map(|&subject| subject.to_owned()));
    }
    for (bucket, written) in buckets_of(role) {
        publish.extend(read_directly(&format!("KV_{bucket}")));
        publish.push(format!("$JS.API.STREAM.MSG.GET.KV_{bucket}"));
        subscribe.push(format!("$KV.{bucket}.>"));
        publish.extend(match written {
            Written::Nothing => None,
            Written::Cluster => Some(format!("$KV.{bucket}.{cluster}.>")),
            Written::All => Some(format!("$KV.{bucket}.>")),
            Written::Own => Some(format!("$KV.{bucket}.{cluster}.{role}")),
        });
    }
    if role != "hook" && role != "reader" {
        publish.push(subject::dead(role));
    }
    publish.push("$JS.API.INFO".into());
    Some(Permissions {
        publish,
        publish_denied,
        subscribe,
    })
}

/// Streams that readers read, and the subjects by which they learn that there is more.
const READ_BY_READERS: &[(&str, &[&str])] = &[
    (SLURM_EVENTS, &["slurm.>"]),
    // Whoever keeps checkpoints elsewhere reads them here.
    (MESH_CHECKPOINTS, &["mesh.checkpoint.*"]),
    // Whoever asked for a replay follows it here.
    (MESH_REPLAY, &["mesh.replay.*.slurm.>"]),
];

/// What reading a stream without a consumer takes.
fn read_directly(stream: &str) -> [String; 3] {
    [
        format!("$JS.API.STREAM.INFO.{stream}"),
        format!("$JS.API.DIRECT.GET.{stream}"),
        format!("$JS.API.DIRECT.GET.{stream}.>"),
    ]
}

/// Which keys of a bucket a role writes.
enum Written {
    Nothing,
    /// Its own key of its cluster.
    Own,
    /// Those of its cluster.
    Cluster,
    All,
}

/// Buckets a role uses, and what it writes there.
fn buckets_of(role: &str) -> &'static [(&'static str, Written)] {
    match role {
        "ingest" => &[
            (BUCKET_INGEST, Written::Cluster),
            (BUCKET_USERS, Written::Cluster),
            (BUCKET_QUEUE, Written::Cluster),
            (BUCKET_EVIDENCE, Written::Cluster),
            (BUCKET_COORDINATORS, Written::Cluster),
            (BUCKET_LEASES, Written::Own),
        ],
        "node-watcher" => &[
            (BUCKET_NODES, Written::Cluster),
            (BUCKET_LEASES, Written::Own),
        ],
        "pending-explainer" => &[
            (BUCKET_EXPLAINER, Written::All),
            (BUCKET_QUEUE, Written::Nothing),
            (BUCKET_EVIDENCE, Written::Nothing),
            (BUCKET_COORDINATORS, Written::Nothing),
        ],
        "ledger" => &[
            (BUCKET_COORDINATORS, Written::Nothing),
            (BUCKET_WEBHOOKS, Written::Nothing),
        ],
        "cost-engine" => &[(BUCKET_COORDINATORS, Written::Nothing)],
        "webhook-dispatcher" => &[
            (BUCKET_WEBHOOKS, Written::All),
            (BUCKET_COORDINATORS, Written::Nothing),
        ],
        _ => &[],
    }
}
