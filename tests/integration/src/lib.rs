//! Everything together: a real Slurm cluster, the real `smesh up`, real receivers. For the demo and the integration tests.
//!
//! - [`Cluster`]: Slurm in a folder, whose hooks ring a mesh. [`Marks`]: when jobs and hooks were where, by this process's clock.
//! - [`Mesh`]: `smesh up` as a child process, and its API. [`Fact`]: what its ledger holds.
//! - [`Service`]: a service as a process of its own.
//! - [`Receiver`]: an HTTP receiver that verifies signatures.
//! - [`scenario`]: a day in short, and what must come of it. [`soak`]: random days with random faults.
//!
//! Deliberately absent: anything that knows how the services work inside. What is used of the project is its contract, `mesh-events`,
//! and a reader of its bus.

mod alone;
mod attached;
mod cluster;
mod error;
mod fact;
mod http;
mod marks;
mod mesh;
mod programs;
mod receiver;
pub mod scenario;
mod service;
pub mod soak;

use std::time::Duration;

pub use alone::{free_ports, interrupted};
pub use attached::Attached;
pub use cluster::{Cluster, ClusterOptions, Slurm};
pub use error::Error;
pub use fact::{Fact, Run, lives, recorded_ids};
pub use http::Answer;
pub use marks::{Mark, Marks};
pub use mesh::{Mesh, MeshOptions};
pub use programs::Programs;
pub use receiver::{Delivery, Receiver, Requests};
pub use service::Service;

/// Asks until there is a value, every 100 ms.
///
/// # Errors
/// [`Error::Deadline`] with `what`, or what asking says.
pub async fn wait_for<T>(
    what: &str,
    patience: Duration,
    mut ask: impl AsyncFnMut() -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    let started = tokio::time::Instant::now();
    loop {
        if let Some(value) = ask().await? {
            return Ok(value);
        }
        if started.elapsed() > patience {
            return Err(Error::Deadline {
                what: what.to_owned(),
                patience,
            });
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
