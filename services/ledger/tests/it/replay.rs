//! Recorded events are published again: unchanged, only to permitted receivers, once, and
//! completely.

mod endpoints;
mod recovery;
mod requests;

use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream;
use async_nats::jetstream::stream::RawMessageErrorKind;
use axum::Extension;
use ledger::Store;
use ledger::api::{Replays, replay_router};
use ledger::domain::replay::ReplayLimits;
use ledger::replayer::Replayer;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, audit_entry::Act};
use mesh_events::{Event, EventType, subject};
use mesh_runtime::api::Caller;
use mesh_testkit::fixtures::{self, CLUSTER};
use mesh_testkit::{NatsServer, wait_until};
use prost::Message as _;
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::support::{
    DEADLINE, Database, admin, audit_entry, audit_fact, bus, node_event, of_user, on_both, record,
    user,
};

on_both!(events_are_replayed_unchanged_within_the_callers_visibility);

const LIMITS: ReplayLimits = ReplayLimits {
    rate: 1000,
    max_rate: 5000,
    max_running: 3,
};

/// A ledger with a running replayer.
struct Ledger {
    database: Database,
    store: Store,
    nats: NatsServer,
    replayer: Replayer,
    _stop: DropGuard,
}

impl Ledger {
    async fn start(database: Database) -> Self {
        Self::start_with(database, Duration::from_secs(86_400)).await
    }

    /// Starts a ledger whose replayed messages are retained for a time.
    async fn start_with(database: Database, retention: Duration) -> Self {
        mesh_runtime::install_crypto_provider();
        let store = database.store().await;
        let nats = NatsServer::start().await;
        let bus = bus(&nats, "ledger").await;
        let replayer = Replayer::new(store.clone(), bus, CLUSTER, retention);
        let stop = CancellationToken::new();
        tokio::spawn(replayer.clone().run(stop.clone()));
        Self {
            database,
            store,
            nats,
            replayer,
            _stop: stop.drop_guard(),
        }
    }

    async fn append(&self, events: &[Event]) {
        let records = events.iter().map(record).collect();
        self.store.append("SLURM_EVENTS", 1, records).await.unwrap();
    }

    /// Returns the API as seen by a caller.
    async fn as_seen_by(&self, caller: Caller) -> Api {
        let replays = Replays::new(self.store.clone(), self.replayer.clone(), LIMITS);
        let routes = replay_router(Arc::new(replays)).layer(Extension(caller));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Api { url }
    }
}

struct Api {
    url: String,
}

impl Api {
    async fn send(&self, method: &str, path: &str, body: Value, key: &str) -> (u16, Value) {
        let method = method.parse().unwrap();
        let mut request = reqwest::Client::new().request(method, format!("{}{path}", self.url));
        if !key.is_empty() {
            request = request.header("Idempotency-Key", key);
        }
        let answer = request.body(body.to_string()).send().await.unwrap();
        let status = answer.status().as_u16();
        (status, answer.json().await.unwrap())
    }

    async fn start(&self, body: Value) -> (u16, Value) {
        self.send("POST", "/v1/replays", body, "").await
    }

    async fn get(&self, id: &str) -> (u16, Value) {
        self.send("GET", &format!("/v1/replays/{id}"), json!({}), "")
            .await
    }

    async fn cancel(&self, id: &str) -> (u16, Value) {
        self.send("DELETE", &format!("/v1/replays/{id}"), json!({}), "")
            .await
    }

    /// Starts a replay, and waits until it is done.
    async fn done(&self, body: Value) -> Value {
        let (status, begun) = self.start(body).await;
        assert_eq!(status, 201, "{begun}");
        self.is_done(begun["id"].as_str().unwrap()).await
    }

    async fn is_done(&self, id: &str) -> Value {
        wait_until("the replay is done", DEADLINE, async || {
            self.get(id).await.1["state"] == "done"
        })
        .await;
        self.get(id).await.1
    }
}

pub struct ReplayedMessage {
    subject: String,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl ReplayedMessage {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.as_str())
    }
}

/// Returns all messages of a stream, or those of one replay.
pub async fn messages(nats: &NatsServer, stream: &str, of: &str) -> Vec<ReplayedMessage> {
    let client = async_nats::connect(nats.url()).await.unwrap();
    let stream = jetstream::new(client).get_stream(stream).await.unwrap();
    let state = stream.cached_info().state.clone();
    let mut sent = Vec::new();
    for sequence in state.first_sequence.max(1)..=state.last_sequence {
        let message = match stream.get_raw_message(sequence).await {
            Ok(message) => message,
            // A message of a cancelled replay.
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => continue,
            Err(error) => panic!("{error}"),
        };
        if message.subject.contains(of) {
            sent.push(ReplayedMessage {
                subject: message.subject.to_string(),
                headers: message.headers,
                body: message.payload.to_vec(),
            });
        }
    }
    sent
}

