//! Every role against every verb of JetStream's API, on a real server: it may publish exactly the subjects of this table.

use std::collections::BTreeSet;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, PullConsumer, pull};
use async_nats::jetstream::{self, consumer};
use futures_util::StreamExt as _;
use mesh_events::EventType::JobStarted;
use mesh_events::catalogue::{BUCKETS, DISPATCHER_CONSUMERS, ROLES, SLURM_EVENTS, STREAMS};
use mesh_testkit::NatsServer;
use mesh_testkit::fixtures::{job, job_event};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use crate::PATIENCE;
use crate::permissions::{async_nats_as, connect_as, users};

/// Verbs of a stream, as nats-server 2.15 has them.
const STREAM_VERBS: &[&str] = &[
    "STREAM.CREATE",
    "STREAM.UPDATE",
    "STREAM.INFO",
    "STREAM.DELETE",
    "STREAM.PURGE",
    "STREAM.SNAPSHOT",
    "STREAM.RESTORE",
    "STREAM.MSG.GET",
    "STREAM.MSG.DELETE",
    "STREAM.PEER.REMOVE",
    "STREAM.PEER.EVACUATE",
    "STREAM.LEADER.STEPDOWN",
    "CONSUMER.LIST",
    "CONSUMER.NAMES",
    "CONSUMER.CREATE",
    "DIRECT.GET",
];
/// Verbs of a consumer.
const CONSUMER_VERBS: &[&str] = &[
    "CONSUMER.CREATE",
    "CONSUMER.DURABLE.CREATE",
    "CONSUMER.DELETE",
    "CONSUMER.INFO",
    "CONSUMER.MSG.NEXT",
    "CONSUMER.PAUSE",
    "CONSUMER.RESET",
    "CONSUMER.UNPIN",
    "CONSUMER.LEADER.STEPDOWN",
    "CONSUMER.PEER.REMOVE",
    "CONSUMER.PEER.EVACUATE",
];
/// Subjects of no stream.
const OTHERS: &[&str] = &[
    "$JS.API.INFO",
    "$JS.API.STREAM.LIST",
    "$JS.API.STREAM.NAMES",
    "$JS.API.META.LEADER.STEPDOWN",
    "$JS.API.META.RESCUE",
    "$JS.API.SERVER.REMOVE",
    "$JS.API.SERVER.EVACUATE",
    "$JS.API.ACCOUNT.PURGE.$G",
    "$JS.API.ACCOUNT.PURGE.mesh",
    "$JS.API.ACCOUNT.STREAM.MOVE.$G.SLURM_EVENTS",
    "$SYS.REQ.SERVER.PING",
];
/// Consumers of every owner, and without an owner.
const CONSUMERS: &[&str] = &[
    "ledger",
    "cost-engine",
    "pending-explainer",
    "exporter",
    "workflow-trigger",
    "ingest-testbed",
    "ingest-elsewhere",
    "node-watcher-testbed",
    "node-watcher-elsewhere",
    "wh-0123456789ab",
    "webhook-dispatcher",
    "webhook-dispatcher-0",
    "webhook-dispatcher-f",
    "webhook-dispatcher-0f",
    "anything",
];

/// Whether a role owns a consumer of a stream.
fn owns(role: &str, stream: &str, consumer: &str) -> bool {
    matches!(
        (role, stream, consumer),
        ("ledger", "SLURM_EVENTS" | "MESH_AUDIT", "ledger")
            | ("cost-engine", "SLURM_EVENTS", "cost-engine")
            | ("pending-explainer", "SLURM_EVENTS", "pending-explainer")
            | ("exporter", "SLURM_EVENTS", "exporter")
            | (
                "workflow-trigger",
                "SLURM_EVENTS" | "MESH_IN",
                "workflow-trigger"
            )
            | ("ingest", "SLURM_EVENTS" | "MESH_HOOKS", "ingest-testbed")
            | ("node-watcher", "MESH_HOOKS", "node-watcher-testbed")
    )
}

/// The dispatcher reads by consumers of its own names, whatever the clusters are called.
fn is_of_dispatcher(role: &str, stream: &str, consumer: &str) -> bool {
    role == "webhook-dispatcher"
        && ["SLURM_EVENTS", "MESH_REPLAY"].contains(&stream)
        && ["webhook-dispatcher-0", "webhook-dispatcher-f"].contains(&consumer)
}

