//! Everything together on a real Slurm cluster.
