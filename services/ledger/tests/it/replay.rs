//! Recorded events are published again: unchanged, only to permitted receivers, once, and
//! completely.

mod endpoints;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream;
use async_nats::jetstream::stream::RawMessageErrorKind;
use axum::Extension;
use futures_util::future::join_all;
use ledger::Store;
use ledger::api::{Replays, replay_router};
use ledger::domain::replay::ReplayLimits;
use ledger::replayer::Replayer;
use mesh_api::ledger::replay_service_client::ReplayServiceClient;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, audit_entry::Act};
use mesh_events::proto::mesh::ledger::v1::{
    CancelReplayRequest, EventFilter, GetReplayRequest, ListReplaysRequest, StartReplayRequest,
};
use mesh_events::{Event, EventType, subject};
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::fixtures::{self, CLUSTER};
use mesh_testkit::{NatsServer, wait_until};
use prost::Message as _;
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Code;
use tonic::transport::Endpoint;

use crate::support::{
    DEADLINE, Database, Process, admin, audit_entry, audit_fact, bus, node_event, of_user, on_both,
    record, user,
};

on_both!(
    events_are_replayed_unchanged_within_the_callers_visibility,
    a_replay_is_begun_once_seen_by_few_and_ended_by_fewer,
    after_a_kill_it_resumes_and_publishes_each_event_once,
    old_replay_messages_are_purged,
    a_lease_of_the_far_future_holds_nothing,
);

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

