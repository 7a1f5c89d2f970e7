//! Records of Slurm's responses. Fields are optional where Slurm may omit them.

mod accounting;
mod association;
mod commented;
mod job;
mod job_counts;
mod node;
mod node_event;
mod oddities;
mod ping;
mod queue;
mod scheduling;
mod statistics;
mod submitted;
mod usage;

pub use accounting::{AccountingRecord, ArrayPosition};
pub use association::{AccessRecords, AssociationRecord, Transaction, UserRecord};
pub use commented::CommentedJob;
pub use job::{ArrayTasks, JobLookup, JobRecord, NodeAlloc};
pub(crate) use job_counts::CountedJob;
pub use job_counts::{JobCell, JobCounts, JobSums};
pub use node::{NodeRecord, PartitionRecord};
pub use node_event::NodeEventRecord;
pub use oddities::Oddities;
pub use ping::Ping;
pub use queue::{JobListing, QueueListing, QueueRow};
pub use scheduling::{
    BackfillStats, LicenseRecord, LimitRecord, Limits, PriorityRow, ReservationRecord, RunningRow,
};
pub use statistics::{CallStats, FIGURES, SchedulerStats, ShareRecord};
pub use submitted::ArraySubmission;
pub use usage::{StepUsage, TresUsage, UsageRecord};
