//! Ingest: derives events from Slurm's records of jobs and users, each fact once.
//!
//! - [`domain`]: the rules, pure. An observation and the stored run state give ordered facts. `docs/reference/job-events.md` is the
//!   normative table.
//! - [`collector`]: decides, publishes and stores, under one lock.
//! - [`doorbells`]: hooks request immediate reads of jobs. [`poll`]: polls the queue, the safety net.
//! - [`accounting`]: ends that only accounting knows, usage, exit codes, catching up, array tasks, and gaps of a ledger.
//! - [`envelope`]: builds the event of a fact, with owner, actor and identity ([`identity`]).
//! - [`users`]: access, identities and logins.
//! - [`job_workers`]: starts the tasks that capture jobs. [`job_queries`]: what they ask Slurm.
//! - [`adapters`]: the state in JetStream's key-value store. [`queue`]: the snapshot of waiting jobs. [`scheduling`]: what else explains
//!   waiting. [`sources`]: availability of Slurm.
//!
//! Deliberately absent: access to Slurm itself (`slurm-client`), and any judgement about jobs, costs or reasons.

pub mod accounting;
pub mod adapters;
pub mod collector;
pub mod config;
pub mod domain;
pub mod doorbells;
pub mod envelope;
mod error;
pub mod identity;
pub mod job_counts;
pub mod job_queries;
pub mod job_workers;
mod listing;
pub mod metrics;
pub mod poll;
pub mod queue;
pub mod scheduler_state;
pub mod scheduling;
mod service;
pub mod sources;
pub mod users;

/// Counters in the values of the buckets `mesh_ingest` and `mesh_users`: of events, whose ids must not be used again.
pub const COUNTERS: [&[&str]; 2] = [
    &["counts.*", "counts_from", "runs.*.n.*", "runs.*.q"],
    &["known.*.seq", "seq_from"],
];

pub use error::Error;
pub use service::IngestService;
