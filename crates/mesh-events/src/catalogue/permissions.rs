//! What each NATS user may publish and subscribe to.

use super::{
    BUCKET_COORDINATORS, BUCKET_EVIDENCE, BUCKET_EXPLAINER, BUCKET_INGEST, BUCKET_JOB_COUNTS,
    BUCKET_LEASES, BUCKET_LISTING, BUCKET_NODE_LIST, BUCKET_NODES, BUCKET_QUEUE, BUCKET_READS,
    BUCKET_SPENDING, BUCKET_USERS, BUCKET_WEBHOOKS, CONSUMERS, Consumer, MESH_AUDIT,
    MESH_CHECKPOINTS, MESH_ORDER, MESH_REPLAY, SLURM_EVENTS, dispatcher_consumers,
};
use crate::{hooks, subject};

/// What a NATS user may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    "exporter",
    "workflow-trigger",
    "reader",
];

/// Subject of the audit entries on reads of other people's data. Every service with an API publishes them.
const AUDITED_READS: &str = "mesh.*.audit.read";

/// Streams that readers read, and the subjects by which they learn of new messages.
pub(super) const READER_STREAMS: &[(&str, &[&str])] = &[
    (SLURM_EVENTS, &["slurm.>"]),
    // For copies of checkpoints on other hosts.
    (MESH_CHECKPOINTS, &["mesh.checkpoint.*"]),
    // For whoever started a replay.
    (MESH_REPLAY, &["mesh.replay.*.slurm.>"]),
];

/// Prefix of the inbox of a role; no role reads another's answers.
pub fn inbox_prefix(role: &str) -> String {
    format!("_INBOX_{role}")
}

/// The least a role needs in a cluster. Who serves one cluster has rights in that cluster only; who serves all, in all.
///
/// Returns `None` for an unknown role.
pub fn permissions(role: &str, cluster: &str) -> Option<Permissions> {
    if !ROLES.contains(&role) {
        return None;
    }
    if role == "admin" {
        return Some(Permissions {
            publish: vec![">".into()],
            subscribe: vec![">".into()],
        });
    }
    let cluster = &subject::token(cluster);
    let mut permissions = Permissions {
        publish: published_subjects(role, cluster),
        subscribe: vec![format!("{}.>", inbox_prefix(role))],
    };
    match role {
        // What they published and had not stored before a crash.
        "ingest" | "node-watcher" => permissions
            .publish
            .push(format!("$JS.API.DIRECT.GET.{SLURM_EVENTS}")),
        "ledger" => permissions.publish.extend(ledger_api()),
        "webhook-dispatcher" => permissions.publish.extend(dispatcher_api()),
        // What it has done, after a loss of its database.
        "workflow-trigger" => permissions.publish.extend(audit_api()),
        "reader" => permissions.read_streams(),
        _ => {}
    }
    for consumer in CONSUMERS.iter().filter(|consumer| consumer.name == role) {
        permissions.publish.extend(consumer_api(consumer, cluster));
    }
    for (bucket, access) in buckets_of(role) {
        permissions.use_bucket(bucket, *access, role, cluster);
    }
    if role != "hook" && role != "reader" {
        permissions.publish.push(subject::dead(role));
    }
    Some(permissions)
}

/// The events, doorbells and audit entries that a role publishes.
fn published_subjects(role: &str, cluster: &str) -> Vec<String> {
    match role {
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
            // Node records in an unknown form.
            format!("slurm.{cluster}.capture.schema_drift.nodes"),
            // Its stored state could not be read.
            format!("slurm.{cluster}.capture.gap_closed.state"),
        ],
        "cost-engine" => vec![
            "slurm.*.cost.>".into(),
            "slurm.*.user.>".into(),
            AUDITED_READS.into(),
            "mesh.*.audit.cost".into(),
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
            // Messages that a stream lost before the ledger stored them, and messages that it found later.
            "slurm.*.capture.gap_opened.stream".into(),
            "slurm.*.capture.gap_closed.stream".into(),
        ],
        // No other kinds of audit entries: those on keys and archives are the ledger's alone.
        "webhook-dispatcher" => vec![
            AUDITED_READS.into(),
            "mesh.*.audit.delivery".into(),
            "mesh.*.audit.webhook".into(),
        ],
        "workflow-trigger" => vec![
            AUDITED_READS.into(),
            "mesh.*.audit.trigger".into(),
            "mesh.*.in.*".into(),
            "slurm.*.user.notified.*".into(),
            "slurm.*.user.approval_requested.*".into(),
        ],
        _ => Vec::new(),
    }
}

