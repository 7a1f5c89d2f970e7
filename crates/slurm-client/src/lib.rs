//! Slurm client.
