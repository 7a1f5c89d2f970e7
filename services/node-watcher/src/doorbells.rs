//! Doorbells of node hooks: somebody says "look at these nodes now".
//!
//! Rings that come together cause one look, and looks have the pauses of [`crate::config::Config::pause_after_ring`], whatever replies. A ring
//! states nothing: what is published comes from Slurm's own answer. It is acknowledged once that is stored, or left to the next poll if
//! Slurm does not answer.

use std::time::Duration;

use mesh_bus::{Disposition, Handler, Message};
use mesh_events::hooks;
use mesh_events::proto::mesh::hook::v1::Doorbell;
use prost::Message as _;
use tokio::sync::{mpsc, oneshot};

use crate::metrics;

/// Room for replies; who finds it full waits.
pub const CHANNEL_CAPACITY: usize = 1_024;
/// Rings that wait for a look at the same time.
pub const MAX_WAITING_DOORBELLS: usize = 512;

/// Somebody waits for a look; to be answered with what became of the ring.
pub type PollReply = oneshot::Sender<&'static str>;

/// Takes doorbells off the bus.
pub struct Doorbells {
    /// The cluster whose nodes are watched.
    pub cluster: String,
    /// Where they are waited for.
    pub replies: mpsc::Sender<PollReply>,
}

impl Handler for Doorbells {
    async fn handle(&self, message: &Message) -> Disposition {
        message.link_current_span();
        let reject = |reason: String| {
            metrics::doorbell("unusable");
            Disposition::DeadLetter { reason }
        };
        let doorbell = match Doorbell::decode(message.body.clone()) {
            Ok(doorbell) => doorbell,
            Err(error) => return reject(format!("decode doorbell: {error}")),
        };
        if doorbell.cluster != self.cluster {
            return reject(format!(
                "doorbell of {} is from cluster {:?}, this is {:?}; give each cluster its own mesh.cluster",
                doorbell.hook, doorbell.cluster, self.cluster
            ));
        }
        if doorbell.probe || doorbell.hook == hooks::DOCTOR_HOOK {
            metrics::doorbell("probe");
            return Disposition::Ack;
        }
        tracing::debug!(hook = doorbell.hook, nodes = doorbell.nodes, "doorbell");
        let (ring, answer) = oneshot::channel();
        let rung = self.replies.send(ring).await.is_ok();
        match answer.await {
            Ok(outcome) if rung => {
                metrics::doorbell(outcome);
                Disposition::Ack
            }
            // This one leads no more: the one that does takes it.
            _ => Disposition::Nak {
                after: Duration::from_secs(1),
            },
        }
    }
}

/// Answers replies.
pub fn answer(replies: &mut Vec<PollReply>, outcome: &'static str) {
    for ring in replies.drain(..) {
        if ring.send(outcome).is_err() {
            tracing::trace!("doorbell dropped: its handler has stopped");
        }
    }
}
