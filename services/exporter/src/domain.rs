//! The rules, pure: what an event adds to which counter, what snapshots say, and how metrics are written.

pub mod counters;
pub mod exemplars;
pub mod exposition;
pub mod fold;
pub mod gpus;
pub mod increments;
pub mod jobs;
pub mod nodes;
pub mod scheduler;
