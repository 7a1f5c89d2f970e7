//! The responsible party of a failure (owner, receiver or dispatcher) in attempts, metrics, the audit and on dead
//! letters.

use std::collections::BTreeMap;

use axum::http::Method;
use mesh_events::EventType;
use mesh_events::proto::mesh::audit::v1::audit_entry::Act;
use mesh_events::proto::mesh::audit::v1::{AuditEntry, DeadLetter};
use mesh_testkit::{CannedResponse, WebhookReceiver};
use metrics_exporter_prometheus::PrometheusBuilder;

use crate::dns::{Dns, always};
use crate::harness::{Mesh, endpoint, event, signed};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_owners_receivers_and_our_own_are_told_apart_everywhere() {
    let metrics = PrometheusBuilder::new().install_recorder().unwrap();
    let (refusing, failing) = (
        WebhookReceiver::start().await,
        WebhookReceiver::start().await,
    );
    refusing.answer_always(CannedResponse::status(404));
    failing.answer_always(CannedResponse::status(503));
    let dns = Dns::start([("proxied.example.org", always(&["127.0.0.2"]))]).await;
    // A proxy that is down: no test uses this port.
    let proxy = "127.0.0.1:1";
    let once = "max_attempts = 1";
    let template =
        "format = { type = \"template\", body = '{{ node.name }}' }\ntypes = [\"job.*\"]";
    let expected = BTreeMap::from([
        ("whose-refused", ("refused", "owner")),
        ("whose-address", ("address", "owner")),
        ("whose-content", ("content", "owner")),
        ("whose-failing", ("failing", "receiver")),
        ("whose-proxy", ("proxy", "dispatcher")),
    ]);
    let mut mesh = Mesh::without_dispatcher().await;
    mesh.settings = dns.setting();
    let mut audit = mesh.listen::<AuditEntry>("mesh.*.audit.delivery").await;
    let mut dead = mesh
        .listen::<DeadLetter>("mesh.dead.webhook-dispatcher")
        .await;
    mesh.run(&[
        signed("whose-refused", &refusing.url("/"), once),
        signed("whose-address", "http://missing.example.org/", once),
        endpoint("whose-content", &refusing.url("/"), template),
        signed("whose-failing", &failing.url("/"), once),
        signed("whose-proxy", "https://proxied.example.org/", once),
        format!("[webhook-dispatcher.proxy]\nurl = \"http://{proxy}\"\nno_proxy = [\"127.0.0.0/8\", \"missing.example.org\"]"),
    ])
    .await;
    mesh.publish(&event(EventType::JobStarted, 1)).await;

    let mut audited = BTreeMap::new();
    let mut letters = BTreeMap::new();
    for _ in &expected {
        let Some(Act::Delivery(sent)) = audit.next().await.act else {
            panic!("no outcome");
        };
        audited.insert(sent.endpoint, (sent.cause, sent.side));
        let letter = dead.next().await;
        letters.insert(letter.consumer, letter.side);
    }
    let rendered = metrics.render();
    for (name, (cause, side)) in expected {
        assert_eq!(audited[name], (cause.to_owned(), side.to_owned()), "{name}");
        assert_eq!(letters[&format!("webhook-dispatcher/{name}")], side);
        let path = format!("/v1/webhooks/{name}/deliveries?cause={cause}");
        let (_, answer) = mesh.call(Method::GET, &path).await;
        assert_eq!(answer["deliveries"][0]["state"], "dead", "{name}: {answer}");
        let counted = rendered.lines().any(|line| {
            line.starts_with("webhook_dispatcher_attempt_failures_total")
                && [
                    name,
                    &format!("cause=\"{cause}\""),
                    &format!("side=\"{side}\""),
                ]
                .iter()
                .all(|part| line.contains(part))
        });
        assert!(counted, "{name} in {rendered}");
    }
}
