//! Positions of endpoints on the bus: taken over from former versions, caught up with, and lost with the stream's events.

use async_nats::jetstream::stream::Stream;
use axum::http::Method;
use mesh_api::webhook::webhooks_service_client::WebhooksServiceClient;
use mesh_events::proto::mesh::audit::v1::AuditEntry;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::proto::mesh::webhook::v1::GetWebhookRequest;
use mesh_events::{Event, EventType};
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::{CannedResponse, WebhookReceiver, wait_until};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::harness::{DEADLINE, Kind, Mesh, event, ids, on_both, signed};
use crate::replay::replay;

/// More events than the dispatcher has in memory.
const MANY: u32 = 8_300;

on_both!(
    positions_of_a_former_version_are_taken_over_without_a_loss_or_a_repetition,
    an_endpoint_that_is_far_behind_catches_up_in_order,
    what_the_stream_no_longer_has_is_reported_as_missed,
    a_stream_that_was_made_anew_is_read_from_its_beginning,
);

fn events(jobs: std::ops::RangeInclusive<u32>) -> Vec<Event> {
    jobs.map(|job| event(EventType::JobStarted, job)).collect()
}

async fn publish(mesh: &Mesh, events: &[Event]) -> Vec<String> {
    for event in events {
        mesh.publish(event).await;
    }
    events.iter().map(|event| event.id.clone()).collect()
}

async fn stream(mesh: &Mesh) -> Stream {
    let client = async_nats::connect(mesh.nats.url()).await.unwrap();
    let jetstream = async_nats::jetstream::new(client);
    jetstream.get_stream("SLURM_EVENTS").await.unwrap()
}

async fn positions_of_a_former_version_are_taken_over_without_a_loss_or_a_repetition(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    let of = |name: &str| signed(name, &receiver.url(&format!("/{name}")), "concurrency = 1");
    let endpoints = ["behind", "level", "fresh", "lost"].map(of);
    let mut mesh = Mesh::start_on(kind, &endpoints).await;
    let before = events(1..=3);
    publish(&mesh, &before).await;
    for name in ["behind", "level", "fresh", "lost"] {
        mesh.wait_for_count(name, "delivered", 3).await;
    }
    mesh.stop().await;

    // A former version: no cursors, but consumers, here of another past than that of the deliveries, which could
    // otherwise prevent repetitions.
    let version = match kind {
        Kind::Sqlite => 8,
        Kind::Postgres => 7,
    };
    mesh.change_database(format!(
        "DROP TABLE cursors; DELETE FROM deliveries; DELETE FROM _sqlx_migrations WHERE version = {version};"
    ))
    .await;
    replay(&mesh, "r1", "behind", &[&before[0], &before[1]]).await;
    for (endpoint, acknowledged) in [("behind", 1), ("level", 3), ("fresh", 0)] {
        mesh.make_legacy_consumer("SLURM_EVENTS", endpoint, "", acknowledged)
            .await;
    }
    mesh.make_legacy_consumer("MESH_REPLAY", "behind", "", 1)
        .await;
    mesh.make_legacy_consumer("SLURM_EVENTS", "unknown", "", 1)
        .await;
    let since = receiver.received().len();
    let after = events(4..=5);
    publish(&mesh, &after).await;
    mesh.run(&endpoints).await;

    let all: Vec<Event> = before.into_iter().chain(after).collect();
    for (name, from) in [("behind", 1), ("level", 3), ("fresh", 0), ("lost", 0)] {
        let expected: Vec<String> = all[from..].iter().map(|event| event.id.clone()).collect();
        let got = || {
            let mut got = receiver.received().split_off(since);
            got.retain(|request| request.path == format!("/{name}"));
            got
        };
        let replays = usize::from(name == "behind");
        wait_until(name, DEADLINE, async || {
            got().len() == expected.len() + replays
        })
        .await;
        let (again, events): (Vec<_>, Vec<_>) = got()
            .into_iter()
            .partition(|request| request.headers.contains_key("webhook-replay"));
        assert_eq!(ids(&events), expected, "{name}");
        let replayed: Vec<String> = all[1..1 + replays].iter().map(|it| it.id.clone()).collect();
        assert_eq!(ids(&again), replayed, "{name}");
    }
    for stream in ["SLURM_EVENTS", "MESH_REPLAY"] {
        wait_until("their consumers are gone", DEADLINE, async || {
            let consumers = mesh.consumers(stream).await;
            !consumers.iter().any(|name| name.starts_with("wh-"))
        })
        .await;
    }
}

