//! The pure part: from two looks at the nodes to what happened in between. No IO, no clock.
//!
//! - [`diff`]: one node, before and now.
//! - [`cause`]: why, and who did it.
//! - [`sweep`](mod@sweep): a whole answer of Slurm, which is suspected when nodes are missing from it.
//! - [`drift`]: what Slurm printed and nobody knows.
//! - [`event`](mod@event): the envelope.

pub mod absence;
pub mod cause;
mod diff;
pub mod drift;
pub mod event;

pub use diff::{NodeChange, TrackedNode, diff};
