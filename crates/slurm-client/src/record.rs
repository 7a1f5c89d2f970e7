//! Records of Slurm's responses. Fields are optional where Slurm may omit them.

mod accounting;
mod association;
mod job;
mod node;
mod queue;
mod scheduling;
mod submitted;
mod usage;

pub use accounting::{AccountingRecord, ArrayPosition};
pub use association::{AccessRecords, AssociationRecord, Transaction, UserRecord};
pub use job::{ArrayTasks, JobLookup, JobRecord, NodeAlloc};
pub use node::{NodeRecord, PartitionRecord};
pub use queue::{QueueListing, QueueRow};
pub use scheduling::{
    BackfillStats, LicenceRecord, LimitRecord, Limits, PriorityRow, ReservationRecord, RunningRow,
};
pub use submitted::ArraySubmission;
pub use usage::{StepUsage, TresUsage, UsageRecord};
