//! Doorbells of node hooks: somebody says "look at these nodes now".
//!
//! Rings that come together cause one look, and looks have the pauses of [`crate::config::Config::pause_after_ring`], whatever rings. A ring
//! states nothing: what is told comes from Slurm's own answer. It is acknowledged once that is stored, or left to the next look if
//! Slurm does not answer.

use std::time::Duration;

use mesh_bus::{Handler, Message, Outcome};
use mesh_events::hooks;
use mesh_events::proto::mesh::hook::v1::Doorbell;
use prost::Message as _;
use tokio::sync::{mpsc, oneshot};

use crate::metrics;

/// Room for rings; who finds it full waits.
pub const CHANNEL: usize = 1_024;
/// Rings that wait for a look at the same time.
pub const WAITING: usize = 512;

/// Somebody waits for a look; to be answered with what became of the ring.
pub type Ring = oneshot::Sender<&'static str>;

/// Takes doorbells off the bus.
pub struct Bells {
    /// The cluster whose nodes are watched.
    pub cluster: String,
    /// Where they are waited for.
    pub rings: mpsc::Sender<Ring>,
}

impl Handler for Bells {
    async fn handle(&self, message: &Message) -> Outcome {
        message.link_current_span();
        let reject = |reason: String| {
            metrics::doorbell("unusable");
            Outcome::Reject { reason }
        };
        let bell = match Doorbell::decode(message.body.clone()) {
            Ok(bell) => bell,
            Err(error) => return reject(format!("decode doorbell: {error}")),
        };
        if bell.cluster != self.cluster {
            return reject(format!(
                "doorbell of {} is from cluster {:?}, this is {:?}; give each cluster its own mesh.cluster",
                bell.hook, bell.cluster, self.cluster
            ));
        }
        if bell.probe || bell.hook == hooks::DOCTOR {
            metrics::doorbell("probe");
            return Outcome::Done;
        }
        tracing::debug!(hook = bell.hook, nodes = bell.nodes, "doorbell");
        let (ring, answer) = oneshot::channel();
        let rung = self.rings.send(ring).await.is_ok();
        match answer.await {
            Ok(outcome) if rung => {
                metrics::doorbell(outcome);
                Outcome::Done
            }
            // This one leads no more: the one that does takes it.
            _ => Outcome::Retry {
                after: Duration::from_secs(1),
            },
        }
    }
}

/// Answers rings.
pub fn answer(rings: &mut Vec<Ring>, outcome: &'static str) {
    for ring in rings.drain(..) {
        if ring.send(outcome).is_err() {
            tracing::trace!("nobody waits for this doorbell any more");
        }
    }
}
