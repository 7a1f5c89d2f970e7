//! The real program, called as Slurm calls it: only Slurm's arguments, no `PATH`, no `HOME`.

#![allow(clippy::unwrap_used, reason = "a test stops where its set-up fails")]

mod chain;
mod disk;
mod gpus;
mod hostile;
mod promises;
mod refused;
mod site;
mod spank;
mod spool;
