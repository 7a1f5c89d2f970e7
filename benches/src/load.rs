//! A bus, job events at a steady rate, and a receiver that records the arrival times.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use chrono::Utc;
use mesh_bus::Bus;
use mesh_events::{Event, EventType, timestamp};
use mesh_testkit::{NatsServer, fixtures};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::stats::Sorted;

/// Signs deliveries. Any key will do.
pub const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A new server with everything declared, and a connection with all permissions.
pub async fn server() -> anyhow::Result<(NatsServer, Bus)> {
    let (mut servers, bus) = servers(1).await?;
    Ok((servers.remove(0), bus))
}

/// Several servers, each with all streams.
pub async fn servers(count: usize) -> anyhow::Result<(Vec<NatsServer>, Bus)> {
    let servers = NatsServer::start_cluster(count).await;
    let config = mesh_bus::Config {
        url: NatsServer::urls(&servers),
        replicas: count,
        ..mesh_bus::Config::default()
    };
    let bus = Bus::connect(&config, "admin").await?;
    bus.ready(&CancellationToken::new()).await?;
    Ok((servers, bus))
}

/// A synthetic job start.
pub fn event(job_id: u32) -> Event {
    let mut event = fixtures::job_event(EventType::JobStarted, fixtures::job(job_id));
    event.occurred_at = Some(timestamp(Utc::now()));
    event
}

/// Arrival times of requests, by `webhook-id`.
type Arrivals = Arc<Mutex<HashMap<String, Vec<Instant>>>>;

/// An HTTP receiver that answers at once and stores only arrival times.
pub struct Receiver {
    arrivals: Arrivals,
    address: SocketAddr,
}

impl Receiver {
    pub async fn start() -> anyhow::Result<Self> {
        let arrivals = Arrivals::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let app = Router::new()
            .fallback(note)
            .with_state(Arc::clone(&arrivals));
        tokio::spawn(async move { axum::serve(listener, app).await });
        Ok(Self { arrivals, address })
    }

    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// The endpoint of this receiver for mesh.toml.
    pub fn endpoint(&self) -> String {
        format!(
            "[[webhook-dispatcher.endpoints]]\nname = \"bench\"\nurl = \"{}\"\nsecret = \"{SECRET}\"\ntypes = [\"job.*\"]\n\
             allow_http = true\nallow_private = [\"127.0.0.0/8\"]\n",
            self.url()
        )
    }

    pub fn count(&self) -> usize {
        self.arrivals
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }

    /// Takes all arrivals so far and resets the receiver.
    pub fn take(&self) -> HashMap<String, Vec<Instant>> {
        std::mem::take(&mut self.arrivals.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn note(
    State(arrivals): State<Arrivals>,
    headers: HeaderMap,
    _body: axum::body::Bytes,
) -> StatusCode {
    let id = headers
        .get("webhook-id")
        .and_then(|id| id.to_str().ok())
        .unwrap_or_default()
        .to_owned();
    arrivals
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .entry(id)
        .or_default()
        .push(Instant::now());
    StatusCode::NO_CONTENT
}

/// Result of a load.
pub struct Delivered {
    /// Time from the publish call to JetStream's acknowledgement.
    pub stored: Sorted,
    /// Time from the publish call to the complete POST.
    pub received: Sorted,
    pub events: usize,
    pub lost: usize,
    pub twice: usize,
}

/// Publishes events at a rate, independently of the answers, and waits for their deliveries. `first` makes their ids unique.
pub async fn deliver(
    bus: &Bus,
    receiver: &Receiver,
    first: u32,
    rate: u32,
    seconds: u32,
) -> anyhow::Result<Delivered> {
    let mut publishing: JoinSet<anyhow::Result<(String, Instant, Duration)>> = JoinSet::new();
    at_rate(rate, seconds, |n| {
        let (bus, event) = (bus.clone(), event(first + n));
        publishing.spawn(async move {
            let start = Instant::now();
            bus.publish(&event).await.context("publish")?;
            Ok((event.id, start, start.elapsed()))
        });
    })
    .await;
    let mut published = HashMap::new();
    let mut stored = Vec::new();
    while let Some(done) = publishing.join_next().await {
        let (id, start, took) = done??;
        stored.push(took);
        published.insert(id, start);
    }
    // Deliveries that have not arrived by then count as lost.
    let patience = Instant::now() + Duration::from_secs(30);
    while receiver.count() < published.len() && Instant::now() < patience {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let arrivals = receiver.take();
    let received = published.iter().filter_map(|(id, start)| {
        Some(arrivals.get(id)?.first()?.saturating_duration_since(*start))
    });
    Ok(Delivered {
        stored: Sorted::milliseconds(stored),
        received: Sorted::milliseconds(received),
        events: published.len(),
        lost: published
            .keys()
            .filter(|id| !arrivals.contains_key(*id))
            .count(),
        twice: arrivals.values().filter(|times| times.len() > 1).count(),
    })
}

impl Delivered {
    /// # Errors
    /// If a delivery was lost or duplicated. The times then mean nothing.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.lost + self.twice > 0 {
            bail!(
                "of {} events {} were lost and {} came twice",
                self.events,
                self.lost,
                self.twice
            );
        }
        Ok(())
    }
}

/// Calls `offer` at a steady rate, numbered from 0.
pub async fn at_rate(rate: u32, seconds: u32, mut offer: impl FnMut(u32)) {
    let start = Instant::now();
    for n in 0..rate * seconds {
        tokio::time::sleep_until((start + Duration::from_secs(1) * n / rate).into()).await;
        offer(n);
    }
}