/// What the ledger asks of JetStream beside its consumers.
fn ledger_api() -> Vec<String> {
    vec![
        // A replay's messages are removed some time after its end.
        format!("$JS.API.STREAM.PURGE.{MESH_REPLAY}"),
        // It looks for messages that are in a stream and not in the ledger.
        format!("$JS.API.STREAM.MSG.GET.{SLURM_EVENTS}"),
        format!("$JS.API.STREAM.MSG.GET.{MESH_AUDIT}"),
        // `smesh verify` compares the ledger with every checkpoint it has published.
        format!("$JS.API.DIRECT.GET.{MESH_CHECKPOINTS}"),
        // Checkpoints that it signed and that a restored database lacks.
        format!("$JS.API.STREAM.MSG.GET.{MESH_CHECKPOINTS}"),
        format!("$JS.API.STREAM.MSG.GET.{MESH_ORDER}"),
    ]
}

/// What webhook-dispatcher asks of JetStream.
fn dispatcher_api() -> Vec<String> {
    let of_stream = |stream| {
        let mut api = read_directly(stream).to_vec();
        api.extend(dispatcher_consumers().flat_map(|name| dispatcher_consumer(stream, &name)));
        api.extend([
            // Positions of the consumers that endpoints had in former versions.
            format!("$JS.API.CONSUMER.LIST.{stream}"),
            // Only the leader knows whether there are further messages.
            format!("$JS.API.STREAM.MSG.GET.{stream}"),
        ]);
        api
    };
    let mut api: Vec<String> = [SLURM_EVENTS, MESH_REPLAY]
        .into_iter()
        .flat_map(of_stream)
        .collect();
    // What it has delivered, after a loss of its database.
    api.extend(audit_api());
    api
}

/// Reading the audit.
fn audit_api() -> Vec<String> {
    let mut api = read_directly(MESH_AUDIT).to_vec();
    // Only the leader knows whether there are further messages.
    api.push(format!("$JS.API.STREAM.MSG.GET.{MESH_AUDIT}"));
    api
}

/// Reading a stream by a consumer of this exact name. Nothing is acknowledged.
fn dispatcher_consumer(stream: &str, name: &str) -> [String; 5] {
    [
        format!("$JS.API.CONSUMER.CREATE.{stream}.{name}"),
        format!("$JS.API.CONSUMER.CREATE.{stream}.{name}.>"),
        format!("$JS.API.CONSUMER.INFO.{stream}.{name}"),
        format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}"),
        format!("$JS.API.CONSUMER.DELETE.{stream}.{name}"),
    ]
}

/// What a service asks of its own consumer, by its exact name. It also repairs it.
fn consumer_api(consumer: &Consumer, cluster: &str) -> [String; 7] {
    let (stream, name) = (consumer.stream, consumer.of(cluster));
    [
        format!("$JS.API.CONSUMER.CREATE.{stream}.{name}"),
        format!("$JS.API.CONSUMER.DELETE.{stream}.{name}"),
        format!("$JS.API.STREAM.INFO.{stream}"),
        format!("$JS.API.CONSUMER.INFO.{stream}.{name}"),
        format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}"),
        format!("$JS.ACK.{stream}.{name}.>"),
        format!("$JS.ACK.*.*.{stream}.{name}.>"),
    ]
}

/// Reading a stream without a consumer.
pub(super) fn read_directly(stream: &str) -> [String; 3] {
    [
        format!("$JS.API.STREAM.INFO.{stream}"),
        format!("$JS.API.DIRECT.GET.{stream}"),
        format!("$JS.API.DIRECT.GET.{stream}.>"),
    ]
}

