//! Estimates when waiting jobs start, and scores the estimates.
//!
//! - [`estimator`]: what was learnt, open estimates, new estimates.
//! - [`draws`], [`forward`], [`plan`]: the queue run forward with drawn run times, and planned with time limits.
//! - [`history`]: waits and run times that were seen. [`calibration`]: how far estimates can be trusted.
//! - [`what_if`]: what a changed request would do.
//! - [`quality`]: how often they were right.
//! - [`replay`]: a trace of jobs through the same code, in the order of its events.
//!
//! Everything is pure and deterministic: random draws follow from the time of the snapshot and the job. Deliberately absent: Slurm, IO, clocks.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "seconds, counts and shares are far from the bounds of their types"
)]

pub mod calibration;
pub mod draws;
pub mod estimator;
pub mod forward;
pub mod history;
mod map_as_pairs;
pub mod plan;
pub mod quality;
pub mod queue;
pub mod random;
pub mod replay;
pub mod what_if;

pub use estimator::{Estimate, Estimator, Method};
pub use queue::{Key, Pool, Reservation, Resources, Running, Seconds, Snapshot, Waiting};
