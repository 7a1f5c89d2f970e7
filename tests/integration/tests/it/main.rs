//! Everything together: real Slurm clusters, the real `smesh up`, real receivers. Needs root.

#![allow(clippy::unwrap_used, reason = "a test stops where its set-up fails")]

mod accounting;
mod away;
mod busy;
mod day;
mod holes;
mod hooks;
mod ids;
mod killed;
mod processes;
mod receivers;
mod soak;
mod strangers;
mod support;
mod trace;
mod wrong_config;
