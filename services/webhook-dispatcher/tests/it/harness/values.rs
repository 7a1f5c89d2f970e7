//! Configurations, events and calls that many tests use.

use axum::http::{Method, StatusCode};
use chrono::Utc;
use mesh_events::{Event, EventType, timestamp};
use mesh_runtime::api::Role;
use mesh_testkit::{ReceivedRequest, fixtures};
use prost::Message as _;
use serde_json::Value;

use super::{DEADLINE, Mesh, SECRET};

/// Configuration of an endpoint with a receiver on this host and waits of milliseconds.
pub fn endpoint(name: &str, url: &str, more: &str) -> String {
    format!(
        "[[webhook-dispatcher.endpoints]]\nname = \"{name}\"\nurl = \"{url}\"\nallow_http = true\nallow_private = [\"127.0.0.0/8\"]\n\
         retry = {{ initial_interval = \"100ms\", multiplier = 2, max_interval = \"300ms\" }}\ntimeout = \"30s\"\n{more}\n"
    )
}

/// An endpoint that receives signed CloudEvents.
pub fn signed(name: &str, url: &str, more: &str) -> String {
    endpoint(name, url, &format!("secret = \"{SECRET}\"\n{more}"))
}

/// Messages published on a subject.
pub struct Listener<M> {
    pub(super) messages: tokio::sync::mpsc::UnboundedReceiver<M>,
}

impl<M> Listener<M> {
    pub async fn next(&mut self) -> M {
        tokio::time::timeout(DEADLINE, self.messages.recv())
            .await
            .expect("a message in time")
            .unwrap()
    }
}

/// Path of an endpoint in the API. `alice/mine` belongs to alice.
pub fn at(name: &str) -> String {
    format!("/v1/webhooks/{}", name.replace('/', "%2F"))
}

/// Calls the API as user alice.
pub async fn alice(mesh: &Mesh, method: Method, path: &str, body: &Value) -> (StatusCode, Value) {
    mesh.ask(method, path, "alice", Role::User, body).await
}

/// A current job event.
pub fn event(kind: EventType, job_id: u32) -> Event {
    let mut job = fixtures::job(job_id);
    if kind.is_end() {
        job = fixtures::ended(job, "COMPLETED", 3_725);
    }
    let mut event = fixtures::job_event(kind, job);
    event.occurred_at = Some(timestamp(Utc::now()));
    event
}

/// The ids that a receiver got, in order.
pub fn ids(received: &[ReceivedRequest]) -> Vec<String> {
    received
        .iter()
        .map(|request| request.header("webhook-id").to_owned())
        .collect()
}

/// The encoded event, as on the bus.
pub fn bytes(event: &Event) -> Vec<u8> {
    event.encode_to_vec()
}