/// Returns the audit entries of a replay: the replay, and the events read.
async fn audited(nats: &NatsServer, replay: &str) -> Vec<(String, Act)> {
    let entries = messages(nats, "MESH_AUDIT", "").await;
    let mut found = Vec::new();
    for entry in &entries {
        let entry = AuditEntry::decode(entry.body.as_slice()).unwrap();
        let act = entry.act.unwrap();
        match &act {
            Act::Replay(act) if act.replay_id == replay => {}
            Act::Read(read) if read.request.contains(replay) => {}
            _ => continue,
        }
        found.push((entry.kind, act));
    }
    found
}

async fn audited_to_the_end(nats: &NatsServer, replay: &str, entries: usize) -> Vec<(String, Act)> {
    wait_until("the end is in the audit", DEADLINE, async || {
        audited(nats, replay).await.len() >= entries
    })
    .await;
    let found = audited(nats, replay).await;
    assert_eq!(found.len(), entries, "{found:?}");
    found
}

async fn events_are_replayed_unchanged_within_the_callers_visibility(database: Database) {
    let ledger = Ledger::start(database).await;
    let events = [
        of_user("alice", EventType::JobSubmitted, fixtures::job(1)),
        of_user("bob", EventType::JobSubmitted, fixtures::job(2)),
        node_event("n1", 1),
        of_user("alice", EventType::JobStarted, fixtures::job(1)),
    ];
    ledger.append(&events).await;
    let entry = audit_fact(&audit_entry(1));
    ledger
        .store
        .append("MESH_AUDIT", 1, vec![entry])
        .await
        .unwrap();

    // Everything except audit entries, in order, byte for byte.
    let root = ledger.as_seen_by(admin()).await;
    let all = root.done(json!({})).await;
    assert_eq!((&all["sent"], &all["to_seq"]), (&json!(4), &json!(5)));
    assert_eq!((&all["cursor"], &all["progress"]), (&json!(5), &json!(1.0)));
    let id = all["id"].as_str().unwrap();
    assert_eq!(all["subject"], format!("mesh.replay.{id}.>"));
    let sent = messages(&ledger.nats, "MESH_REPLAY", id).await;
    assert_eq!(sent.len(), events.len());
    for (sent, event) in sent.iter().zip(&events) {
        let original = subject::of(event).unwrap();
        assert_eq!(sent.subject, format!("mesh.replay.{id}.{original}"));
        assert_eq!(sent.body, event.encode_to_vec());
        assert_eq!(sent.header("ce-id"), event.id);
        assert_eq!(sent.header("ce-replayid"), id);
        assert_eq!(sent.header("Nats-Msg-Id"), format!("{id}:{}", event.id));
        let kind = format!("org.slurm-mesh.{}.v1", event.r#type);
        assert_eq!(sent.header("ce-type"), kind);
    }
    let audit = audited_to_the_end(&ledger.nats, id, 4).await;
    let Act::Replay(begin) = &audit[0].1 else {
        panic!("{audit:?}")
    };
    assert_eq!((begin.phase.as_str(), begin.by.as_str()), ("begin", "root"));
    let ends: Vec<&Act> = audit[2..].iter().map(|(_, act)| act).collect();
    let (Act::Replay(end), Act::Read(read)) = (ends[0], ends[1]) else {
        panic!("{audit:?}")
    };
    assert_eq!((end.outcome.as_str(), end.sent), ("done", 4));
    assert_eq!(read.whose, ["alice", "bob"]);
    assert_eq!((read.rows, read.phase.as_str()), (3, "end"));

    // A filter, and the visibility of the caller, which is stored with the replay.
    let bob = ledger.as_seen_by(user("bob")).await;
    let own = bob.done(json!({"filter": {"type": ["job.*"]}})).await;
    let id = own["id"].as_str().unwrap();
    let sent = messages(&ledger.nats, "MESH_REPLAY", id).await;
    let ids: Vec<&str> = sent.iter().map(|sent| sent.header("ce-id")).collect();
    assert_eq!(ids, [&events[1].id]);
    let audit = audited_to_the_end(&ledger.nats, id, 2).await;
    assert!(audit.iter().all(|(kind, _)| kind == "replay"));

    // By node, including jobs that ran on it.
    let of_node = root.done(json!({"filter": {"node": "n1"}})).await;
    let id = of_node["id"].as_str().unwrap();
    let sent = messages(&ledger.nats, "MESH_REPLAY", id).await;
    let ids: Vec<&str> = sent.iter().map(|sent| sent.header("ce-id")).collect();
    assert!(ids.contains(&events[2].id.as_str()), "{ids:?}");
    assert_eq!(of_node["cursor"], 5);
}
