//! Every role tries the subjects of all others, against a real server: what arrives is exactly what the tables below allow.

use std::collections::BTreeSet;

use mesh_events::catalogue::ROLES;
use mesh_testkit::NatsServer;

use crate::permissions::users;
use crate::raw::Raw;

/// Subjects, and the roles that may publish there, besides `admin`. `rights.rs` has those of buckets and of JetStream's API.
const PUBLISHERS: &[(&str, &[&str])] = &[
    ("mesh.testbed.hook.PrologSlurmctld", &["hook"]),
    ("mesh.elsewhere.hook.PrologSlurmctld", &[]),
    ("slurm.testbed.job.started.1", &["ingest"]),
    ("slurm.elsewhere.job.started.1", &[]),
    (
        "slurm.testbed.user.access_granted.alice",
        &["ingest", "cost-engine"],
    ),
    ("slurm.testbed.node.down.n1", &["node-watcher"]),
    ("slurm.elsewhere.node.down.n1", &[]),
    ("slurm.testbed.cost.final.1", &["cost-engine"]),
    ("slurm.testbed.queue.explained.1", &["pending-explainer"]),
    (
        "slurm.testbed.capture.gap_closed.state",
        &["ingest", "node-watcher"],
    ),
    (
        "slurm.testbed.capture.gap_opened.stream",
        &["ingest", "ledger"],
    ),
    (
        "mesh.testbed.audit.read",
        &[
            "cost-engine",
            "ledger",
            "webhook-dispatcher",
            "pending-explainer",
            "workflow-trigger",
        ],
    ),
    ("mesh.testbed.audit.trigger", &["workflow-trigger"]),
    ("mesh.testbed.audit.cost", &["cost-engine"]),
    ("mesh.testbed.audit.delivery", &["webhook-dispatcher"]),
    ("mesh.testbed.audit.webhook", &["webhook-dispatcher"]),
    ("mesh.testbed.audit.key", &["ledger"]),
    ("mesh.testbed.audit.retention", &["ledger"]),
    ("mesh.checkpoint.x", &["ledger"]),
    ("mesh.order.x", &["ledger"]),
    ("mesh.replay.x.slurm.testbed.job.started.1", &["ledger"]),
    ("mesh.dead.ingest", &["ingest"]),
    ("mesh.dead.ledger", &["ledger"]),
    ("mesh.dead.exporter", &["exporter"]),
    ("mesh.dead.workflow-trigger", &["workflow-trigger"]),
    ("_INBOX_ledger.x", &[]),
    ("site.other", &[]),
];

/// Subjects, and the roles that may receive their messages, besides `admin`.
const SUBSCRIBERS: &[(&str, &[&str])] = &[
    ("slurm.testbed.job.started.1", &["reader"]),
    ("mesh.testbed.hook.PrologSlurmctld", &[]),
    ("mesh.testbed.audit.read", &[]),
    ("mesh.checkpoint.x", &["reader"]),
    ("mesh.order.x", &[]),
    ("mesh.dead.ingest", &[]),
    ("$KV.mesh_ingest.testbed.0", &["ingest"]),
    ("$KV.mesh_users.testbed.0", &["ingest"]),
    ("$KV.mesh_queue.testbed.0", &["ingest", "pending-explainer"]),
    ("$KV.mesh_job_counts.testbed.0", &["ingest", "exporter"]),
    (
        "$KV.mesh_node_list.testbed.0",
        &["node-watcher", "exporter"],
    ),
    ("$KV.mesh_nodes.testbed.0", &["node-watcher"]),
    ("$KV.mesh_explainer.testbed.0", &["pending-explainer"]),
    (
        "$KV.mesh_spending.x",
        &["cost-engine", "webhook-dispatcher"],
    ),
    ("$KV.mesh_webhooks.x", &["ledger", "webhook-dispatcher"]),
    (
        "$KV.mesh_reads.testbed.ledger.0",
        &[
            "cost-engine",
            "ledger",
            "pending-explainer",
            "webhook-dispatcher",
            "workflow-trigger",
        ],
    ),
    (
        "$KV.mesh_leases.testbed.ingest",
        &["ingest", "node-watcher"],
    ),
    (
        "$KV.mesh_coordinators.testbed.0",
        &[
            "ingest",
            "cost-engine",
            "ledger",
            "pending-explainer",
            "webhook-dispatcher",
            "workflow-trigger",
        ],
    ),
    ("_INBOX_ledger.x", &["ledger"]),
    // In another account.
    ("_INBOX_hook.x", &[]),
    ("$JS.API.STREAM.INFO.SLURM_EVENTS", &[]),
    ("site.other", &[]),
];

type Pairs = BTreeSet<(String, String)>;

fn expected(table: &[(&str, &[&str])]) -> Pairs {
    let mut pairs = Pairs::new();
    for (subject, roles) in table {
        for role in roles.iter().chain(&["admin"]) {
            pairs.insert(((*subject).to_owned(), (*role).to_owned()));
        }
    }
    pairs
}

#[tokio::test(flavor = "multi_thread")]
async fn no_role_publishes_what_belongs_to_another() {
    let nats = NatsServer::start_with(&users()).await;
    let mut admin = Raw::connect(&nats, "admin").await;
    admin.subscribe(">", 1).await;
    admin.settled().await;
    for role in ROLES {
        let mut client = Raw::connect(&nats, role).await;
        for (subject, _) in PUBLISHERS {
            client.publish(subject, "", role).await;
        }
        client.settled().await;
    }
    let arrived: Pairs = (admin.settled().await.messages.into_iter())
        .filter(|message| ROLES.contains(&message.body.as_str()))
        .map(|message| (message.subject, message.body))
        .collect();
    let expected = expected(PUBLISHERS);
    let too_much: Vec<_> = arrived.difference(&expected).collect();
    let missing: Vec<_> = expected.difference(&arrived).collect();
    assert!(
        too_much.is_empty() && missing.is_empty(),
        "too much: {too_much:?}; missing: {missing:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn no_role_receives_what_belongs_to_another() {
    let nats = NatsServer::start_with(&users()).await;
    let mut clients = Vec::new();
    for role in ROLES {
        let mut client = Raw::connect(&nats, role).await;
        for (id, (subject, _)) in SUBSCRIBERS.iter().enumerate() {
            client.subscribe(subject, id).await;
        }
        client.settled().await;
        clients.push((*role, client));
    }
    let mut admin = Raw::connect(&nats, "admin").await;
    for (subject, _) in SUBSCRIBERS {
        admin.publish(subject, "", "x").await;
    }
    admin.settled().await;
    let mut received = Pairs::new();
    for (role, mut client) in clients {
        for message in client.settled().await.messages {
            received.insert((message.subject, role.to_owned()));
        }
    }
    let expected = expected(SUBSCRIBERS);
    let too_much: Vec<_> = received.difference(&expected).collect();
    let missing: Vec<_> = expected.difference(&received).collect();
    assert!(
        too_much.is_empty() && missing.is_empty(),
        "too much: {too_much:?}; missing: {missing:?}"
    );
}
