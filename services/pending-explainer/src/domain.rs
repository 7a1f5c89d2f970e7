//! The pure part: explains pending jobs and decides when to publish. No IO, no clock.
//!
//! - [`explain`]: turns a job's record and its position in the queue into an
//!   [`Explanation`](mesh_events::proto::mesh::queue::v1::Explanation).
//! - [`pending_job`]: a pending job, and the newest snapshots of its cluster.
//! - [`timeline`]: the explanations of each job so far, and the rules that limit the number of events.
//! - [`evidence`]: limits, nodes, reservations and more; `judge` decides by them.
//! - [`start_estimate`]: when waiting jobs may start, and how often that was right.
//! - [`what_if`]: when a job may start if its request were different.
//! - [`listing`]: all jobs as squeue prints them.
//! - [`queue`]: the newest snapshot of the queue, assembled from its chunks.

mod confidence;
mod dependency;
mod description;
mod estimate;
pub mod evidence;
pub mod explain;
mod judge;
mod limit;
pub mod listing;
pub mod pending_job;
pub mod progress;
pub mod queue;
mod rare_reasons;
mod reason;
mod reason_text;
mod request;
pub mod start_estimate;
pub mod timeline;
pub mod what_if;

pub use explain::explain;
pub use pending_job::ClusterView;
