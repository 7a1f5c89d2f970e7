//! Ingest: from Slurm's records of jobs and users to events, each fact once.
//!
//! - [`domain`]: the rules, pure: an observation and the stored run state give ordered facts. `docs/reference/job-events.md` is the
//!   normative table.
//! - [`collector`]: decides, publishes and stores, under one lock.
//! - [`doorbells`]: hooks ask for jobs to be read at once. [`poll`]: polls the queue, the safety net.
//! - [`accounting`]: ends that only accounting knows, usage, exit codes, catching up, array tasks, and what a ledger lacks.
//! - [`envelope`]: from a fact to an event, with owner, actor and identity ([`identity`]).
//! - [`users`]: access, identities and logins.
//! - [`adapters`]: the state in JetStream's key-value store. [`queue`]: the snapshot of waiting jobs. [`sources`]: availability of Slurm.
//!
//! Deliberately absent: how Slurm is asked (`slurm-client`) and any judgement about jobs, costs or reasons.

pub mod accounting;
pub mod adapters;
pub mod collector;
pub mod config;
pub mod domain;
pub mod doorbells;
pub mod envelope;
mod error;
pub mod identity;
pub mod metrics;
pub mod poll;
pub mod queue;
mod service;
pub mod sources;
pub mod users;

pub use error::Error;
pub use service::IngestService;
