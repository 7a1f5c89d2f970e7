//! `slurm-client` against real Slurm.

mod cluster;
mod failures;
mod live;
