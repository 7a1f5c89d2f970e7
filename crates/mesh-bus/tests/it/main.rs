//! The bus against a real nats-server.

#![allow(
    clippy::unwrap_used,
    reason = "a test stops where something unexpected happens"
)]

mod authentication;
mod batches;
mod buckets;
mod consuming;
mod leading;
mod permissions;
mod probing;
mod provisioning;
mod publishing;
mod repairing;
mod rights;

use std::time::Duration;

use mesh_bus::{Bus, Config};
use mesh_testkit::NatsServer;
use tokio_util::sync::CancellationToken;

/// Deadline for any wait, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Requests for a consumer of the public stream, as the server gets them.
async fn lookups(nats: &NatsServer, consumer: &str) -> async_nats::Subscriber {
    let client = async_nats::connect(nats.url()).await.unwrap();
    let subject = format!("$JS.API.CONSUMER.INFO.SLURM_EVENTS.{consumer}");
    let lookups = client.subscribe(subject).await.unwrap();
    client.flush().await.unwrap();
    lookups
}

async fn connect(nats: &NatsServer, role: &str) -> Bus {
    let bus = Bus::connect(
        &Config {
            url: nats.url(),
            ..Config::default()
        },
        role,
    )
    .await
    .unwrap();
    bus.ready(&CancellationToken::new()).await.unwrap();
    bus
}
