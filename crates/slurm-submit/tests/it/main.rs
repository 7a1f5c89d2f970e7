//! Submissions to a real Slurm cluster. Needs root, as the cluster does: jobs run as several users.

#![allow(clippy::unwrap_used, reason = "a test stops where something fails")]

mod actions;
mod chosen;
mod cluster;
mod controller;
mod data;
mod errors;
mod identity;
mod kill;
mod privilege;
