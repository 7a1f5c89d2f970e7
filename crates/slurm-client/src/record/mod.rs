//! What Slurm said, as records. Fields are optional where Slurm may leave them open.

mod accounting;
mod association;
mod job;
mod node;
mod submitted;
mod sweep;
mod usage;

pub use accounting::{AccountingRecord, ArrayPosition};
pub use association::{AccessRecords, AssociationRecord, Transaction, UserRecord};
pub use job::{ArrayTasks, JobLookup, JobRecord, NodeAlloc};
pub use node::{NodeRecord, PartitionRecord};
pub use submitted::ArraySubmission;
pub use sweep::{Sweep, SweepRow};
pub use usage::{StepUsage, TresUsage, UsageRecord};
