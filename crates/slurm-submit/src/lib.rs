//! Submits jobs to Slurm as their owner, each exactly once, and changes existing jobs as their owner.
//!
//! - [`SubmitKey`]: names one submission; it travels in the job's comment.
//! - [`Submission`]: a job as its owner wants it, validated field by field.
//! - [`Submitter`]: submits on hold, finds, confirms, releases and cancels by key, and acts on existing jobs. It starts `trigger-submitter`,
//!   the program of this crate, once per request.
//! - [`program`]: that program. It becomes the owner (or is the owner already) and only then runs Slurm's commands.
//!
//! A submission on hold that is recorded and then released by its id runs once, however often it was submitted: the other copies stay held
//! and [`Submitter::find_held`] finds them. [`Submitter::put`] submits with a chosen id, which slurmctld accepts once.
//! [`SubmitError::Unknown`] never means "not submitted".
//!
//! Deliberately absent: which event submits what, where intents are stored, and when to retry. Those belong to the caller.

mod action;
mod arguments;
mod chosen;
mod classify;
mod document;
mod error;
mod fields;
mod lookup;
mod owner;
mod policy;
pub mod program;
mod request;
mod status;
mod submission;
mod submitter;

pub use slurm_types::SubmitKey;

pub use action::{Acted, Action, JobUpdate};
pub use error::{FieldError, SubmitError};
pub use fields::JobFields;
pub use status::{ArrayRecord, Confirmation, FoundJob, JobStatus};
pub use submission::Submission;
pub use submitter::{Config, Submitter};
