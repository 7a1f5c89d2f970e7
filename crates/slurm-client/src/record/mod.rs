//! What Slurm said, as records. Fields are optional where Slurm may leave them open.

mod accounting;
mod job;
mod node;
mod sweep;

pub use accounting::{AccountingRecord, ArrayPosition};
pub use job::{ArrayTasks, JobRecord, JobsAnswer, NodeAlloc};
pub use node::{NodeRecord, PartitionRecord};
pub use sweep::{Sweep, SweepRow};
