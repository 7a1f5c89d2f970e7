//! Cause and actor of a node's state.
//!
//! The reason text counts while the node is impaired or powering down. Slurm keeps old reasons on nodes that work again. The reason
//! table knows the texts written by Slurm and by cloud tools. Any other text was written by a person.

use mesh_events::proto::mesh::event::v1::{Actor, ActorKind};
use slurm_client::NodeRecord;
use slurm_types::{Lifecycle, NodeFlag, NodeReason};

/// Cause of a node's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    /// A keyword: `unreachable`, `power_saving`, `admin`, … Empty if unknown.
    pub code: String,
    /// Origin of the recognised text: `slurm`, `aws-parallelcluster`, … Empty if it was not recognised.
    pub source: String,
    /// Who caused the state. `None` if Slurm does not report it.
    pub actor: Option<Actor>,
}

/// The cause of a node's present lifecycle stage.
pub fn of(node: &NodeRecord, lifecycle: Lifecycle) -> Cause {
    match lifecycle {
        // The node works, so an old reason explains nothing. Slurm does not report who resumed a node.
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

/// True if the provider reclaimed the node.
pub fn is_preemption(cause: &Cause) -> bool {
    matches!(
        cause.code.as_str(),
        "spot_preempted" | "spot_preempted_or_stopped"
    )
}

/// True while the node reboots.
pub fn rebooting(node: &NodeRecord) -> bool {
    node.state.has(NodeFlag::RebootIssued)
}

/// True if only a maintenance reservation keeps jobs off, and the node is not drained.
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
            code: known.cause.to_owned(),
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
                code: "admin".to_owned(),
                source: String::new(),
                actor,
            }
        }
    })
}

impl Cause {
    /// A cause that follows from the state itself.
    fn slurm(code: &str) -> Self {
        Self::system(code, "slurm")
    }

    /// A cause that no person set.
    pub fn system(code: &str, source: &str) -> Self {
        Self {
            code: code.to_owned(),
            source: source.to_owned(),
            actor: system(),
        }
    }
}

/// Slurm, or the cloud tools that act for it.
#[allow(clippy::unnecessary_wraps, reason = "the type of the field")]
fn system() -> Option<Actor> {
    Some(Actor {
        kind: ActorKind::System.into(),
        ..Actor::default()
    })
}
