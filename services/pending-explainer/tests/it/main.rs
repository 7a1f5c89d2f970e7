//! The explainer with a real nats-server.

#![allow(
    clippy::unwrap_used,
    reason = "a test stops where something is missing"
)]

mod api;
mod estimates;
mod explains;
mod harness;
mod openapi;
mod restarts;
mod what_if;
