//! Asks Slurm by its commands or by slurmrestd and returns records. The only place that knows how.
//!
//! - [`Slurm::queue`]: one cheap poll of the whole queue (`squeue`, text columns; `/jobs` if anything changed).
//! - [`Slurm::jobs`]: full records of the jobs that changed (`scontrol -d show job`; `/job/ID`).
//! - [`Slurm::accounting`]: runs the controller has purged (`sacct -D -X`; `/slurmdb/…/jobs`).
//! - [`Slurm::access`]: who may do what (`sacctmgr`; `/slurmdb/…/associations` and `users`). [`Slurm::transactions`]: who changed it (`sacctmgr`).
//! - [`Slurm::usage`]: what ended runs used, step by step (`sacct -D`).
//! - [`Slurm::nodes`], [`Slurm::partitions`], [`Slurm::config`], [`Slurm::ping`], [`Slurm::version`].
//! - [`CompletionRecord`], [`HookEnv`]: the environment of hooks. Pure.
//!
//! Every command has a deadline, is killed when its future is dropped, and waits for one of two permits and for the rate limiter (so many//! commands per second, however many doorbells arrive). An answer that is cut, malformed or not certain is an error or says
//! so in its record: never an empty list, never a guess. Deliberately absent: the commands' JSON output (22.05's `sacct --json` loses
//! exit codes, `squeue --json` costs fifteen times the text), writing to Slurm.

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
mod rate_limiter;
mod record;
mod request_limits;
mod rest;
mod source;
mod spill;

pub use config::{Config, ParseRestUrlError, RestUrl, Source};
pub use drift::Drift;
pub use error::Error;
pub use evidence::{CompletionRecord, HookEnv, ReadEvidenceError};
pub use job_pages::JobPages;
pub use metrics::{COMMAND_DURATION, COMMAND_ERRORS, UNREAD_ITEMS};
pub use record::{
    AccessRecords, AccountingRecord, ArrayPosition, ArraySubmission, ArrayTasks, AssociationRecord,
    JobLookup, JobRecord, NodeAlloc, NodeRecord, PartitionRecord, QueueListing, QueueRow,
    StepUsage, Transaction, TresUsage, UsageRecord, UserRecord,
};
pub use source::{AccountingQuery, Ping, Slurm};
