//! The bus against a real nats-server.

#![allow(
    clippy::unwrap_used,
    reason = "a test stops where something unexpected happens"
)]

mod buckets;
mod consuming;
mod leading;
mod permissions;
mod publishing;

use mesh_bus::{Bus, Config};
use mesh_testkit::NatsServer;
use tokio_util::sync::CancellationToken;

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
