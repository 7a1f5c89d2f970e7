//! Queries Slurm by its commands or by slurmrestd and returns records. The only crate that knows how.
//!
//! - [`Slurm::list_queue`]: one cheap poll of the whole queue (`squeue`, text columns; `/jobs` if anything changed).
//! - [`Slurm::job_listing`]: all jobs with every column that pollers of squeue ask for.
//! - [`Slurm::jobs`]: full records of the jobs that changed (`scontrol -d show job`; `/job/ID`).
//! - [`Slurm::accounting`]: runs the controller has purged (`sacct -D -X`; `/slurmdb/…/jobs`).
//! - [`Slurm::access`]: associations and users (`sacctmgr`; `/slurmdb/…/associations` and `users`). [`Slurm::transactions`]: changes to
//!   them (`sacctmgr`).
//! - [`Slurm::usage`]: resource usage of ended runs, step by step (`sacct -D`).
//! - [`Slurm::running`], [`Slurm::limits`], [`Slurm::reservations`], [`Slurm::licenses`], [`Slurm::priorities`], [`Slurm::backfill`]: what
//!   explains the scheduler's decisions (`squeue`, `scontrol`, `sprio`, `sdiag`; partly `/reservations`, `/licenses`, `/diag`).
//! - [`Slurm::nodes`], [`Slurm::partitions`], [`Slurm::config`], [`Slurm::ping`], [`Slurm::version`].
//! - [`CompletionRecord`], [`HookEnv`]: the environment of hooks. Pure.
//!
//! Every command has a deadline and is killed when its future is dropped. It waits for one of two permits and for the rate limiter, which
//! bounds the commands per second however many doorbells arrive. A truncated, malformed or uncertain response is an error, or is marked so
//! in its record: never an empty list, never a guess.
//!
//! Deliberately absent: the commands' JSON output (22.05's `sacct --json` loses exit codes, `squeue --json` costs fifteen times the text),
//! and every decision to change Slurm: [`Commands`] and [`SubmitApi`] send what `slurm-submit` has decided.

mod cli;
mod command;
mod config;
mod drift;
mod error;
mod evidence;
#[doc(hidden)]
pub mod fuzzing;
pub mod inspect;
mod job_pages;
mod json;
mod metrics;
mod parse;
mod record;
mod request_limits;
mod rest;
mod shape;
mod source;
mod spill;

pub use command::{CommandOutput, Commands};
pub use config::{Config, ParseRestUrlError, RestUrl, Source};
pub use drift::Drift;
pub use error::Error;
pub use evidence::{CompletionRecord, HookEnv, ReadEvidenceError};
pub use job_pages::JobPages;
pub use metrics::{COMMAND_DURATION, COMMAND_ERRORS, UNREAD_ITEMS};
pub use parse::LISTING_LETTERS;
pub use record::{
    AccessRecords, AccountingRecord, ArrayPosition, ArraySubmission, ArrayTasks, AssociationRecord,
    BackfillStats, CallStats, CommentedJob, FIGURES, JobCell, JobCounts, JobListing, JobLookup,
    JobRecord, JobSums, LicenseRecord, LimitRecord, Limits, NodeAlloc, NodeEventRecord, NodeRecord,
    PartitionRecord, Ping, PriorityRow, QueueListing, QueueRow, ReservationRecord, RunningRow,
    SchedulerStats, ShareRecord, StepUsage, Transaction, TresUsage, UsageRecord, UserRecord,
};
pub use rest::{SubmitAnswer, SubmitApi};
pub use source::{AccountingQuery, Slurm};