async fn an_endpoint_that_is_far_behind_catches_up_in_order(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    let of = |name: &str| {
        let more = "types = [\"job.started\"]\nconcurrency = 1";
        signed(name, &receiver.url(&format!("/{name}")), more)
    };
    let mesh = Mesh::start_on(kind, &[of("late"), of("prompt")]).await;
    mesh.call(Method::POST, "/v1/webhooks/late/pause").await;
    // More than a page of those that it gets, and many that it does not get.
    let mut expected = publish(&mesh, &events(1..=150)).await;
    let others = (1..=MANY).map(|job| event(EventType::JobSubmitted, job));
    let (others, never) = (others.collect(), CancellationToken::new());
    mesh.bus.publish_all(others, &never).await.unwrap();
    expected.append(&mut publish(&mesh, &events(151..=155)).await);
    mesh.wait_for_count("prompt", "delivered", 155).await;
    assert!(mesh.behind("late").await > i64::from(MANY));

    // Events go on while it catches up.
    mesh.call(Method::POST, "/v1/webhooks/late/resume").await;
    expected.append(&mut publish(&mesh, &events(156..=200)).await);
    for name in ["late", "prompt"] {
        mesh.wait_for_count(name, "delivered", 200).await;
        let mut got = receiver.received();
        got.retain(|request| request.path == format!("/{name}"));
        assert_eq!(ids(&got), expected, "{name}");
    }
    wait_until("its position is stored", DEADLINE, async || {
        mesh.behind("late").await == 0
    })
    .await;
}

async fn what_the_stream_no_longer_has_is_reported_as_missed(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    let endpoints = [signed("pipeline", &receiver.url("/"), "")];
    let mut mesh = Mesh::start_on(kind, &endpoints).await;
    let mut acts = mesh
        .listen::<AuditEntry>("mesh.testbed.audit.webhook")
        .await;
    mesh.call(Method::POST, "/v1/webhooks/pipeline/pause").await;
    mesh.stop().await;
    let expected = publish(&mesh, &events(1..=5)).await.split_off(3);
    stream(&mesh).await.purge().sequence(4).await.unwrap();
    mesh.run(&endpoints).await;
    mesh.call(Method::POST, "/v1/webhooks/pipeline/resume")
        .await;
    mesh.wait_for_count("pipeline", "delivered", 2).await;
    let mut got = ids(&receiver.received());
    got.sort();
    assert_eq!(got, {
        let mut expected = expected;
        expected.sort();
        expected
    });

    let (_, shown) = mesh.call(Method::GET, "/v1/webhooks/pipeline").await;
    let missed = &shown["missed"];
    assert_eq!(
        (
            &missed["count"],
            &missed["first_sequence"],
            &missed["last_sequence"]
        ),
        (&json!(3), &json!(1), &json!(3)),
        "{shown}"
    );
    let url = mesh.serve(Caller::peer("root", 1, Role::Admin)).await;
    let endpoint = tonic::transport::Endpoint::from_shared(url).unwrap();
    let mut client = WebhooksServiceClient::new(endpoint.connect().await.unwrap());
    let request = GetWebhookRequest {
        name: "pipeline".to_owned(),
    };
    let answer = client.get_webhook(request).await.unwrap().into_inner();
    let over_grpc = answer.webhook.and_then(|webhook| webhook.missed).unwrap();
    assert_eq!(
        (
            over_grpc.count,
            over_grpc.first_sequence,
            over_grpc.last_sequence
        ),
        (3, 1, 3)
    );
    loop {
        let Some(Act::Webhook(act)) = acts.next().await.act else {
            panic!("no act");
        };
        if act.what == "missed" {
            assert!(act.reason.contains("sequences 1 to 3"), "{}", act.reason);
            break;
        }
    }
}

async fn a_stream_that_was_made_anew_is_read_from_its_beginning(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    receiver.answer_always(CannedResponse::status(204));
    let mesh = Mesh::start_on(kind, &[signed("pipeline", &receiver.url("/"), "")]).await;
    publish(&mesh, &events(1..=5)).await;
    mesh.wait_for_count("pipeline", "delivered", 5).await;
    let former = stream(&mesh).await;
    let config = former.cached_info().config.clone();
    let client = async_nats::connect(mesh.nats.url()).await.unwrap();
    let jetstream = async_nats::jetstream::new(client);
    jetstream.delete_stream("SLURM_EVENTS").await.unwrap();
    jetstream.create_stream(config).await.unwrap();
    // The same sequences with other events.
    publish(&mesh, &events(11..=13)).await;
    mesh.wait_for_count("pipeline", "delivered", 8).await;
    assert_eq!(receiver.received().len(), 8, "each once");
    wait_until("its position is stored", DEADLINE, async || {
        mesh.behind("pipeline").await == 0
    })
    .await;
}
