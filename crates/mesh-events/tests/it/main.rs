//! The contract as a consumer sees it.

#![allow(
    clippy::unwrap_used,
    reason = "a test stops where something unexpected happens"
)]

mod json;
mod subjects;
