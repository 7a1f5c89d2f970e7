//! The real program, as Slurm calls it: no arguments of ours it does not get, no `PATH`, no `HOME`.

mod chain;
mod promises;
mod site;
mod spool;
