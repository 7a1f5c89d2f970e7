//! For tests: a real Slurm cluster, a service in the test's process, nats-server, PostgreSQL, OIDC provider and HTTP receiver, a witness of logs, Prometheus, a stand-in for dcgm-exporter, two replicas of a service,
//! ports, programs and small disks, builders of events, and waits on conditions.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test stops where its set-up fails"
)]

mod cluster;
mod cluster_ports;
mod damage;
mod dcgm;
mod disk;
pub mod fixtures;
pub mod long_queue;
mod loop_disk;
mod nats;
mod oidc;
mod openapi;
mod port;
mod postgres;
mod program;
mod prometheus;
mod receiver;
mod replicas;
#[cfg(feature = "service")]
pub mod service;
mod witness;

pub use cluster::SlurmCluster;
pub use cluster_ports::ClusterPorts;
pub use damage::assert_corruption_reported;
pub use dcgm::DcgmExporter;
pub use disk::SmallDisk;
pub use loop_disk::LoopDisk;
pub use nats::{NatsServer, nats_server};
pub use oidc::OidcProvider;
pub use openapi::assert_committed_openapi;
pub use port::Port;
pub use postgres::{PausedPostgres, Postgres, psql};
pub use program::{copy_program, script};
pub use prometheus::Prometheus;
pub use receiver::{CannedResponse, ReceivedRequest, WebhookReceiver};
pub use replicas::Replicas;
pub use witness::WitnessServer;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// Writes a file that only its owner may read, as every file with a secret has to be.
///
/// # Panics
/// If that is not possible.
pub fn write_private(path: &Path, text: impl AsRef<[u8]>) {
    std::fs::write(path, text).expect("write a file");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).expect("chmod 600");
}

/// Waits until a condition holds; panics with `description` after the deadline.
///
/// # Panics
/// If the condition does not hold in time.
pub async fn wait_until(
    description: &str,
    deadline: Duration,
    mut condition: impl AsyncFnMut() -> bool,
) {
    let start = Instant::now();
    while !condition().await {
        assert!(
            start.elapsed() < deadline,
            "not within {deadline:?}: {description}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Like [`wait_until`], for a value that appears.
///
/// # Panics
/// If the value does not appear in time.
pub async fn wait_for<T>(
    description: &str,
    deadline: Duration,
    mut value: impl AsyncFnMut() -> Option<T>,
) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = value().await {
            return value;
        }
        assert!(
            start.elapsed() < deadline,
            "not within {deadline:?}: {description}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
