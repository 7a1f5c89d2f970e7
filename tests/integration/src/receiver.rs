//! An HTTP receiver that verifies requests with the Standard Webhooks library, as a user's receiver would.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use base64::Engine as _;
use mesh_events::{Event, cloudevents};
use mesh_testkit::Port;
use serde_json::Value;
use standardwebhooks::Webhook;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::Error;

/// A received request.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Path, which identifies the endpoint.
    pub path: String,
    /// `webhook-id`, which is the event's id. Empty for chat messages.
    pub id: String,
    /// Result of verifying `webhook-signature`. `None` if there is no signature.
    pub signature: Option<Result<(), String>>,
    /// The body.
    pub body: Value,
    /// Time when the request was complete.
    pub at: Instant,
    /// Status of the answer.
    pub status: u16,
}

impl Delivery {
    /// The event in the body.
    pub fn event(&self) -> Option<Event> {
        cloudevents::from_json(&self.body).ok()
    }

    /// True if it was accepted.
    pub const fn accepted(&self) -> bool {
        self.status < 300
    }
}

#[derive(Debug, Default)]
struct Log {
    deliveries: Vec<Delivery>,
    // Status by path. Others get 204.
    answers: BTreeMap<String, u16>,
}

/// The receiver, on its own port.
#[derive(Debug)]
pub struct Receiver {
    secret: String,
    port: Port,
    log: Arc<Mutex<Log>>,
    server: Option<JoinHandle<()>>,
}

impl Receiver {
    /// Starts a receiver that accepts everything.
    ///
    /// # Errors
    /// If it gets no port.
    pub async fn start() -> Result<Self, Error> {
        let key =
            base64::engine::general_purpose::STANDARD.encode(b"a secret of 32 bytes for a test!");
        let mut receiver = Self {
            secret: format!("whsec_{key}"),
            port: Port::take(),
            log: Arc::default(),
            server: None,
        };
        receiver.serve().await?;
        Ok(receiver)
    }

    async fn serve(&mut self) -> Result<(), Error> {
        let address = self.port.address();
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(Error::io("bind", address.to_string()))?;
        let webhook = Webhook::new(&self.secret)
            .map_err(|error| Error::Machine(format!("the receiver's secret: {error}")))?;
        let app = Router::new()
            .fallback(receive)
            .with_state((Arc::new(webhook), Arc::clone(&self.log)));
        self.server = Some(tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, app).await {
                anstream::eprintln!("receiver: {error}");
            }
        }));
        Ok(())
    }

    /// An endpoint for `mesh.toml` that sends to `/<name>` here, with additional keys.
    pub fn endpoint(&self, name: &str, keys: &str) -> String {
        format!(
            "[[webhook-dispatcher.endpoints]]\nname = \"{name}\"\nurl = \"http://{}/{name}\"\nsecret = \"{}\"\nallow_http = true\nallow_private = [\"127.0.0.1/32\"]\n{keys}\n",
            self.port.address(),
            self.secret
        )
    }

    /// The same for a chat, whose URL is a secret.
    pub fn chat(&self, name: &str, keys: &str) -> String {
        format!(
            "[[webhook-dispatcher.endpoints]]\nname = \"{name}\"\nurl = \"http://{}/{name}\"\nformat = \"slack\"\nallow_http = true\nallow_private = [\"127.0.0.1/32\"]\n{keys}\n",
            self.port.address()
        )
    }

    /// Requests of endpoint `name` so far.
    pub fn deliveries(&self, name: &str) -> Vec<Delivery> {
        let path = format!("/{name}");
        let log = lock(&self.log);
        let here = log
            .deliveries
            .iter()
            .filter(|delivery| delivery.path == path);
        here.cloned().collect()
    }

    /// A read-only view of present and future requests.
    pub fn requests(&self) -> Requests {
        Requests {
            log: Arc::clone(&self.log),
        }
    }

    /// Ids of the events accepted from endpoint `name`.
    pub fn accepted(&self, name: &str) -> BTreeSet<String> {
        let deliveries = self.deliveries(name);
        let accepted = deliveries.into_iter().filter(Delivery::accepted);
        accepted.map(|delivery| delivery.id).collect()
    }

    /// Sets the status for endpoint `name`.
    pub fn answer(&self, name: &str, status: u16) {
        lock(&self.log).answers.insert(format!("/{name}"), status);
    }

    /// Stops the receiver: connections are refused.
    pub async fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.abort();
            drop(server.await);
        }
    }

    /// Restarts on the same port.
    ///
    /// # Errors
    /// If the port is not available.
    pub async fn restart(&mut self) -> Result<(), Error> {
        self.stop().await;
        self.serve().await
    }
}

/// The requests of a receiver.
#[derive(Clone, Debug)]
pub struct Requests {
    log: Arc<Mutex<Log>>,
}

impl Requests {
    /// All requests from the `n`th on.
    pub fn since(&self, n: usize) -> Vec<Delivery> {
        let log = lock(&self.log);
        log.deliveries.get(n..).unwrap_or_default().to_vec()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.abort();
        }
    }
}

type Shared = (Arc<Webhook>, Arc<Mutex<Log>>);

async fn receive(
    State((webhook, log)): State<Shared>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    let at = Instant::now();
    let signed = headers.contains_key("webhook-signature");
    let signature = signed.then(|| {
        webhook
            .verify(&body, &headers)
            .map_err(|error| error.to_string())
    });
    let id = headers
        .get("webhook-id")
        .and_then(|id| id.to_str().ok())
        .unwrap_or_default();
    let mut log = lock(&log);
    let status = match &signature {
        Some(Err(_)) => 401,
        _ => log.answers.get(uri.path()).copied().unwrap_or(204),
    };
    log.deliveries.push(Delivery {
        path: uri.path().to_owned(),
        id: id.to_owned(),
        signature,
        body: serde_json::from_slice(&body).unwrap_or_default(),
        at,
        status,
    });
    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

fn lock(log: &Mutex<Log>) -> MutexGuard<'_, Log> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}
