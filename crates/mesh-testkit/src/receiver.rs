//! A real HTTP receiver that records requests and answers as a test configures it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Response};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::Port;

/// A request as it was received.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    /// Path and query.
    pub path: String,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Vec<u8>,
    /// When it was complete.
    pub at: Instant,
}

impl ReceivedRequest {
    /// A header as text.
    ///
    /// # Panics
    /// If it is missing or not text.
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .unwrap_or_else(|| panic!("no header {name}"))
            .to_str()
            .expect("a header of text")
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// If it is not JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("a JSON body")
    }
}

/// A prepared response.
#[derive(Clone, Debug)]
pub struct CannedResponse {
    /// HTTP status.
    pub status: u16,
    /// Headers.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: Vec<u8>,
    /// Delay before the response.
    pub delay: Duration,
}

impl CannedResponse {
    /// An empty response with a status.
    pub fn status(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: Vec::new(),
            delay: Duration::ZERO,
        }
    }
}

struct Shared {
    received: Mutex<Vec<ReceivedRequest>>,
    script: Mutex<VecDeque<CannedResponse>>,
    otherwise: Mutex<CannedResponse>,
}

/// An HTTP receiver on its own port.
pub struct WebhookReceiver {
    shared: Arc<Shared>,
    port: Port,
    server: Option<JoinHandle<()>>,
}

impl WebhookReceiver {
    /// Starts a receiver that answers 204.
    ///
    /// # Panics
    /// If no port can be bound.
    pub async fn start() -> Self {
        let shared = Arc::new(Shared {
            received: Mutex::default(),
            script: Mutex::default(),
            otherwise: Mutex::new(CannedResponse::status(204)),
        });
        let mut receiver = Self {
            shared,
            port: Port::take(),
            server: None,
        };
        receiver.serve().await;
        receiver
    }

    async fn serve(&mut self) {
        let listener = TcpListener::bind(self.port.address())
            .await
            .expect("bind the port");
        let app = Router::new()
            .fallback(receive)
            .with_state(Arc::clone(&self.shared));
        self.server = Some(tokio::spawn(async move {
            axum::serve(listener, app).await.expect("serve")
        }));
    }

    /// Its address with a path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.port.address())
    }

    /// Everything received so far.
    ///
    /// # Panics
    /// If a handler panicked.
    pub fn received(&self) -> Vec<ReceivedRequest> {
        self.shared
            .received
            .lock()
            .expect("no panic while locked")
            .clone()
    }

    /// Queues responses for the next requests, one each.
    ///
    /// # Panics
    /// If a handler panicked.
    pub fn answer_next(&self, answers: impl IntoIterator<Item = CannedResponse>) {
        self.shared
            .script
            .lock()
            .expect("no panic while locked")
            .extend(answers);
    }

    /// Sets the response of requests without a queued one.
    ///
    /// # Panics
    /// If a handler panicked.
    pub fn answer_always(&self, answer: CannedResponse) {
        *self.shared.otherwise.lock().expect("no panic while locked") = answer;
    }

    /// Stops listening: connections are refused.
    pub async fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.abort();
            drop(server.await);
        }
    }

    /// Listens again on the same port.
    ///
    /// # Panics
    /// If it does not get it.
    pub async fn restart(&mut self) {
        self.stop().await;
        self.serve().await;
    }
}

impl Drop for WebhookReceiver {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.abort();
        }
    }
}

async fn receive(State(shared): State<Arc<Shared>>, request: Request) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, 16 << 20).await.unwrap_or_default().to_vec();
    let path = parts
        .uri
        .path_and_query()
        .map(ToString::to_string)
        .unwrap_or_default();
    let received = ReceivedRequest {
        path,
        headers: parts.headers,
        body,
        at: Instant::now(),
    };
    shared
        .received
        .lock()
        .expect("no panic while locked")
        .push(received);
    let scripted = shared
        .script
        .lock()
        .expect("no panic while locked")
        .pop_front();
    let answer = scripted.unwrap_or_else(|| {
        shared
            .otherwise
            .lock()
            .expect("no panic while locked")
            .clone()
    });
    tokio::time::sleep(answer.delay).await;
    let mut response = Response::builder().status(answer.status);
    for (name, value) in &answer.headers {
        response = response.header(name, value);
    }
    response
        .body(Body::from(answer.body))
        .expect("a valid answer")
}