async fn a_replay_is_begun_once_seen_by_few_and_ended_by_fewer(database: Database) {
    let ledger = Ledger::start(database).await;
    let events: Vec<_> = (1..=1000)
        .map(|id| of_user("bob", EventType::JobStarted, fixtures::job(id)))
        .collect();
    ledger.append(&events).await;
    let root = ledger.as_seen_by(admin()).await;
    let bob = ledger.as_seen_by(user("bob")).await;
    let mut alice = user("alice");
    alice.auth_method = mesh_runtime::api::AuthMethod::Peer { uid: 20_002 };
    let alice = ledger.as_seen_by(alice).await;
    let eve = ledger
        .as_seen_by(Caller::peer("eve", 20_003, Role::Auditor))
        .await;

    // Errors name the invalid field.
    for (body, status, part) in [
        (json!({"rate": 0}), 400, "rate: 0 is out of range"),
        (json!({"rate": "fast"}), 400, "not a replay request"),
        (json!({"colour": "red"}), 400, "colour"),
        (
            json!({"filter": {"since": "tomorrow"}}),
            400,
            "is not a time",
        ),
        (json!({"filter": {"type": ["audit.*"]}}), 400, "audit"),
        (json!({"filter": {"user": "alice"}}), 403, "user: "),
    ] {
        let (found, problem) = bob.start(body.clone()).await;
        assert_eq!(found, status, "{body} {problem}");
        assert!(
            problem["detail"].as_str().unwrap().contains(part),
            "{problem}"
        );
    }

    // A repeated request starts one replay; at most three run at the same time.
    let slow = json!({"rate": 4, "filter": {"since": "9000days"}});
    let started = Instant::now();
    let (status, first) = bob.send("POST", "/v1/replays", slow.clone(), "k1").await;
    assert_eq!(status, 201, "{first}");
    let (status, repeated) = bob.send("POST", "/v1/replays", slow.clone(), "k1").await;
    assert_eq!((status, &repeated["id"]), (200, &first["id"]));
    let (status, other) = bob.send("POST", "/v1/replays", json!({}), "k1").await;
    assert_eq!(status, 409, "{other}");
    let same = (0..8).map(|_| bob.send("POST", "/v1/replays", slow.clone(), "k2"));
    let same = join_all(same).await;
    let begun = same.iter().filter(|(status, _)| *status == 201);
    assert_eq!(begun.count(), 1, "{same:?}");
    assert!(
        same.iter()
            .all(|(status, it)| *status <= 201 && it["id"] == same[0].1["id"])
    );
    let at_once = join_all((0..8).map(|_| bob.start(slow.clone()))).await;
    let begun = at_once.iter().filter(|(status, _)| *status == 201);
    assert_eq!(begun.count(), 1, "{at_once:?}");
    let (status, problem) = bob.start(slow.clone()).await;
    assert_eq!(status, 409, "{problem}");
    // Key and limit apply per caller, so bob's do not affect others.
    let (status, of_root) = root.send("POST", "/v1/replays", slow, "k1").await;
    assert_eq!(status, 201);

    // The rate applies from the first event on.
    let id = first["id"].as_str().unwrap();
    wait_until("some are sent", DEADLINE, async || {
        let sent = bob.get(id).await.1["sent"].as_u64().unwrap();
        let max_sent = 1.0 + started.elapsed().as_secs_f64() * 4.0;
        assert!(sent as f64 <= max_sent, "{sent} > {max_sent}");
        sent >= 3
    })
    .await;

    // Who may see it, and who may cancel it.
    for (api, status) in [(&bob, 200), (&root, 200), (&eve, 200), (&alice, 404)] {
        assert_eq!(api.get(id).await.0, status);
        let (_, list) = api
            .send("GET", "/v1/replays?state=running", json!({}), "")
            .await;
        let seen = list["replays"].as_array().unwrap().iter();
        let seen = seen.filter(|replay| replay["id"] == id).count();
        assert_eq!(seen, usize::from(status == 200));
    }
    assert_eq!(alice.cancel(id).await.0, 404);
    assert_eq!(eve.cancel(id).await.0, 403);
    assert_eq!(bob.cancel(of_root["id"].as_str().unwrap()).await.0, 404);
    let (status, cancelled) = root.cancel(id).await;
    assert_eq!((status, &cancelled["state"]), (200, &json!("cancelled")));
    assert_eq!(cancelled["cancelled_by"], "root");
    assert_eq!(bob.cancel(id).await.0, 200, "once more does no harm");
    let audit = audited_to_the_end(&ledger.nats, id, 2).await;
    let Act::Replay(end) = &audit[1].1 else {
        panic!("{audit:?}")
    };
    assert_eq!(
        (end.outcome.as_str(), end.cancelled_by.as_str()),
        ("cancelled", "root")
    );
    wait_until("nothing of it stays on the bus", DEADLINE, async || {
        messages(&ledger.nats, "MESH_REPLAY", id).await.is_empty()
    })
    .await;

    // gRPC returns the same.
    let endpoint = Endpoint::from_shared(bob.url.clone()).unwrap();
    let mut grpc = ReplayServiceClient::new(endpoint.connect().await.unwrap());
    let id = id.to_owned();
    let fetched = grpc.get_replay(GetReplayRequest { id: id.clone() }).await;
    let fetched = fetched.unwrap().into_inner().replay.unwrap();
    assert_eq!((fetched.state.as_str(), fetched.rate), ("cancelled", 4));
    assert!(fetched.filter.unwrap().since.is_some());
    let listed = grpc.list_replays(ListReplaysRequest::default()).await;
    assert_eq!(listed.unwrap().into_inner().replays.len(), 3);
    let start = |filter: EventFilter| StartReplayRequest {
        filter: Some(filter),
        ..StartReplayRequest::default()
    };
    let none = EventFilter {
        from_seq: 1_000,
        ..EventFilter::default()
    };
    let begun = grpc.start_replay(start(none)).await.unwrap().into_inner();
    let nothing = begun.replay.unwrap().id;
    wait_until("nothing is sent", DEADLINE, async || {
        bob.get(&nothing).await.1["state"] == "done"
    })
    .await;
    let of_alice = EventFilter {
        user: "alice".into(),
        ..EventFilter::default()
    };
    let refused = grpc.start_replay(start(of_alice)).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let done = grpc
        .cancel_replay(CancelReplayRequest { id: nothing })
        .await;
    assert_eq!(done.unwrap_err().code(), Code::FailedPrecondition);
    let absent = grpc.get_replay(GetReplayRequest { id: "x".into() }).await;
    assert_eq!(absent.unwrap_err().code(), Code::NotFound);
    drop(ledger.database);
}

