//! The complete system: real Slurm clusters, the real `smesh up`, real receivers. Requires root.

#![allow(clippy::unwrap_used, reason = "a test stops where its set-up fails")]

mod accounting;
mod accrual;
mod alerts;
mod away;
mod busy;
mod day;
mod doctor;
mod full_disk;
mod gaps;
mod gpus;
mod hooks;
mod ids;
mod killed;
mod metrics;
mod metrics_of_others;
mod other_users;
mod processes;
mod receivers;
mod sandia;
mod spank;
mod squeue;
mod support;
mod trace;
mod why;
mod wrong_config;
