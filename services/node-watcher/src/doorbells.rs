//! Doorbells of node hooks: requests to poll the nodes now.
//!
//! Doorbells that arrive together cause one poll. The pauses between polls are those of [`crate::config::Config::pause_after_ring`],
//! however many doorbells arrive. A doorbell is not a source of facts: events come only from Slurm's answer. The exception is the
//! notice of a cloud provider, of which Slurm knows nothing: it waits until a poll knows the node.
//! It is acknowledged once that answer is stored, or left to the next regular poll if Slurm does not answer.

use std::time::Duration;

use mesh_bus::{Disposition, Handler, Message};
use mesh_events::proto::mesh::hook::v1::Doorbell;
use mesh_events::{from_timestamp, hooks};
use mesh_runtime::ask;
use prost::Message as _;
use slurm_types::HostList;
use tokio::sync::{mpsc, oneshot};

use crate::domain::spot_notice::{self, NodeNotice, Parsed};
use crate::metrics;

/// Capacity of the channel. Senders wait while it is full.
pub const CHANNEL_CAPACITY: usize = 1_024;
/// Maximum number of doorbells that wait for a poll.
pub const MAX_WAITING_DOORBELLS: usize = 512;

/// A doorbell that waits for a poll.
pub struct PollRequest {
    /// Takes the outcome.
    reply: oneshot::Sender<&'static str>,
    /// The notice of a provider that it brought.
    pub notice: Option<NodeNotice>,
}

/// Consumes doorbells from the bus.
pub struct Doorbells {
    /// The cluster whose nodes are watched.
    pub cluster: String,
    /// Receiver of the requests.
    pub requests: mpsc::Sender<PollRequest>,
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
        let notice = match notice_in(&doorbell) {
            Ok(Some(notice)) => Some(notice),
            Ok(None) if doorbell.hook == hooks::SPOT_NOTICE_HOOK => {
                metrics::doorbell("no_notice");
                return Disposition::Ack;
            }
            Ok(None) => None,
            Err(reason) => return reject(reason),
        };
        match ask(&self.requests, |reply| PollRequest { reply, notice }).await {
            Some(outcome) => {
                metrics::doorbell(outcome);
                Disposition::Ack
            }
            // This instance is no longer the leader. The leader takes the doorbell.
            None => Disposition::Nak {
                after: Duration::from_secs(1),
            },
        }
    }
}

/// The notice of a provider in a doorbell. An error if its text is not understood.
fn notice_in(doorbell: &Doorbell) -> Result<Option<NodeNotice>, String> {
    if doorbell.hook != hooks::SPOT_NOTICE_HOOK {
        return Ok(None);
    }
    let called_at = doorbell.called_at.as_ref().and_then(from_timestamp);
    let called_at = called_at.ok_or("the spot notice has no time")?;
    spot_notice::check_call(called_at, chrono::Utc::now())?;
    let text = doorbell.arguments.join(" ");
    match spot_notice::parse(&text, called_at) {
        Parsed::Nothing => Ok(None),
        Parsed::Unknown => Err("the text of the spot notice is of no known form".to_owned()),
        Parsed::Notice {
            notice,
            instance_id,
        } => {
            notice.check_deadline()?;
            let nodes = match doorbell.nodes.as_str() {
                "" | "-" if instance_id.is_empty() => {
                    return Err("the spot notice names neither a node nor an instance".to_owned());
                }
                "" | "-" => Vec::new(),
                nodes => HostList::expand(nodes)
                    .map_err(|error| format!("nodes of the spot notice: {error}"))?,
            };
            Ok(Some(NodeNotice {
                nodes,
                instance_id,
                notice,
            }))
        }
    }
}

/// Answers all requests after a poll, but for those whose notice is postponed.
pub fn answer_polled(requests: &mut Vec<PollRequest>, postponed: &[NodeNotice]) {
    let is_postponed = |request: &PollRequest| {
        let notice = request.notice.as_ref();
        notice.is_some_and(|notice| postponed.contains(notice))
    };
    let (kept, mut polled) = requests.drain(..).partition(is_postponed);
    *requests = kept;
    answer(&mut polled, "looked");
}

/// Answers all requests.
fn answer(requests: &mut Vec<PollRequest>, outcome: &'static str) {
    for request in requests.drain(..) {
        if request.reply.send(outcome).is_err() {
            tracing::trace!("doorbell dropped: its handler has stopped");
        }
    }
}

/// Leaves all requests to the next regular poll, but for those with a notice: nothing else has it.
pub fn leave_to_next(requests: &mut Vec<PollRequest>) {
    let (kept, mut left) = requests
        .drain(..)
        .partition(|request: &PollRequest| request.notice.is_some());
    *requests = kept;
    answer(&mut left, "left_to_next");
}
