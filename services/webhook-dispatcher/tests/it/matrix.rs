//! Every route and every gRPC method, as each kind of caller, on an existing endpoint with a dead letter.

use std::collections::BTreeSet;

use axum::http::{Method, StatusCode};
use mesh_api::webhook::webhooks_service_client::WebhooksServiceClient;
use mesh_events::EventType;
use mesh_events::proto::mesh::webhook::v1::{
    CreateWebhookRequest, DeleteWebhookRequest, GetDeliveryRequest, GetWebhookRequest,
    ListDeliveriesRequest, ListRedeliveriesRequest, ListWebhooksRequest, PauseWebhookRequest,
    PreviewWebhookRequest, RedeliverRequest, ResumeWebhookRequest, RotateSecretRequest,
    TestWebhookRequest, UpdateWebhookRequest,
};
use mesh_runtime::api::{Caller, Role};
use mesh_testkit::{CannedResponse, WebhookReceiver};
use serde_json::{Value, json};
use tonic::transport::Endpoint;
use tonic::{Code, Response, Status};

use crate::harness::{Kind, Mesh, alice, event};

/// Callers: the owner, another user, an auditor, an administrator. For each there is an endpoint of alice's,
/// `of-<who>`.
const CALLERS: [(&str, Role); 4] = [
    ("alice", Role::User),
    ("bob", Role::User),
    ("eve", Role::Auditor),
    ("root", Role::Admin),
];

/// Kind of access of a route.
#[derive(Clone, Copy, PartialEq)]
enum Act {
    /// Reads one endpoint.
    Read,
    /// Changes one endpoint, or sends to it.
    Write,
    /// Creates an endpoint.
    Make,
    /// Returns what the caller may see.
    Any,
}

impl Act {
    /// The expected result for a caller.
    fn expected(self, who: &str) -> Code {
        match (self, who) {
            (Self::Any, _) | (_, "alice" | "root") | (Self::Read, "eve") => Code::Ok,
            (Self::Make, "bob") => Code::Ok,
            (_, "eve") => Code::PermissionDenied,
            _ => Code::NotFound,
        }
    }
}

