//! Why a node is as it is, and who made it so.
//!
//! The reason text decides while the node is impaired or being switched off; Slurm leaves old reasons standing on nodes that work
//! again. Texts that Slurm or a cloud's tools write are known by the reason table; any other text was written by a person.

use mesh_events::proto::mesh::event::v1::{Actor, ActorKind};
use slurm_client::NodeRecord;
use slurm_types::{Lifecycle, NodeFlag, NodeReason};

/// Why a node is as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    /// A short word: `unreachable`, `power_saving`, `admin`, … Empty if unknown.
    pub word: String,
    /// Where it was recognised: `slurm`, `aws-parallelcluster`, … Empty if it was not.
    pub source: String,
    /// Who made it so; `None` if Slurm does not say.
    pub actor: Option<Actor>,
}

/// The cause of a node's present stage of life.
pub fn of(node: &NodeRecord, lifecycle: Lifecycle) -> Cause {
    match lifecycle {
        // Nothing is wrong with it, so an old reason explains nothing. Slurm does not say who resumed a node.
        Lifecycle::Active | Lifecycle::Unknown => Cause::default(),
        Lifecycle::Provisioning if rebooting(node) => {
            by_reason(node).unwrap_or_else(|| Cause::slurm("reboot"))
        }
        Lifecycle::Provisioning => Cause::slurm("power_saving"),
        Lifecycle::Terminating | Lifecycle::Terminated => {
            by_reason(node).unwrap_or_else(|| Cause::slurm("power_saving"))
        }
        Lifecycle::Draining | Lifecycle::Drained if in_maintenance_only(node) => {
            Cause::slurm("maintenance")
        }
        Lifecycle::Down if node.state.has(NodeFlag::InvalidReg) => {
            by_reason(node).unwrap_or_else(|| Cause::slurm("bad_registration"))
        }
        Lifecycle::Down | Lifecycle::Draining | Lifecycle::Drained => {
            by_reason(node).unwrap_or_default()
        }
    }
}

/// Whether the provider took the node back.
pub fn is_preemption(cause: &Cause) -> bool {
    matches!(
        cause.word.as_str(),
        "spot_preempted" | "spot_preempted_or_stopped"
    )
}

/// Whether a reboot is under way.
pub fn rebooting(node: &NodeRecord) -> bool {
    node.state.has(NodeFlag::RebootIssued)
}

/// Whether only a maintenance reservation keeps jobs off, nobody drained it.
pub fn in_maintenance_only(node: &NodeRecord) -> bool {
    node.state.has(NodeFlag::Maintenance)
        && !node.state.flags.any(&[NodeFlag::Drain, NodeFlag::Fail])
}

fn by_reason(node: &NodeRecord) -> Option<Cause> {
    if node.reason.is_empty() {
        return None;
    }
    Some(match NodeReason::lookup(&node.reason) {
        Some(known) => Cause {
            word: known.cause.to_owned(),
            source: known.source.to_owned(),
            actor: system(),
        },
        None => {
            let actor = (!node.reason_user.is_empty()).then(|| Actor {
                kind: ActorKind::Admin.into(),
                user: node.reason_user.clone(),
                ..Actor::default()
            });
            Cause {
                word: "admin".to_owned(),
                source: String::new(),
                actor,
            }
        }
    })
}

impl Cause {
    /// A cause that the state itself shows.
    fn slurm(word: &str) -> Self {
        Self {
            word: word.to_owned(),
            source: "slurm".to_owned(),
            actor: system(),
        }
    }
}

/// Slurm itself, or the cloud tools that act for it.
#[allow(clippy::unnecessary_wraps, reason = "the type of the field")]
fn system() -> Option<Actor> {
    Some(Actor {
        kind: ActorKind::System.into(),
        ..Actor::default()
    })
}
