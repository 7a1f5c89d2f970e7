//! The pure part: from two polls of the nodes to the changes between them. No IO, no clock.
//!
//! - [`diff`]: one node, before and now.
//! - [`cause`]: why, and who did it.
//! - [`absence`]: nodes that are missing from an answer, confirmed by further polls.
//! - [`drift`]: what Slurm printed and nobody knows.
//! - [`event`](mod@event): the envelope.

pub mod absence;
pub mod cause;
mod diff;
pub mod drift;
pub mod event;

pub use diff::{NodeChange, TrackedNode, diff};
