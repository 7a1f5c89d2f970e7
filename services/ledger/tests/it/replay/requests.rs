//! Who may start, see and cancel a replay, and how many run at the same time.

use std::time::Instant;

use futures_util::future::join_all;
use mesh_api::ledger::replay_service_client::ReplayServiceClient;
use mesh_events::EventType;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::proto::mesh::ledger::v1::{
    CancelReplayRequest, EventFilter, GetReplayRequest, ListReplaysRequest, StartReplayRequest,
};
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::{fixtures, wait_until};
use serde_json::json;
use tonic::Code;
use tonic::transport::Endpoint;

use super::{Ledger, audited_to_the_end, messages};
use crate::support::{DEADLINE, Database, admin, of_user, on_both, user};

on_both!(a_replay_is_begun_once_seen_by_few_and_ended_by_fewer);

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
