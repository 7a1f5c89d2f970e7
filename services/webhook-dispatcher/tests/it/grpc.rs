//! The gRPC interface of the API.

use axum::http::{Method, StatusCode};
use mesh_api::webhook::webhooks_service_client::WebhooksServiceClient;
use mesh_events::proto::mesh::webhook::v1::{
    CreateWebhookRequest, DeleteWebhookRequest, ListWebhooksRequest, TestWebhookRequest,
};
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::{WebhookReceiver, wait_until};
use serde_json::json;
use tonic::Code;

use crate::harness::{DEADLINE, Kind, Mesh, SECRET};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_does_as_rest_does() {
    let receiver = WebhookReceiver::start().await;
    let mesh = Mesh::for_api(Kind::Sqlite).await;
    let client = async |caller: Caller| {
        let url = mesh.serve(caller).await;
        let endpoint = tonic::transport::Endpoint::from_shared(url).unwrap();
        WebhooksServiceClient::new(endpoint.connect().await.unwrap())
    };
    let mut alice = client(Caller::peer("alice", 1, Role::User)).await;
    let mut bob = client(Caller::peer("bob", 2, Role::User)).await;
    let spec = json!({
        "name": "mine", "url": receiver.url("/"), "concurrency": 2, "secret": SECRET, "rate_limit": "100/s", "burst": 3,
        "success": ["2xx", "302"], "give_up_after": "1d", "max_attempts": 5, "timeout": "5s", "max_event_age": "1h",
    });
    let spec = Some(serde_json::from_value(spec).unwrap());
    let made = alice
        .create_webhook(CreateWebhookRequest { spec })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(made.secret, SECRET);
    let listed = alice
        .list_webhooks(ListWebhooksRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(listed.webhooks.len(), 1);
    let over_rest = mesh.call(Method::GET, "/v1/webhooks/alice%2Fmine").await.1;
    let spec = serde_json::to_value(listed.webhooks[0].spec.as_ref()).unwrap();
    for key in [
        "url",
        "users",
        "rate_limit",
        "success",
        "give_up_after",
        "timeout",
        "max_event_age",
    ] {
        assert_eq!(spec[key], over_rest[key], "{key}");
    }
    assert_eq!(
        (&over_rest["burst"], &over_rest["max_attempts"]),
        (&json!(3), &json!(5))
    );
    assert_eq!(listed.webhooks[0].full_name, "alice/mine");
    let circuit = listed.webhooks[0].circuit.clone().unwrap();
    assert_eq!(over_rest["circuit"]["state"], circuit.state);
    assert!(
        bob.list_webhooks(ListWebhooksRequest {})
            .await
            .unwrap()
            .into_inner()
            .webhooks
            .is_empty()
    );
    let name = "mine".to_owned();
    let test = TestWebhookRequest {
        name: name.clone(),
        ..TestWebhookRequest::default()
    };
    assert_eq!(
        bob.test_webhook(test.clone()).await.unwrap_err().code(),
        Code::NotFound
    );
    assert!(
        alice
            .test_webhook(test)
            .await
            .unwrap()
            .into_inner()
            .delivered
    );
    let empty = alice
        .create_webhook(CreateWebhookRequest { spec: None })
        .await;
    assert_eq!(empty.unwrap_err().code(), Code::InvalidArgument);
    alice
        .delete_webhook(DeleteWebhookRequest { name })
        .await
        .unwrap();
    wait_until("it is gone", DEADLINE, async || {
        mesh.call(Method::GET, "/v1/webhooks/alice%2Fmine").await.0 == StatusCode::NOT_FOUND
    })
    .await;
}
