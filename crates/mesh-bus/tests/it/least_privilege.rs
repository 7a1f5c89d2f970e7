//! Every role tries the subjects of all others, against a real server: what arrives is exactly what the tables below allow.

use std::collections::BTreeSet;

use futures_util::{FutureExt as _, StreamExt as _};
use mesh_events::catalogue::{ROLES, inbox_prefix};
use mesh_testkit::NatsServer;

use crate::permissions::{async_nats_as, users};

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
    ("_INBOX_hook.x", &["hook"]),
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

/// Waits for an answer of the server, which has then handled all that the client sent, and the client all that was sent to it.
async fn settled(client: &async_nats::Client, role: &str) {
    let inbox = format!("{}.settled", inbox_prefix(role));
    let mut answers = client.subscribe(inbox.clone()).await.unwrap();
    client
        .publish_with_reply("$JS.API.INFO", inbox, "".into())
        .await
        .unwrap();
    answers.next().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_role_publishes_what_belongs_to_another() {
    let nats = NatsServer::start_with(&users()).await;
    let admin = async_nats_as(&nats, "admin").await;
    let mut all = admin.subscribe(">").await.unwrap();
    settled(&admin, "admin").await;
    for role in ROLES {
        let client = async_nats_as(&nats, role).await;
        for (subject, _) in PUBLISHERS {
            client.publish(*subject, (*role).into()).await.unwrap();
        }
        settled(&client, role).await;
    }
    admin.publish("end", "".into()).await.unwrap();
    let mut arrived = Pairs::new();
    while let Some(message) = all.next().await {
        if message.subject.as_str() == "end" {
            break;
        }
        let role = String::from_utf8_lossy(&message.payload).into_owned();
        if ROLES.contains(&role.as_str()) {
            arrived.insert((message.subject.to_string(), role));
        }
    }
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
    let admin = async_nats_as(&nats, "admin").await;
    let mut subscriptions = Vec::new();
    for role in ROLES {
        let client = async_nats_as(&nats, role).await;
        for (subject, _) in SUBSCRIBERS {
            let messages = client.subscribe(*subject).await.unwrap();
            subscriptions.push((client.clone(), *role, *subject, messages));
        }
        settled(&client, role).await;
    }
    for (subject, _) in SUBSCRIBERS {
        admin.publish(*subject, "x".into()).await.unwrap();
    }
    settled(&admin, "admin").await;
    let mut received = Pairs::new();
    for (client, role, subject, mut messages) in subscriptions {
        settled(&client, role).await;
        if messages.next().now_or_never().flatten().is_some() {
            received.insert((subject.to_owned(), role.to_owned()));
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
