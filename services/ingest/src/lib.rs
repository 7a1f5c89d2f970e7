//! Ingest: from Slurm's records of jobs to events, each fact once.
//!
//! - [`domain`]: the rules, pure: a reading and what is remembered give ordered facts. `docs/reference/job-events.md` is the normative table.
//! - [`collector`]: decides, publishes, remembers, under one lock.
//! - [`doorbells`]: hooks ring, jobs are read at once. [`sweep`]: the safety net. [`proof`]: what only accounting knows.
//!   [`catch_up`]: what was missed. [`usage`]: what ended runs used. [`turns`]: so that accounting is asked one question at a time.
//!   [`codes`]: exit codes that it does not have. [`own_ends`]: ends that it has written over. [`arrays`]: tasks that nobody saw.
//! - [`envelope`]: from a fact to an event, with owner, actor and identity ([`identity`]).
//! - [`holes`]: a ledger lacks something, and is told it again.
//! - [`users`]: access, identities and logins.
//! - [`adapters`]: the memory in JetStream's key-value store. [`queue`]: the waiting jobs for others. [`sources`]: who answers.
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
pub mod queue;
mod service;
pub mod sources;
pub mod sweep;
pub mod users;

pub use error::Error;
pub use service::IngestService;