fn reads_bucket(role: &str, stream: &str) -> bool {
    matches!(
        (role, stream.trim_start_matches("KV_mesh_")),
        (
            "ingest",
            "ingest"
                | "users"
                | "queue"
                | "evidence"
                | "job_counts"
                | "listing"
                | "coordinators"
                | "leases"
        ) | ("node-watcher", "nodes" | "node_list" | "leases")
            | ("exporter", "job_counts" | "node_list")
            | (
                "pending-explainer",
                "explainer" | "queue" | "evidence" | "listing" | "coordinators" | "reads"
            )
            | ("cost-engine" | "webhook-dispatcher", "spending")
            | (
                "ledger" | "cost-engine" | "webhook-dispatcher" | "workflow-trigger",
                "coordinators" | "reads"
            )
            | ("ledger" | "webhook-dispatcher", "webhooks")
    ) && stream.starts_with("KV_")
}

fn may_with_stream(role: &str, verb: &str, stream: &str) -> bool {
    let is_dispatchers = is_of_dispatcher(role, stream, "webhook-dispatcher-0");
    // What it has done, after a loss of its database.
    let reads_audit =
        ["webhook-dispatcher", "workflow-trigger"].contains(&role) && stream == "MESH_AUDIT";
    let reads = role == "reader"
        && ["SLURM_EVENTS", "MESH_CHECKPOINTS", "MESH_REPLAY"].contains(&stream)
        || is_dispatchers
        || reads_audit;
    let consumes = CONSUMERS
        .iter()
        .any(|name| owns(role, stream, name) || is_of_dispatcher(role, stream, name));
    match verb {
        "STREAM.INFO" => reads || consumes || reads_bucket(role, stream),
        "DIRECT.GET" => {
            reads
                || reads_bucket(role, stream)
                || role == "ledger" && stream == "MESH_CHECKPOINTS"
                // What it published and had not stored before a crash.
                || matches!(role, "ingest" | "node-watcher") && stream == "SLURM_EVENTS"
        }
        "STREAM.MSG.GET" => {
            reads_bucket(role, stream)
                || is_dispatchers
                || reads_audit
                || role == "ledger"
                    && [
                        "SLURM_EVENTS",
                        "MESH_AUDIT",
                        "MESH_CHECKPOINTS",
                        "MESH_ORDER",
                    ]
                    .contains(&stream)
        }
        "CONSUMER.LIST" => is_dispatchers,
        "STREAM.PURGE" => role == "ledger" && stream == "MESH_REPLAY",
        _ => false,
    }
}

fn may_with_consumer(role: &str, verb: &str, stream: &str, consumer: &str) -> bool {
    let has = owns(role, stream, consumer) || is_of_dispatcher(role, stream, consumer);
    match verb {
        "CONSUMER.CREATE" | "CONSUMER.DELETE" | "CONSUMER.MSG.NEXT" => has,
        "ACK" => owns(role, stream, consumer),
        // With a filter in its subject.
        "CONSUMER.CREATE.>" => is_of_dispatcher(role, stream, consumer),
        // The owner compares its consumers with their declaration.
        "CONSUMER.INFO" => has,
        _ => false,
    }
}

fn may_write(role: &str, bucket: &str, key: &str) -> bool {
    match (role, bucket) {
        (
            "ingest",
            "mesh_ingest" | "mesh_users" | "mesh_queue" | "mesh_evidence" | "mesh_job_counts"
            | "mesh_listing" | "mesh_coordinators",
        )
        | ("node-watcher", "mesh_nodes" | "mesh_node_list") => key.starts_with("testbed."),
        ("ingest" | "node-watcher", "mesh_leases") => key == format!("testbed.{role}"),
        (
            "ledger" | "cost-engine" | "pending-explainer" | "webhook-dispatcher"
            | "workflow-trigger",
            "mesh_reads",
        ) => key
            .split_once('.')
            .is_some_and(|(_, own)| own.starts_with(&format!("{role}."))),
        ("pending-explainer", "mesh_explainer")
        | ("webhook-dispatcher", "mesh_webhooks")
        | ("cost-engine", "mesh_spending") => true,
        _ => false,
    }
}

