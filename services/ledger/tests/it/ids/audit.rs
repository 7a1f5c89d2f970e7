//! The same for every kind of audit entry.

use std::path::Path;

use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::proto::mesh::audit::v1::{
    AuditEntry, BudgetChanged, CostPeriodClosed, Delivery, LedgerHistory, PayloadsDropped, Read,
    Replay, SigningKeyMade, TriggerActed, WebhookChanged,
};
use mesh_events::{subject, timestamp};
use mesh_testkit::NatsServer;
use mesh_testkit::fixtures::{self, CLUSTER};
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use super::{computed, exported};
use crate::support::{Database, Process, bus};

fn kind_of(act: &Act) -> &'static str {
    match act {
        Act::Delivery(_) => "delivery",
        Act::Read(_) => "read",
        Act::Key(_) => "key",
        Act::Retention(_) => "retention",
        Act::Replay(_) => "replay",
        Act::Webhook(_) => "webhook",
        Act::History(_) => "history",
        Act::Trigger(_) => "trigger",
        Act::Cost(_) => "cost",
        Act::Budget(_) => "budget",
    }
}

/// The names of the acts in the definition.
fn kinds() -> Vec<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto/mesh/audit/v1/audit.proto");
    let text = std::fs::read_to_string(file).unwrap();
    let (_, acts) = text.split_once("oneof act {").unwrap();
    let (acts, _) = acts.split_once('}').unwrap();
    let field = |line: &str| {
        let (name, _) = line.trim().split_once(" = ")?;
        Some(name.rsplit(' ').next().unwrap().to_owned())
    };
    acts.lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .filter_map(field)
        .collect()
}

/// The rule of the page: a UUID of version 8 from the fields.
fn id(fields: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for field in fields {
        hash.update(u32::try_from(field.len()).unwrap().to_be_bytes());
        hash.update(field);
    }
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.finalize()[..16]);
    let builder = uuid::Builder::from_custom_bytes(bytes);
    builder.into_uuid().to_string()
}

fn random(number: u8) -> String {
    let builder = uuid::Builder::from_random_bytes([number; 16]);
    builder.into_uuid().to_string()
}

/// Acts of all kinds, each with every way in which its id may come about.
fn acts() -> Vec<(String, Act)> {
    let event = |event_id: &str, round| {
        Act::Delivery(Delivery {
            endpoint: "alice/ci".into(),
            event_id: event_id.into(),
            round,
            ..Delivery::default()
        })
    };
    let delivery = b"slurm-mesh/delivery/1".as_slice();
    let read = |replay_id: &str, phase: &str| {
        Act::Read(Read {
            replay_id: replay_id.into(),
            phase: phase.into(),
            ..Read::default()
        })
    };
    let replay = b"slurm-mesh/replay/1".as_slice();
    let erased = PayloadsDropped {
        first_seq: 1,
        last_seq: 300,
        ..PayloadsDropped::default()
    };
    let archived = PayloadsDropped {
        file: "ledger-1-300.ndjson.gz".into(),
        sha256: "07".repeat(32),
        ..erased.clone()
    };
    let range = [1_u64, 300].map(u64::to_be_bytes);
    let range = |sha256| id(&[b"slurm-mesh/retention/1", &range[0], &range[1], sha256]);
    let of_replay = Replay {
        replay_id: "r1".into(),
        phase: "started".into(),
        ..Replay::default()
    };
    let resumed = LedgerHistory {
        what: "resumed".into(),
        origin: "example.org/l".into(),
        checkpoint: "note".into(),
        entries: 7,
        ..LedgerHistory::default()
    };
    let key = SigningKeyMade {
        vkey: "example.org/l+1+k".into(),
        ..SigningKeyMade::default()
    };
    vec![
        (id(&[delivery, b"alice/ci", b"e"]), event("e", 0)),
        (id(&[delivery, b"alice/ci", b"e#2"]), event("e", 2)),
        (random(1), read("", "answer")),
        (
            id(&[replay, b"r1", b"read", b"started"]),
            read("r1", "started"),
        ),
        (
            id(&[b"slurm-mesh/key/1", key.vkey.as_bytes()]),
            Act::Key(key),
        ),
        (range(&[]), Act::Retention(erased)),
        (range(&[7; 32]), Act::Retention(archived)),
        (
            id(&[replay, b"r1", b"replay", b"started"]),
            Act::Replay(of_replay),
        ),
        (random(2), Act::Webhook(WebhookChanged::default())),
        (
            id(&[
                b"slurm-mesh/history/1",
                b"resumed",
                b"example.org/l",
                b"note",
                b"7",
            ]),
            Act::History(resumed),
        ),
        (random(3), Act::Trigger(TriggerActed::default())),
        (random(4), Act::Cost(CostPeriodClosed::default())),
        (random(5), Act::Budget(BudgetChanged::default())),
    ]
}

fn entry(id: String, kind: &str, act: Act) -> AuditEntry {
    AuditEntry {
        id,
        cluster: CLUSTER.into(),
        kind: kind.into(),
        at: Some(timestamp(fixtures::submit_time())),
        service: "test".into(),
        act: Some(act),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_of_every_audit_kind_are_computed_from_the_page() {
    let (acts, kinds) = (acts(), kinds());
    assert!(kinds.len() >= 10, "{kinds:?}");
    for kind in &kinds {
        let has_one = acts.iter().any(|(_, act)| kind_of(act) == kind);
        assert!(has_one, "no act of kind {kind}");
    }
    let nats = NatsServer::start().await;
    let database = Database::sqlite();
    let process = Process::start(&nats, &database).await;
    let bus = bus(&nats, "admin").await;
    let count = acts.len();
    let publish = async |entry: AuditEntry| {
        let subject = subject::audit(CLUSTER, &entry.kind);
        let sent = bus.publish_raw(subject, &entry.id, entry.encode_to_vec());
        sent.await.unwrap();
    };
    for (id, act) in acts {
        publish(entry(id, kind_of(&act), act)).await;
    }
    let (text, keys) = exported(&process, count).await;
    let (is_computed, printed) = computed(&text, &keys);
    assert!(is_computed, "{printed}");
    for kind in kinds {
        let line = format!("audit: {kind}");
        assert!(printed.contains(&line), "{line}: {printed}");
    }
    // What the page does not have is a difference.
    let webhook = Act::Webhook(WebhookChanged::default());
    publish(entry(random(6), "mystery", webhook)).await;
    let mut text = text;
    process
        .until("it is signed", async |process| {
            text = process.get("/v1/ledger/export").await.unwrap_or_default();
            text.contains("audit.mystery")
        })
        .await;
    let (is_computed, printed) = computed(&text, &keys);
    assert!(
        !is_computed && printed.contains("the page has kind mystery"),
        "{printed}"
    );
}