/// A mesh, and the event that is a dead letter at each endpoint.
async fn mesh() -> (Mesh, WebhookReceiver, String) {
    let receiver = WebhookReceiver::start().await;
    receiver.answer_always(CannedResponse::status(404));
    let mesh = Mesh::for_api(Kind::Sqlite).await;
    for (who, _) in CALLERS {
        let spec = json!({"name": format!("of-{who}"), "url": receiver.url("/"), "types": ["job.started"]});
        let (status, made) = alice(&mesh, Method::POST, "/v1/webhooks", &spec).await;
        assert_eq!(status, StatusCode::CREATED, "{made}");
    }
    let event = event(EventType::JobStarted, 1);
    mesh.publish(&event).await;
    for (who, _) in CALLERS {
        mesh.wait_for_count(&format!("alice/of-{who}"), "dead", 1)
            .await;
    }
    receiver.answer_always(CannedResponse::status(204));
    (mesh, receiver, event.id)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_is_for_whom_it_should_be() {
    let (mesh, receiver, id) = mesh().await;
    let url = receiver.url("/");
    let none = Value::Null;
    // The last one removes the endpoint.
    let routes = [
        ("get", "/v1/webhooks", Act::Any, none.clone()),
        ("post", "/v1/webhooks", Act::Make, json!({"url": url})),
        (
            "post",
            "/v1/webhooks/preview",
            Act::Any,
            json!({"format": "slack"}),
        ),
        ("get", "/v1/webhooks/{name}", Act::Read, none.clone()),
        (
            "patch",
            "/v1/webhooks/{name}",
            Act::Write,
            json!({"description": "x"}),
        ),
        (
            "get",
            "/v1/webhooks/{name}/deliveries",
            Act::Read,
            none.clone(),
        ),
        (
            "get",
            "/v1/webhooks/{name}/deliveries/{id}",
            Act::Read,
            none.clone(),
        ),
        (
            "post",
            "/v1/webhooks/{name}/redeliver",
            Act::Write,
            json!({"all": true}),
        ),
        (
            "get",
            "/v1/webhooks/{name}/redeliveries",
            Act::Read,
            none.clone(),
        ),
        ("post", "/v1/webhooks/{name}/test", Act::Write, none.clone()),
        (
            "post",
            "/v1/webhooks/{name}/rotate",
            Act::Write,
            none.clone(),
        ),
        (
            "post",
            "/v1/webhooks/{name}/pause",
            Act::Write,
            none.clone(),
        ),
        (
            "post",
            "/v1/webhooks/{name}/resume",
            Act::Write,
            none.clone(),
        ),
        ("delete", "/v1/webhooks/{name}", Act::Write, none.clone()),
    ];
    let tried = routes.iter().map(|(method, path, ..)| (*method, *path));
    let tried: BTreeSet<_> = tried.collect();
    let (_, described) = mesh.call(Method::GET, "/v1/webhooks/openapi.json").await;
    let paths = described["paths"].as_object().unwrap();
    let described: BTreeSet<_> = paths
        .iter()
        .flat_map(|(path, methods)| {
            let methods = methods.as_object().unwrap().keys();
            methods.map(|method| (method.as_str(), path.as_str()))
        })
        .collect();
    assert_eq!(tried, described);
    for (who, role) in CALLERS {
        for (method, path, act, body) in &routes {
            let mut body = body.clone();
            if *act == Act::Make {
                body["name"] = format!("made-by-{who}").into();
            }
            let of = |name: &str| {
                let path = path.replace("{name}", name);
                path.replace("{id}", &id)
            };
            let method: Method = method.to_uppercase().parse().unwrap();
            if path.contains("{name}") && who != "alice" {
                // A plain name does not refer to alice's endpoint for others.
                let path = of(&format!("of-{who}"));
                let (status, answer) = mesh.ask(method.clone(), &path, who, role, &body).await;
                assert_eq!(status, StatusCode::NOT_FOUND, "{path} as {who}: {answer}");
            }
            let path = of(&format!("alice%2Fof-{who}"));
            let (status, answer) = mesh.ask(method.clone(), &path, who, role, &body).await;
            let fits = match act.expected(who) {
                Code::Ok => status.is_success(),
                Code::NotFound => status == StatusCode::NOT_FOUND,
                _ => status == StatusCode::FORBIDDEN,
            };
            assert!(fits, "{method} {path} as {who}: {status} {answer}");
        }
    }
}

/// The gRPC code of a response.
fn code<T>(answer: &Result<Response<T>, Status>) -> Code {
    answer.as_ref().map_or_else(Status::code, |_| Code::Ok)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_method_is_for_whom_it_should_be() {
    let (mesh, receiver, event_id) = mesh().await;
    let file = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../proto/mesh/webhook/v1/webhook.proto"
    ))
    .unwrap();
    for (n, (who, role)) in (1..).zip(CALLERS) {
        let endpoint = Endpoint::from_shared(mesh.serve(Caller::peer(who, n, role)).await).unwrap();
        let mut client = WebhooksServiceClient::new(endpoint.connect().await.unwrap());
        let name = format!("alice/of-{who}");
        let of = |spec: Value| Some(serde_json::from_value(spec).unwrap());
        let made = of(json!({"name": format!("made-by-{who}"), "url": receiver.url("/")}));
        let changed = of(json!({"description": "x"}));
        let mut tried = BTreeSet::new();
        // Each method with its request. The last one removes the endpoint.
        macro_rules! ask {
            ($rpc:literal, $act:ident, $method:ident, $request:expr) => {
                let answer = client.$method($request).await;
                let expected = Act::$act.expected(who);
                assert_eq!(code(&answer), expected, "{} as {who}: {answer:?}", $rpc);
                tried.insert($rpc);
            };
            ($rpc:literal, $act:ident, $method:ident of $request:ident { $($more:tt)* }) => {
                ask!($rpc, $act, $method, $request { name: name.clone(), $($more)* });
            };
        }
        ask!("ListWebhooks", Any, list_webhooks, ListWebhooksRequest {});
        ask!(
            "CreateWebhook",
            Make,
            create_webhook,
            CreateWebhookRequest { spec: made }
        );
        let preview = PreviewWebhookRequest {
            format: of(json!({"type": "slack"})),
            ..PreviewWebhookRequest::default()
        };
        ask!("PreviewWebhook", Any, preview_webhook, preview);
        ask!("GetWebhook", Read, get_webhook of GetWebhookRequest {});
        ask!("UpdateWebhook", Write, update_webhook of UpdateWebhookRequest { patch: changed });
        ask!("ListDeliveries", Read, list_deliveries of ListDeliveriesRequest { ..Default::default() });
        ask!("GetDelivery", Read, get_delivery of GetDeliveryRequest { event_id: event_id.clone() });
        ask!("Redeliver", Write, redeliver of RedeliverRequest { all: true, ..Default::default() });
        ask!("ListRedeliveries", Read, list_redeliveries of ListRedeliveriesRequest {});
        ask!("TestWebhook", Write, test_webhook of TestWebhookRequest { ..Default::default() });
        ask!("RotateSecret", Write, rotate_secret of RotateSecretRequest { ..Default::default() });
        ask!("PauseWebhook", Write, pause_webhook of PauseWebhookRequest { ..Default::default() });
        ask!("ResumeWebhook", Write, resume_webhook of ResumeWebhookRequest {});
        ask!("DeleteWebhook", Write, delete_webhook of DeleteWebhookRequest {});
        let methods = file
            .lines()
            .filter_map(|line| line.trim().strip_prefix("rpc "));
        let methods: BTreeSet<_> = methods
            .filter_map(|line| Some(line.split_once('(')?.0))
            .collect();
        assert_eq!(tried, methods);
    }
}