/// Every subject to try, and whether a role may publish to it.
fn table(role: &str) -> Vec<(String, bool)> {
    let buckets = BUCKETS.iter().map(|bucket| format!("KV_{}", bucket.name));
    let streams: Vec<String> = STREAMS
        .iter()
        .map(|stream| stream.name.to_owned())
        .chain(buckets)
        .collect();
    let admin = role == "admin";
    let mut tried: Vec<(String, bool)> = OTHERS
        .iter()
        .map(|other| ((*other).to_owned(), false))
        .collect();
    for stream in &streams {
        for verb in STREAM_VERBS {
            let may = may_with_stream(role, verb, stream);
            tried.push((format!("$JS.API.{verb}.{stream}"), may));
        }
        for consumer in CONSUMERS {
            for verb in CONSUMER_VERBS {
                let may = may_with_consumer(role, verb, stream, consumer);
                tried.push((format!("$JS.API.{verb}.{stream}.{consumer}"), may));
            }
            let may = |verb| may_with_consumer(role, verb, stream, consumer);
            let filtered = format!("$JS.API.CONSUMER.CREATE.{stream}.{consumer}.slurm.x");
            tried.push((filtered, may("CONSUMER.CREATE.>")));
            for ack in ["$JS.ACK", "$JS.ACK._.hash"] {
                tried.push((format!("{ack}.{stream}.{consumer}.1.1.1.1.0"), may("ACK")));
            }
            tried.push((format!("$JS.FC.{stream}.{consumer}.x"), false));
        }
    }
    for bucket in BUCKETS {
        for key in [
            "testbed.0",
            "elsewhere.0",
            "testbed.ledger.0",
            "other.ledger.0",
            "testbed.cost-engine.0",
            "testbed.ingest",
            "testbed.node-watcher",
        ] {
            let may = may_write(role, bucket.name, key);
            tried.push((format!("$KV.{}.{key}", bucket.name), may));
        }
    }
    tried
        .into_iter()
        .map(|(subject, may)| (subject, may || admin))
        .collect()
}

