//! `slurm-client` against real Slurm.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests")]

mod cluster;
mod drift;
mod failures;
mod live;
mod live_rest;
mod replay;
mod rest;
mod rest_access;
mod rest_server;
mod rest_versions;
