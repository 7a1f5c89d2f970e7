//! `/v1/webhooks`.

use axum::http::{Method, StatusCode};
use mesh_events::EventType;
use mesh_testkit::{CannedResponse, WebhookReceiver};
use standardwebhooks::Webhook;

use crate::harness::{Mesh, SECRET, endpoint, event, signed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn administrators_see_endpoints_and_deliveries_but_no_secrets() {
    let receiver = WebhookReceiver::start().await;
    let mesh = Mesh::start(&[
        signed(
            "pipeline",
            &receiver.url("/hook?token=hunter2"),
            "types = [\"job.*\"]",
        ),
        endpoint(
            "chat",
            &receiver.url("/services/hunter3"),
            "format = \"slack\"",
        ),
    ])
    .await;
    let event = event(EventType::JobSubmitted, 1);
    mesh.publish(&event).await;
    mesh.wait_for_count("pipeline", "delivered", 1).await;

    let (status, list) = mesh.call(Method::GET, "/v1/webhooks").await;
    assert_eq!(status, StatusCode::OK);
    let text = list.to_string();
    assert!(
        !text.contains("hunter") && !text.contains("whsec_") && !text.contains(&SECRET[8..]),
        "{text}"
    );
    assert_eq!(list["webhooks"][1]["name"], "pipeline");
    assert_eq!(list["webhooks"][1]["counts"]["delivered"], 1);
    assert_eq!(
        (
            &list["webhooks"][0]["format"]["type"],
            &list["webhooks"][0]["signed"]
        ),
        (&"slack".into(), &false.into())
    );

    let (_, page) = mesh
        .call(Method::GET, "/v1/webhooks/pipeline/deliveries?limit=10")
        .await;
    let delivery = &page["deliveries"][0];
    assert_eq!(
        (
            &delivery["event_id"],
            &delivery["state"],
            &delivery["status"]
        ),
        (&event.id.into(), &"delivered".into(), &204.into())
    );
    assert_eq!(
        mesh.call(Method::GET, "/v1/webhooks/nobody").await.0,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_test_sends_a_signed_sample_now_and_tells_what_came_of_it() {
    let receiver = WebhookReceiver::start().await;
    let mesh = Mesh::start(&[signed("pipeline", &receiver.url("/"), "")]).await;
    let (_, good) = mesh.call(Method::POST, "/v1/webhooks/pipeline/test").await;
    assert_eq!(
        (&good["delivered"], &good["status"], &good["error"]),
        (&true.into(), &204.into(), &"".into()),
        "{good}"
    );
    let request = &receiver.received()[0];
    Webhook::new(SECRET)
        .unwrap()
        .verify(&request.body, &request.headers)
        .unwrap();
    assert_eq!(request.json()["id"], good["event_id"]);

    receiver.answer_next([CannedResponse {
        body: b"who are you".to_vec(),
        ..CannedResponse::status(401)
    }]);
    let (_, bad) = mesh.call(Method::POST, "/v1/webhooks/pipeline/test").await;
    assert_eq!(
        (&bad["delivered"], &bad["status"], &bad["error"]),
        (
            &false.into(),
            &401.into(),
            &"status 401: who are you".into()
        )
    );
    assert_eq!(
        mesh.count("pipeline", "delivered").await,
        0,
        "a test is no delivery"
    );
}
