//! The watcher with a real nats-server and a real Slurm cluster.

#![allow(
    clippy::unwrap_used,
    reason = "a test stops where something is missing"
)]

mod drift;
mod harness;
mod lives;
mod restarts;
mod spot;
mod unreadable;
