//! The bus against a real nats-server.

#![allow(
    clippy::unwrap_used,
    reason = "a test stops where something unexpected happens"
)]

mod authentication;
mod batches;
mod buckets;
mod consuming;
mod fail_over;
mod leading;
mod least_privilege;
mod permissions;
mod probing;
mod provisioning;
mod publishing;
mod raw;
mod repairing;
mod replies;
mod rights;

use std::time::Duration;

use mesh_bus::{Bus, Config};
use mesh_testkit::NatsServer;
use tokio_util::sync::CancellationToken;

/// Deadline for any wait, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

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
