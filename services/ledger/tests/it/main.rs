//! Tests the ledger with real parts: nats-server, SQLite files, PostgreSQL, HTTP and gRPC. Where it
//! matters, the ledger is a process that is killed.

#![allow(clippy::unwrap_used, reason = "a test stops where its set-up fails")]

mod api;
mod append;
mod append_batches;
mod connection;
mod damaged;
mod faults;
mod gaps;
mod grpc;
mod history;
mod identities;
mod ids;
mod index_backfill;
mod job_history;
mod memory;
mod openapi;
mod proof;
mod reads;
mod replay;
mod restart;
mod resume;
mod retention;
mod roles;
mod signing;
mod slow;
mod stopping;
mod stream;
mod support;
mod tampering;
mod upgrade;
mod vectors;
mod visibility;
mod witness;
