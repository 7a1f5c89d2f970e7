//! Everything together on a real Slurm cluster.

mod processes;
mod trace;
