//! Endpoints created, changed and removed by the API.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use futures_util::future::join_all;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, audit_entry::Act};
use mesh_events::{Event, EventType, cloudevents};
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::{CannedResponse, WebhookReceiver, wait_until};
use serde_json::{Value, json};
use standardwebhooks::Webhook;

use crate::harness::{DEADLINE, FOR_API, Kind, Mesh, alice, event, ids, on_both, signed};
use crate::replay::replay;

on_both!(a_users_webhook_is_delivered_to_changed_rotated_paused_and_removed,);

fn of_bob(job: u32) -> Event {
    let mut event = event(EventType::JobStarted, job);
    event.owner.as_mut().unwrap().user = "bob".into();
    event
}

async fn received(receiver: &WebhookReceiver, expected: &[&Event]) {
    let expected: Vec<String> = expected.iter().map(|event| event.id.clone()).collect();
    wait_until("what was expected", DEADLINE, async || {
        receiver.received().len() >= expected.len()
    })
    .await;
    assert_eq!(ids(&receiver.received()), expected);
}

async fn a_users_webhook_is_delivered_to_changed_rotated_paused_and_removed(kind: Kind) {
    let receiver = WebhookReceiver::start().await;
    let mesh = Mesh::for_api(kind).await;
    let mut audit = mesh
        .listen::<AuditEntry>("mesh.testbed.audit.webhook")
        .await;
    let spec = json!({
        "name": "mine", "url": receiver.url("/hook?token=hunter2"), "types": ["job.started"],
        "headers": {"x-api-key": "hunter3"}, "description": "the next step",
    });
    let (status, made) = alice(&mesh, Method::POST, "/v1/webhooks", &spec).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let secret = made["secret"].as_str().unwrap().to_owned();
    mesh.wait_for_positions(1).await;
    let first = event(EventType::JobStarted, 1);
    mesh.publish(&of_bob(2)).await;
    mesh.publish(&first).await;
    received(&receiver, &[&first]).await;
    let request = &receiver.received()[0];
    Webhook::new(&secret)
        .unwrap()
        .verify(&request.body, &request.headers)
        .unwrap();
    assert_eq!(request.header("x-api-key"), "hunter3");
    assert_eq!(request.path, "/hook?token=hunter2");

    // No secret is displayed or stored in plain text.
    let (_, shown) = alice(&mesh, Method::GET, "/v1/webhooks/mine", &Value::Null).await;
    assert_eq!(
        (
            &shown["owner"],
            &shown["users"],
            &shown["state"],
            &shown["description"]
        ),
        (
            &"alice".into(),
            &json!(["alice"]),
            &"active".into(),
            &"the next step".into()
        )
    );
    let raw = mesh.raw_endpoint("alice/mine").await;
    for text in [shown.to_string(), raw] {
        assert!(
            !text.contains("hunter") && !text.contains(&secret[8..]),
            "{text}"
        );
    }

    // A change is active immediately, and other settings stay.
    let patch = json!({"types": ["job.submitted"], "description": null});
    let (status, changed) = alice(&mesh, Method::PATCH, "/v1/webhooks/mine", &patch).await;
    assert_eq!(
        (status, &changed["types"]),
        (StatusCode::OK, &json!(["job.submitted"]))
    );
    assert_eq!(
        (&changed["headers"], &changed["description"]),
        (&json!({"x-api-key": "…"}), &Value::Null)
    );
    let second = event(EventType::JobSubmitted, 3);
    mesh.publish(&event(EventType::JobStarted, 4)).await;
    mesh.publish(&second).await;
    received(&receiver, &[&first, &second]).await;

    // Both secrets sign for a while.
    let (status, rotated) = alice(
        &mesh,
        Method::POST,
        "/v1/webhooks/mine/rotate",
        &Value::Null,
    )
    .await;
    assert_eq!(status, StatusCode::OK, "{rotated}");
    let new = rotated["secret"].as_str().unwrap();
    assert_ne!(new, secret);
    let third = event(EventType::JobSubmitted, 5);
    mesh.publish(&third).await;
    received(&receiver, &[&first, &second, &third]).await;
    let request = &receiver.received()[2];
    for secret in [&secret, new] {
        let webhook = Webhook::new(secret).unwrap();
        webhook.verify(&request.body, &request.headers).unwrap();
    }

    // While it is paused its events are queued.
    let reason = json!({"reason": "maintenance"});
    let (_, paused) = alice(&mesh, Method::POST, "/v1/webhooks/mine/pause", &reason).await;
    assert_eq!(
        (&paused["state"], &paused["reason"]),
        (&"paused".into(), &"maintenance".into())
    );
    let fourth = event(EventType::JobSubmitted, 6);
    mesh.publish(&fourth).await;
    wait_until("the event is queued", DEADLINE, async || {
        mesh.behind("alice/mine").await == 1
    })
    .await;
    assert_eq!(receiver.received().len(), 3);
    alice(
        &mesh,
        Method::POST,
        "/v1/webhooks/mine/resume",
        &Value::Null,
    )
    .await;
    received(&receiver, &[&first, &second, &third, &fourth]).await;

    replay(&mesh, "r1", "alice/mine", &[&fourth]).await;
    received(&receiver, &[&first, &second, &third, &fourth, &fourth]).await;
    let test = "/v1/webhooks/mine/test";
    for what in [Value::Null, json!({"dry_run": true})] {
        let (status, tested) = alice(&mesh, Method::POST, test, &what).await;
        assert_eq!(status, StatusCode::OK, "{tested}");
    }

    let (status, _) = alice(&mesh, Method::DELETE, "/v1/webhooks/mine", &Value::Null).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    mesh.wait_for_positions(0).await;
    wait_until("nothing is left of it", DEADLINE, async || {
        alice(&mesh, Method::GET, "/v1/webhooks/mine", &Value::Null)
            .await
            .0
            == StatusCode::NOT_FOUND
    })
    .await;

    let mut sent = Vec::new();
    for _ in 0..7 {
        let Some(Act::Webhook(act)) = audit.next().await.act else {
            panic!("no act on a webhook");
        };
        assert_eq!(
            (
                act.endpoint.as_str(),
                act.made_by.as_str(),
                act.role.as_str()
            ),
            ("alice/mine", "alice", "user")
        );
        sent.push((act.what, act.keys.join(","), act.reason));
    }
    // Entries are published after their transactions, so neighbours may be swapped.
    sent.sort();
    let expected = [
        ("changed", "description,types", ""),
        ("created", "", ""),
        ("paused", "", "maintenance"),
        ("removed", "", ""),
        ("resumed", "", ""),
        ("rotated", "", ""),
        // Once: the other test was a dry run.
        ("tested", "", ""),
    ];
    assert_eq!(
        sent,
        expected.map(|(what, keys, why)| (what.to_owned(), keys.to_owned(), why.to_owned()))
    );

    // The name is free again, and its next owner starts without state.
    let (status, _) = mesh
        .ask(Method::POST, "/v1/webhooks", "bob", Role::User, &spec)
        .await;
    assert_eq!(status, StatusCode::CREATED);
    let path = "/v1/webhooks/mine/deliveries";
    let (_, page) = mesh
        .ask(Method::GET, path, "bob", Role::User, &Value::Null)
        .await;
    assert_eq!(page["deliveries"], json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_event_shows_what_would_be_sent() {
    let receiver = WebhookReceiver::start().await;
    let mesh = Mesh::for_api(Kind::Sqlite).await;
    let spec = json!({"name": "mine", "url": receiver.url("/"), "types": ["job.started"]});
    alice(&mesh, Method::POST, "/v1/webhooks", &spec).await;
    for (kind, matches) in [
        (EventType::JobStarted, true),
        (EventType::JobCompleted, false),
    ] {
        let event = cloudevents::to_json(&event(kind, 7)).unwrap();
        let body = json!({"event": event, "dry_run": true});
        let (_, tested) = alice(&mesh, Method::POST, "/v1/webhooks/mine/test", &body).await;
        assert_eq!(tested["matches"], matches, "{tested}");
        let shown: Value = serde_json::from_str(tested["body"].as_str().unwrap()).unwrap();
        assert_eq!(shown, event);
    }
    assert_eq!(receiver.received().len(), 0, "nothing was sent");
    let body = json!({"event": {"id": "x"}});
    let (status, _) = alice(&mesh, Method::POST, "/v1/webhooks/mine/test", &body).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tests_are_bounded_as_deliveries_are() {
    let receiver = WebhookReceiver::start().await;
    let mut mesh = Mesh::on(Kind::Sqlite).await;
    mesh.settings = FOR_API.to_owned();
    mesh.run(&[
        signed("slow", &receiver.url("/slow"), ""),
        signed("limited", &receiver.url("/limited"), "rate_limit = \"2/h\""),
    ])
    .await;
    let url = mesh.serve(Caller::peer("root", 1, Role::Admin)).await;
    let client = reqwest::Client::new();
    let test = async |name: &str| {
        let request = client.post(format!("{url}/v1/webhooks/{name}/test"));
        let answer = request.send().await.unwrap();
        let after = answer.headers().get("retry-after").cloned();
        let after = after.map(|after| after.to_str().unwrap().parse::<u64>().unwrap());
        (
            answer.status().as_u16(),
            after,
            answer.text().await.unwrap(),
        )
    };

    receiver.answer_next([CannedResponse {
        // Until all others were refused.
        delay: Duration::from_secs(20),
        ..CannedResponse::status(204)
    }]);
    let tests = join_all((0..40).map(|_| test("slow"))).await;
    let sent = tests.iter().filter(|(status, ..)| *status == 200).count();
    assert_eq!((sent, receiver.received().len()), (1, 1), "one at a time");
    for (status, after, problem) in tests.iter().filter(|(status, ..)| *status != 200) {
        assert_eq!((*status, *after), (429, Some(1)), "{problem}");
    }
    assert_eq!(test("slow").await.0, 200, "the next");

    for _ in 0..2 {
        assert_eq!(test("limited").await.0, 200);
    }
    let (status, after, problem) = test("limited").await;
    assert_eq!(status, 429);
    assert!(
        after.is_some_and(|after| (1_000..=1_801).contains(&after)),
        "{after:?}"
    );
    assert!(problem.contains("rate_limit"), "{problem}");
    let of = |path: &str| {
        receiver
            .received()
            .iter()
            .filter(|it| it.path == path)
            .count()
    };
    assert_eq!(of("/limited"), 2);
    mesh.publish(&event(EventType::JobStarted, 1)).await;
    mesh.wait_for_count("slow", "delivered", 1).await;
    assert_eq!(mesh.count("limited", "waiting").await, 0);
    assert_eq!(of("/limited"), 2, "tests count in the rate of deliveries");
}
