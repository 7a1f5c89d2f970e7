//! The pure part: computes the changes between two polls of the nodes. No IO, no clock.
//!
//! - [`TrackedNode`]: the state of a node between two polls.
//! - [`diff`]: compares one node before and now.
//! - [`cause`]: cause and actor of a change.
//! - [`absence`]: nodes missing from an answer, confirmed by further polls.
//! - [`downtimes`]: downtimes that accounting has and no poll has seen.
//! - [`spot_notice`]: notices of a cloud provider that it will reclaim a node. [`pending_notices`]: those for the next poll.
//! - [`drift`]: unknown words in Slurm's output.
//! - [`lost_state`]: the gap of stored state that could not be read.
//! - [`event`](mod@event): the event envelope.

pub mod absence;
pub mod cause;
mod diff;
pub mod downtimes;
pub mod drift;
pub mod event;
pub mod lost_state;
pub mod pending_notices;
pub mod spot_notice;
mod tracked_node;

pub use diff::{NodeChange, diff};
pub use tracked_node::TrackedNode;
