//! The real program: against the real nats-server, as several Unix users. What needs a Slurm cluster is in tests/integration.

#![allow(clippy::unwrap_used, reason = "a test stops where its set-up fails")]

mod access;
mod commands;
mod config;
mod damaged;
mod documented;
mod forged;
mod inspect;
mod ledger;
mod mesh;
mod nats;
mod others;
mod replay;
mod secrets;
mod set_back;
mod stopping;
mod storage;
mod up;
mod webhooks;
mod witness;