/// Publishes an empty message to every subject, and returns the subjects that the server refused.
async fn refused(nats: &NatsServer, role: &str, subjects: &[String]) -> BTreeSet<String> {
    let address = nats.url().replace("nats://", "");
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    let mut text =
        format!("CONNECT {{\"user\":\"{role}\",\"pass\":\"{role}\",\"verbose\":false}}\r\n");
    for subject in subjects {
        text.push_str(&format!("PUB {subject} 0\r\n\r\n"));
    }
    text.push_str("PING\r\n");
    write.write_all(text.as_bytes()).await.unwrap();
    let mut refused = BTreeSet::new();
    while let Some(line) = lines.next_line().await.unwrap() {
        match line.split_once("Permissions Violation for Publish to \"") {
            Some((_, rest)) => refused.extend(rest.split('"').next().map(str::to_owned)),
            None if line == "PONG" => return refused,
            None => assert!(line.starts_with("INFO"), "{line}"),
        }
    }
    panic!("the server closed the connection");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_role_has_exactly_the_permissions_of_the_table() {
    // The server holds nothing that a verb could damage.
    let nats = NatsServer::start_with(&users()).await;
    for role in ROLES {
        let table = table(role);
        let subjects: Vec<String> = table.iter().map(|(subject, _)| subject.clone()).collect();
        let refused = refused(&nats, role, &subjects).await;
        let wrong: Vec<String> = table
            .iter()
            .filter(|(subject, may)| *may == refused.contains(subject))
            .map(|(subject, may)| {
                format!(
                    "{subject}: should be {}",
                    if *may { "allowed" } else { "refused" }
                )
            })
            .collect();
        assert!(wrong.is_empty(), "{role}:\n{}", wrong.join("\n"));
    }
}

/// Sends a request to JetStream's API; `None` if it is not answered.
async fn ask(client: &async_nats::Client, subject: &str, request: &Value) -> Option<Value> {
    let request = client.send_request(
        subject.to_owned(),
        async_nats::Request::new()
            .payload(request.to_string().into())
            .timeout(Some(Duration::from_millis(500))),
    );
    serde_json::from_slice(&request.await.ok()?.payload).ok()
}

async fn ledger_of(nats: &NatsServer) -> consumer::Config {
    let context = jetstream::new(async_nats_as(nats, "admin").await);
    let found: PullConsumer = context
        .get_consumer_from_stream("ledger", SLURM_EVENTS)
        .await
        .unwrap();
    consumer::Config {
        metadata: Default::default(),
        ..found.cached_info().config.clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_other_role_changes_steals_from_or_deletes_the_consumer_of_the_ledger() {
    let nats = NatsServer::start_with(&users()).await;
    connect_as(&nats, "admin").await;
    let ingest = connect_as(&nats, "ingest").await;
    ingest
        .publish(&job_event(JobStarted, job(1)))
        .await
        .unwrap();
    let before = ledger_of(&nats).await;
    let stolen = |name: &str| json!({"stream_name": SLURM_EVENTS, "config": {"name": name, "ack_policy": "explicit", "filter_subject": "nothing"}});
    for role in [
        "reader",
        "webhook-dispatcher",
        "hook",
        "ingest",
        "cost-engine",
    ] {
        let mut options =
            async_nats::ConnectOptions::with_user_and_password(role.into(), role.into());
        options = options.custom_inbox_prefix(format!("_INBOX_{role}"));
        let client = options.connect(nats.url()).await.unwrap();
        for (subject, request) in [
            // Without a name in its subject, the server takes the one of the body.
            ("CONSUMER.CREATE.SLURM_EVENTS", stolen("ledger")),
            ("CONSUMER.CREATE.SLURM_EVENTS.ledger", stolen("ledger")),
            (
                "CONSUMER.CREATE.SLURM_EVENTS.wh-0123456789ab",
                stolen("ledger"),
            ),
            ("CONSUMER.DELETE.SLURM_EVENTS.ledger", json!({})),
            (
                "CONSUMER.MSG.NEXT.SLURM_EVENTS.ledger",
                json!({"batch": 1, "no_wait": true}),
            ),
        ] {
            let subject = format!("$JS.API.{subject}");
            let answer = ask(&client, &subject, &request).await;
            // Of two names the server takes that of the subject, to which the rights apply.
            let named = answer.as_ref().map(|answer| answer["name"].clone());
            assert_ne!(named, Some(json!("ledger")), "{role} {subject}: {answer:?}");
        }
        client.flush().await.unwrap();
        let after = ledger_of(&nats).await;
        assert_eq!(after, before, "{role}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatcher_touches_no_consumer_but_its_own_also_of_clusters_that_nobody_named() {
    let nats = NatsServer::start_with(&users()).await;
    let admin = connect_as(&nats, "admin").await;
    let context = jetstream::new(async_nats_as(&nats, "admin").await);
    // `users` names one cluster, testbed.
    let others = ["ledger", "ingest-west", "wh-0123456789ab", "of-the-site"];
    for name in &others[1..] {
        let config = pull::Config {
            durable_name: Some((*name).into()),
            ack_policy: AckPolicy::Explicit,
            ..Default::default()
        };
        let created = context.create_consumer_on_stream(config, SLURM_EVENTS);
        created.await.unwrap();
    }
    let client = async_nats::ConnectOptions::with_user_and_password(
        "webhook-dispatcher".into(),
        "webhook-dispatcher".into(),
    )
    .custom_inbox_prefix("_INBOX_webhook-dispatcher")
    .connect(nats.url())
    .await
    .unwrap();
    for name in others {
        let config = json!({"name": name, "durable_name": name, "ack_policy": "explicit", "filter_subject": "slurm.x"});
        let change = json!({"stream_name": SLURM_EVENTS, "config": config});
        for (subject, request) in [
            (format!("DELETE.{SLURM_EVENTS}.{name}"), json!({})),
            (format!("CREATE.{SLURM_EVENTS}.{name}"), change.clone()),
            (format!("CREATE.{SLURM_EVENTS}.{name}.slurm.x"), change),
        ] {
            let subject = format!("$JS.API.CONSUMER.{subject}");
            assert_eq!(ask(&client, &subject, &request).await, None, "{subject}");
        }
        let found: PullConsumer = context
            .get_consumer_from_stream(name, SLURM_EVENTS)
            .await
            .unwrap();
        assert_eq!(found.cached_info().config.filter_subject, "", "{name}");
    }
    // It reads the positions of former consumers, which the server deletes once nobody reads them.
    let dispatcher = connect_as(&nats, "webhook-dispatcher").await;
    let former = dispatcher.legacy_consumers().await.unwrap();
    let names: Vec<&str> = former.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["wh-0123456789ab"]);
    admin.provision().await.unwrap();
    let found: PullConsumer = context
        .get_consumer_from_stream("wh-0123456789ab", SLURM_EVENTS)
        .await
        .unwrap();
    let threshold = found.cached_info().config.inactive_threshold;
    assert_eq!(threshold, Duration::from_secs(14 * 24 * 3600));
    admin.delete_legacy_consumer(&former[0]).await.unwrap();
    assert!(dispatcher.legacy_consumers().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn dispatchers_share_the_names_of_their_consumers() {
    let nats = NatsServer::start_with(&users()).await;
    connect_as(&nats, "admin").await;
    let ingest = connect_as(&nats, "ingest").await;
    let dispatcher = connect_as(&nats, "webhook-dispatcher").await;
    let limit = usize::from(DISPATCHER_CONSUMERS);
    let mut readers = Vec::new();
    for _ in 0..limit {
        readers.push(Box::pin(
            dispatcher.messages_from(SLURM_EVENTS, 1).await.unwrap(),
        ));
    }
    let full = dispatcher.messages_from(SLURM_EVENTS, 1).await.err();
    let full = full.unwrap();
    assert!(format!("{full:?}").contains("in use"), "{full:?}");
    // Each has every message.
    ingest
        .publish(&job_event(JobStarted, job(1)))
        .await
        .unwrap();
    for reader in &mut readers {
        let batch = tokio::time::timeout(PATIENCE, reader.next()).await;
        assert_eq!(batch.unwrap().unwrap().len(), 1);
    }
    // The name of one that ended is free at once.
    readers.pop();
    let again = async {
        while dispatcher.messages_from(SLURM_EVENTS, 1).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), again)
        .await
        .unwrap();
}
