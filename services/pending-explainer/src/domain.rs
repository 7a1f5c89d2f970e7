//! The pure part: what to say about a waiting job, and when to say it again. No IO, no clock.
//!
//! - [`explain`]: a job's record and its place in the queue become an [`Explanation`](mesh_events::proto::mesh::queue::v1::Explanation).
//! - [`timeline`]: the explanations of each job so far, and the rules that keep an explanation from becoming noise.
//! - [`queue`]: the newest snapshot of the queue, put together from its chunks.

mod dependency;
mod description;
mod estimate;
mod explain;
mod limit;
pub mod queue;
mod rare;
mod reason;
mod reason_text;
mod request;
pub mod timeline;

pub use explain::explain;