async fn after_a_kill_it_resumes_and_publishes_each_event_once(database: Database) {
    // At this rate seconds are left after each condition.
    const EVENTS: u32 = 3000;
    let events: Vec<_> = (1..=EVENTS)
        .map(|id| fixtures::job_event(EventType::JobStarted, fixtures::job(id)))
        .collect();
    let store = database.store().await;
    for batch in events.chunks(500) {
        let records = batch.iter().map(record).collect();
        store.append("SLURM_EVENTS", 1, records).await.unwrap();
    }
    store.close().await;
    let mut nats = NatsServer::start().await;
    let mut process = Process::start(&nats, &database).await;
    let begun = process.post("/v1/replays", &json!({"rate": 200})).await;
    let begun = begun.unwrap();
    let path = format!("/v1/replays/{}", begun["id"].as_str().expect("a replay"));
    let sent = async |process: &Process| -> u64 {
        let replay = process.json(&path).await.unwrap_or_default();
        replay["sent"].as_u64().unwrap_or_default()
    };
    process
        .until("it goes on", async |process| sent(process).await >= 100)
        .await;
    process.kill();
    process.restart();
    process
        .until("it goes on after the kill", async |process| {
            sent(process).await >= 400
        })
        .await;
    nats.kill();
    process
        .until("it says what it waits for", async |process| {
            let replay = process.json(&path).await.unwrap_or_default();
            replay["problem"].is_string() && replay["state"] == "running"
        })
        .await;
    nats.restart().await;
    process
        .until("it is done", async |process| {
            process.json(&path).await.unwrap_or_default()["state"] == "done"
        })
        .await;
    let replay = process.json(&path).await.unwrap();
    assert_eq!(replay["problem"], Value::Null);
    assert_eq!(replay["sent"], u64::from(EVENTS));

    let sent = messages(&nats, "MESH_REPLAY", "").await;
    let ids: BTreeSet<&str> = sent.iter().map(|sent| sent.header("ce-id")).collect();
    let expected: BTreeSet<&str> = events.iter().map(|event| event.id.as_str()).collect();
    assert_eq!(ids, expected, "nothing is missing");
    assert_eq!(sent.len(), events.len(), "and nothing is there twice");
}

async fn old_replay_messages_are_purged(database: Database) {
    let ledger = Ledger::start_with(database, Duration::from_secs(3600)).await;
    let event = of_user("alice", EventType::JobStarted, fixtures::job(1));
    ledger.append(&[event]).await;
    let root = ledger.as_seen_by(admin()).await;
    let [old, new] = [root.done(json!({})).await, root.done(json!({})).await];
    let count = async |replay: &Value| {
        let id = replay["id"].as_str().unwrap();
        messages(&ledger.nats, "MESH_REPLAY", id).await.len()
    };
    assert_eq!((count(&old).await, count(&new).await), (1, 1));
    let mut outsider = ledger.database.outsider().await;
    outsider
        .execute(&format!(
            "UPDATE replays SET ended_at = ended_at - 7200000000 WHERE id = '{}'",
            old["id"].as_str().unwrap()
        ))
        .await;
    // Another replica, or the next start.
    let bus = bus(&ledger.nats, "ledger").await;
    let hour = Duration::from_secs(3600);
    let next = Replayer::new(ledger.store.clone(), bus, CLUSTER, hour);
    let stop = CancellationToken::new();
    let working = tokio::spawn(next.run(stop.clone()));
    wait_until("the old one is gone", DEADLINE, async || {
        count(&old).await == 0
    })
    .await;
    assert_eq!(count(&new).await, 1);
    stop.cancel();
    working.await.unwrap();
}

/// The process that had it was killed, and its clock was ahead.
async fn a_lease_of_the_far_future_holds_nothing(database: Database) {
    let ledger = Ledger::start(database).await;
    let root = ledger.as_seen_by(admin()).await;
    root.done(json!({})).await;
    let mut outsider = ledger.database.outsider().await;
    let ended = "SELECT COUNT(*) FROM replays WHERE audited = 2";
    wait_until("its end is audited", DEADLINE, async || {
        outsider.numbers(ended).await == [1]
    })
    .await;
    let held = "UPDATE replays SET audited = 1, lease_until = 4070908800000000";
    outsider.execute(held).await;
    wait_until("another process takes it", DEADLINE, async || {
        outsider.numbers(ended).await == [1]
    })
    .await;
}
