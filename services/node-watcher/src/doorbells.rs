//! Doorbells of node hooks: requests to poll the nodes now.
//!
//! Doorbells that arrive together cause one poll. The pauses between polls are those of [`crate::config::Config::pause_after_ring`],
//! however many doorbells arrive. A doorbell is not a source of facts: events come only from Slurm's answer.
//! It is acknowledged once that answer is stored, or left to the next regular poll if Slurm does not answer.

use std::time::Duration;

use mesh_bus::{Disposition, Handler, Message};
use mesh_events::hooks;
use mesh_events::proto::mesh::hook::v1::Doorbell;
use prost::Message as _;
use tokio::sync::{mpsc, oneshot};

use crate::metrics;

/// Capacity of the channel. Senders wait while it is full.
pub const CHANNEL_CAPACITY: usize = 1_024;
/// Maximum number of doorbells that wait for a poll.
pub const MAX_WAITING_DOORBELLS: usize = 512;

/// Reply to a doorbell that waits for a poll, with its outcome.
pub type PollReply = oneshot::Sender<&'static str>;

/// Consumes doorbells from the bus.
pub struct Doorbells {
    /// The cluster whose nodes are watched.
    pub cluster: String,
    /// Receiver of the waiting replies.
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
                "doorbell of {} is from cluster {:?}, expected {:?}; give each cluster its own mesh.cluster",
                doorbell.hook, doorbell.cluster, self.cluster
            ));
        }
        if doorbell.probe || doorbell.hook == hooks::DOCTOR_HOOK {
            metrics::doorbell("probe");
            return Disposition::Ack;
        }
        tracing::debug!(hook = doorbell.hook, nodes = doorbell.nodes, "doorbell");
        let (ring, answer) = oneshot::channel();
        let is_queued = self.replies.send(ring).await.is_ok();
        match answer.await {
            Ok(outcome) if is_queued => {
                metrics::doorbell(outcome);
                Disposition::Ack
            }
            // This instance is no longer the leader. The leader takes the doorbell.
            _ => Disposition::Nak {
                after: Duration::from_secs(1),
            },
        }
    }
}

/// Answers all waiting replies.
pub fn answer(replies: &mut Vec<PollReply>, outcome: &'static str) {
    for ring in replies.drain(..) {
        if ring.send(outcome).is_err() {
            tracing::trace!("doorbell dropped: its handler has stopped");
        }
    }
}
