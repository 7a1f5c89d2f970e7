//! The complete system: a real Slurm cluster, the real `smesh up`, real receivers. For the demo, the integration tests and the soak.
//!
//! - [`Cluster`]: Slurm in a folder, whose hooks send doorbells to a mesh. [`Marks`]: times of jobs and hooks by this process's clock.
//! - [`Mesh`]: `smesh up` as a child process, and its API. [`Fact`]: an entry of its ledger.
//! - [`Service`]: a service as a separate process.
//! - [`Receiver`]: an HTTP receiver that verifies signatures.
//! - [`scenario`]: a short day, with its expected results.
//!
//! Deliberately absent: knowledge of the services' internals. Only the contract, `mesh-events`, and a reader of the bus are used.

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
mod triggers;

use std::time::Duration;

pub use alone::interrupted;
pub use attached::Attached;
pub use cluster::{Cluster, ClusterOptions, Slurm, set_mode};
pub use error::Error;
pub use fact::{Fact, Run, lives, recorded_ids, run_of};
pub use http::Answer;
pub use marks::{Mark, Marks};
pub use mesh::{Mesh, MeshOptions};
pub use programs::Programs;
pub use receiver::{Delivery, Receiver, Requests};
pub use service::Service;
pub use triggers::{trigger_keys, write_private};

/// Polls every 100 ms until there is a value.
///
/// # Errors
/// [`Error::Deadline`] with `description`, or the error of the poll.
pub async fn wait_for<T>(
    description: &str,
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
                description: description.to_owned(),
                patience,
            });
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
