//! The real program, as Slurm calls it: no arguments of ours it does not get, no `PATH`, no `HOME`.

#![allow(clippy::unwrap_used, reason = "a test stops where its set-up fails")]

mod chain;
mod disk;
mod hostile;
mod promises;
mod refused;
mod site;
mod spool;
