//! The real program: against the real nats-server, as several Unix users. What needs a Slurm cluster is in tests/integration.

mod commands;
mod config;
mod mesh;
mod others;
mod up;
