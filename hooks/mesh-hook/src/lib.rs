//! The hook: one short-lived process per call of a Slurm hook.
//!
//! It tells ingest "look at this job now" and brings Slurm's variables along as evidence. Slurm comes first: whatever happens
//! here, the process ends with status 0 within a quarter of a second, or becomes the site's own program (`--chain`).
//!
//! - [`args`]: the command line, and [`doorbell`]: what is said. Pure.
//! - [`config`]: what `hook.toml` says.
//! - [`nats`]: just enough of the NATS protocol for one acknowledged publish. Blocking, because a runtime costs more than the work.
//! - [`listener`]: whose socket listens, so that no password goes to somebody else's.
//! - [`spool`]: doorbells on disk while NATS is away.
//! - [`ring`]: delivers or spools, within the deadline.
//! - [`chain`]: hands over to the site's program and rings beside it.
//!
//! Deliberately absent: asking Slurm anything, name look-ups in the environment (`PATH`, `HOME`), threads that outlive the deadline.

pub mod args;
pub mod chain;
pub mod config;
pub mod doorbell;
pub mod listener;
pub mod nats;
pub mod report;
pub mod ring;
pub mod spool;

pub use config::Config;
