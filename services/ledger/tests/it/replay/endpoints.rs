//! Events are replayed to a webhook endpoint by its owner and by administrators, if it exists.

use mesh_api::ledger::replay_service_client::ReplayServiceClient;
use mesh_events::proto::mesh::ledger::v1::StartReplayRequest;
use mesh_events::{EventType, subject};
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::fixtures;
use serde_json::json;
use tonic::Code;
use tonic::transport::Endpoint;

use super::{Ledger, messages};
use crate::support::{Database, admin, bus, of_user, on_both, user};

on_both!(
    owner_and_administrators_may_replay_to_a_webhook_endpoint,
    a_name_alone_is_ones_own_or_the_operators,
);

impl Ledger {
    /// Registers endpoints as the dispatcher does.
    async fn endpoints(&self, names: &[&str]) {
        let dispatcher = bus(&self.nats, "webhook-dispatcher").await;
        let names = names.iter().map(|&name| name.to_owned()).collect();
        let mut written = dispatcher.webhook_names().await.unwrap();
        assert!(written.write(&names).await.unwrap());
    }
}

async fn owner_and_administrators_may_replay_to_a_webhook_endpoint(database: Database) {
    let mut ledger = Ledger::start(database).await;
    let events = [("alice", 1), ("bob", 2)]
        .map(|(owner, job)| of_user(owner, EventType::JobStarted, fixtures::job(job)));
    ledger.append(&events).await;
    ledger.endpoints(&["alice/alice's.own", "pipeline"]).await;

    let coordinator = user("carol").coordinating(fixtures::CLUSTER, "physics");
    let auditor = Caller::peer("eve", 20_003, Role::Auditor);
    // By owner, over REST: alice's own, the operator's, and a nonexistent one. The same over gRPC.
    for (caller, statuses) in [
        (user("alice"), [201, 400, 400]),
        (user("bob"), [400, 400, 400]),
        (coordinator, [400, 400, 400]),
        (auditor, [403, 403, 400]),
        (admin(), [201, 201, 400]),
    ] {
        let name = caller.name.clone();
        let api = ledger.as_seen_by(caller).await;
        let channel = Endpoint::from_shared(api.url.clone()).unwrap();
        let mut grpc = ReplayServiceClient::new(channel.connect().await.unwrap());
        for (endpoint, expected) in ["alice/alice's.own", "pipeline", "absent"]
            .iter()
            .zip(statuses)
        {
            let (status, answer) = api
                .start(json!({"endpoint": endpoint, "filter": {"from_seq": 1000}}))
                .await;
            assert_eq!(status, expected, "{name}, {endpoint}: {answer}");
            if status == 201 {
                // So that the caller's next replay may run.
                api.is_done(answer["id"].as_str().unwrap()).await;
            }
            let request = StartReplayRequest {
                endpoint: (*endpoint).to_owned(),
                ..StartReplayRequest::default()
            };
            let code = match grpc.start_replay(request).await {
                Ok(begun) => {
                    api.is_done(&begun.into_inner().replay.unwrap().id).await;
                    Code::Ok
                }
                Err(status) => status.code(),
            };
            let expected = match expected {
                201 => Code::Ok,
                403 => Code::PermissionDenied,
                _ => Code::InvalidArgument,
            };
            assert_eq!(code, expected, "{name}, {endpoint}");
            if status == 400 {
                let detail = answer["detail"].as_str().unwrap();
                assert!(
                    detail.contains("no webhook endpoint") && detail.contains("webhooks list"),
                    "{detail}"
                );
            }
        }
    }

    // Only events that alice may see, on a subject separate from other replays.
    let alice = ledger.as_seen_by(user("alice")).await;
    let done = alice.done(json!({"endpoint": "alice's.own"})).await;
    let id = done["id"].as_str().unwrap();
    let found = messages(&ledger.nats, "MESH_REPLAY", id).await;
    let subjects: Vec<&str> = found.iter().map(|found| found.subject.as_str()).collect();
    let original = subject::of(&events[0]).unwrap();
    assert_eq!(
        subjects,
        [format!(
            "mesh.replay.{id}.webhook.alice_2Falice_27s_2Eown.{original}"
        )]
    );

    // The owner of the endpoint cannot be determined: the client should retry.
    ledger.nats.kill();
    let (status, answer) = alice.start(json!({"endpoint": "alice's.own"})).await;
    assert_eq!(status, 503, "{answer}");
    assert!(answer["detail"].as_str().unwrap().contains("NATS"));
    ledger.nats.restart().await;
}

async fn a_name_alone_is_ones_own_or_the_operators(database: Database) {
    let ledger = Ledger::start(database).await;
    ledger.endpoints(&["ci", "alice/ci", "bob/ci"]).await;
    for (caller, named, meant) in [
        (user("alice"), "ci", Some("alice/ci")),
        (user("alice"), "alice/ci", Some("alice/ci")),
        (user("alice"), "bob/ci", None),
        (user("alice"), "/ci", None),
        (user("carol"), "ci", None),
        (admin(), "ci", Some("ci")),
        (admin(), "/ci", Some("ci")),
        (admin(), "bob/ci", Some("bob/ci")),
    ] {
        let name = caller.name.clone();
        let api = ledger.as_seen_by(caller).await;
        let (status, answer) = api
            .start(json!({"endpoint": named, "filter": {"from_seq": 1000}}))
            .await;
        assert_eq!(status == 201, meant.is_some(), "{name}, {named}: {answer}");
        if meant.is_some() {
            assert_eq!(answer["endpoint"].as_str(), meant, "{name}, {named}");
            api.is_done(answer["id"].as_str().unwrap()).await;
        }
    }
}
