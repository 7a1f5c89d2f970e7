//! A service in the process of a test, and the test's own connection to the bus.

pub mod openapi;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::{Request, StatusCode};
use axum::{Extension, Router};
use futures_util::StreamExt as _;
use mesh_bus::{Bus, Config, StartPosition};
use mesh_events::{Event, EventId, EventType};
use mesh_runtime::api::Caller;
use mesh_runtime::{BoxError, ConfigFile, Context, Health, Service, ServiceSection};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::{NatsServer, fixtures, wait_for};

/// A running service. Ends abruptly on drop.
pub struct TestService {
    /// Routes of its API.
    pub router: Router,
    /// Its readiness.
    pub health: Health,
    shutdown: CancellationToken,
    work: JoinHandle<Result<(), BoxError>>,
}

impl TestService {
    /// Starts a service with a configuration file.
    ///
    /// # Errors
    /// If the file is invalid, or the service cannot start.
    pub async fn start<S: Service>(file: &Path) -> Result<Self, BoxError> {
        let config = ConfigFile::load(&[ServiceSection::of::<S>()], Some(file))?;
        let shutdown = CancellationToken::new();
        let context = Context::new(config, shutdown.clone())?;
        let health = context.health.clone();
        // Boxed: it is large, and part of the futures of all tests.
        let started = Box::pin(S::start(context)).await?;
        Ok(Self {
            router: started.router,
            health,
            shutdown,
            work: tokio::spawn(started.run),
        })
    }

    /// Asks its API as a caller.
    ///
    /// # Panics
    /// If the answer breaks off.
    pub async fn call(&self, caller: Caller, request: Request<Body>) -> (StatusCode, Bytes) {
        call(&self.router, caller, request).await
    }

    /// Asks its API in JSON. The answer is null if it is not JSON.
    ///
    /// # Panics
    /// If the answer breaks off.
    pub async fn ask(
        &self,
        caller: Caller,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> (StatusCode, Value) {
        ask(&self.router, caller, method, path, body).await
    }

    /// Serves its API to a caller on a TCP port of this host. Returns the URL.
    ///
    /// # Panics
    /// If no port is free.
    pub async fn serve(&self, caller: Caller) -> String {
        let routes = self.router.clone().layer(Extension(caller));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port");
        let address = listener.local_addr().expect("its address");
        tokio::spawn(async move { axum::serve(listener, routes).await });
        format!("http://{address}")
    }

    /// Paths of its routes.
    pub fn routes(&self) -> BTreeSet<String> {
        let debug_text = format!("{:?}", self.router);
        let texts = debug_text.split('"').filter(|text| text.starts_with("/v1"));
        texts.map(str::to_owned).collect()
    }

    /// Stops as after SIGTERM.
    ///
    /// # Panics
    /// If its work ends with an error.
    pub async fn stop(mut self) {
        self.shutdown.cancel();
        let ended = (&mut self.work).await.expect("the service panicked");
        ended.expect("the service failed");
    }

    /// Ends abruptly, as after SIGKILL: what was not committed is lost.
    pub async fn kill(mut self) {
        self.work.abort();
        drop((&mut self.work).await);
    }
}

impl Drop for TestService {
    fn drop(&mut self) {
        self.work.abort();
    }
}

/// Asks routes as a caller.
///
/// # Panics
/// If the answer breaks off.
pub async fn call(
    router: &Router,
    caller: Caller,
    mut request: Request<Body>,
) -> (StatusCode, Bytes) {
    request.extensions_mut().insert(caller);
    let Ok(answer) = router.clone().oneshot(request).await;
    let status = answer.status();
    let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await;
    (status, body.expect("a whole answer"))
}

/// Asks routes in JSON. The answer is null if it is not JSON.
///
/// # Panics
/// If the answer breaks off.
pub async fn ask(
    router: &Router,
    caller: Caller,
    method: &str,
    path: &str,
    body: Option<&Value>,
) -> (StatusCode, Value) {
    let request = Request::builder().method(method).uri(path);
    let request = match body {
        Some(body) => request
            .header("content-type", "application/json")
            .body(Body::from(body.to_string())),
        None => request.body(Body::empty()),
    };
    let (status, body) = call(router, caller, request.expect("a request")).await;
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

/// The test's own connection, with streams and buckets declared.
///
/// # Panics
/// If the server does not answer.
pub async fn admin_bus(nats: &NatsServer) -> Bus {
    let config = Config {
        url: nats.url(),
        ..Config::default()
    };
    let bus = Bus::connect(&config, "admin").await.expect("a bus");
    let ready = bus.ready(&CancellationToken::new()).await;
    ready.expect("streams and buckets");
    bus
}

/// Publishes an event, and again while NATS is unavailable.
///
/// # Panics
/// If the event is invalid.
pub async fn publish(bus: &Bus, event: &Event) {
    bus.publish_until_done(event, &CancellationToken::new())
        .await
        .expect("a valid event");
}

/// All events on the bus so far of which `filter` is true, up to a marker published for this purpose. Waits while NATS is unavailable.
///
/// # Panics
/// If the bus cannot be read in time.
pub async fn published_so_far(
    bus: &Bus,
    deadline: Duration,
    filter: impl Fn(&Event) -> bool,
) -> Vec<Event> {
    wait_for("all events so far", deadline, async || {
        events(bus, &filter).await.ok()
    })
    .await
}

async fn events(bus: &Bus, filter: impl Fn(&Event) -> bool) -> Result<Vec<Event>, mesh_bus::Error> {
    let unique = format!("mark/{:?}", Instant::now());
    let mark = EventId::sampled("mark", &unique, EventType::UserLogin, 1).to_string();
    let template = fixtures::job_event(EventType::JobSuspended, fixtures::job(999_999));
    bus.publish(&Event {
        id: mark.clone(),
        ..template
    })
    .await?;
    let mut messages = Box::pin(bus.follow("slurm.>", StartPosition::Sequence(1)).await?);
    let mut events = Vec::new();
    while let Some(message) = messages.next().await {
        let event = message?.event().expect("a valid event");
        if event.id == mark {
            break;
        }
        if filter(&event) {
            events.push(event);
        }
    }
    Ok(events)
}
