//! Tests the formats against their definitions and against other implementations.

#![allow(
    clippy::unwrap_used,
    reason = "a test stops where something unexpected happens"
)]

mod merkle;
