//! The real program with a real nats-server, as several Unix users. Tests that need a Slurm cluster are in tests/integration.

#![allow(clippy::unwrap_used, reason = "a test stops where its set-up fails")]

mod access;
mod archives;
mod backup;
mod commands;
mod config;
mod damaged;
mod documented;
mod forged;
mod inspect;
mod known;
mod kubernetes;
mod leaf;
mod ledger;
mod memory;
mod mesh;
mod monitor;
mod nats;
mod others;
mod publish;
mod published;
mod queue;
mod recovered;
mod remote;
mod replay;
mod secrets;
mod set_back;
mod stopping;
mod storage;
mod tampered;
mod triggers;
mod up;
mod webhooks;
mod witness;