/// Subject in the account of readers of what is `$JS.API.STREAM.INFO` in that of the services. The server rewrites one to the other.
pub(super) fn reader_info(stream: &str) -> String {
    format!("mesh.info.{stream}")
}

impl Permissions {
    /// Reading as readers do. They have no consumers: who may create one may take another's name, and a push consumer publishes wherever its
    /// creator says.
    fn read_streams(&mut self) {
        for (stream, subjects) in READER_STREAMS {
            self.publish.extend(read_directly(stream));
            self.publish.push(reader_info(stream));
            self.subscribe
                .extend(subjects.iter().map(|&subject| subject.to_owned()));
        }
    }

    fn use_bucket(&mut self, bucket: &str, access: BucketAccess, role: &str, cluster: &str) {
        self.publish.extend(read_directly(&format!("KV_{bucket}")));
        self.publish
            .push(format!("$JS.API.STREAM.MSG.GET.KV_{bucket}"));
        self.subscribe.push(format!("$KV.{bucket}.>"));
        self.publish.extend(match access {
            BucketAccess::Read => None,
            BucketAccess::WriteOwnKey => Some(format!("$KV.{bucket}.{cluster}.{role}")),
            BucketAccess::WriteOwnKeys => Some(format!("$KV.{bucket}.*.{role}.>")),
            BucketAccess::WriteCluster => Some(format!("$KV.{bucket}.{cluster}.>")),
            BucketAccess::WriteAll => Some(format!("$KV.{bucket}.>")),
        });
    }
}

/// What a role does with a bucket. Whoever writes reads too.
#[derive(Clone, Copy)]
enum BucketAccess {
    Read,
    /// Writes its own key of its cluster.
    WriteOwnKey,
    /// Writes its own keys, under any cluster: one user of the role serves all.
    WriteOwnKeys,
    /// Writes the keys of its cluster.
    WriteCluster,
    WriteAll,
}

/// Buckets a role uses.
fn buckets_of(role: &str) -> &'static [(&'static str, BucketAccess)] {
    use BucketAccess::{Read, WriteAll, WriteCluster, WriteOwnKey, WriteOwnKeys};
    match role {
        "ingest" => &[
            (BUCKET_INGEST, WriteCluster),
            (BUCKET_USERS, WriteCluster),
            (BUCKET_QUEUE, WriteCluster),
            (BUCKET_EVIDENCE, WriteCluster),
            (BUCKET_JOB_COUNTS, WriteCluster),
            (BUCKET_LISTING, WriteCluster),
            (BUCKET_COORDINATORS, WriteCluster),
            (BUCKET_LEASES, WriteOwnKey),
        ],
        "node-watcher" => &[
            (BUCKET_NODES, WriteCluster),
            (BUCKET_NODE_LIST, WriteCluster),
            (BUCKET_LEASES, WriteOwnKey),
        ],
        "exporter" => &[(BUCKET_JOB_COUNTS, Read), (BUCKET_NODE_LIST, Read)],
        "pending-explainer" => &[
            (BUCKET_EXPLAINER, WriteAll),
            (BUCKET_QUEUE, Read),
            (BUCKET_EVIDENCE, Read),
            (BUCKET_LISTING, Read),
            (BUCKET_COORDINATORS, Read),
            (BUCKET_READS, WriteOwnKeys),
        ],
        "ledger" => &[
            (BUCKET_COORDINATORS, Read),
            (BUCKET_WEBHOOKS, Read),
            (BUCKET_READS, WriteOwnKeys),
        ],
        "cost-engine" => &[
            (BUCKET_SPENDING, WriteAll),
            (BUCKET_COORDINATORS, Read),
            (BUCKET_READS, WriteOwnKeys),
        ],
        "workflow-trigger" => &[(BUCKET_COORDINATORS, Read), (BUCKET_READS, WriteOwnKeys)],
        "webhook-dispatcher" => &[
            (BUCKET_WEBHOOKS, WriteAll),
            (BUCKET_SPENDING, Read),
            (BUCKET_COORDINATORS, Read),
            (BUCKET_READS, WriteOwnKeys),
        ],
        _ => &[],
    }
}
