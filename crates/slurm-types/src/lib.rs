//! Slurm vocabulary.
