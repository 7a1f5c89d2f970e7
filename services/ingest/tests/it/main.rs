//! Ingest against a real Slurm cluster and a real nats-server.

mod bell;
mod cluster;
mod lifecycle;
mod mesh;
mod outage;
mod start;
