//! The ledger on real parts: nats-server, SQLite files, PostgreSQL, HTTP and gRPC; where it matters as a process that is killed.

#![allow(clippy::unwrap_used, reason = "a test stops where its set-up fails")]

mod api;
mod append;
mod complete;
mod connection;
mod damaged;
mod faults;
mod grpc;
mod history;
mod holes;
mod memory;
mod openapi;
mod people;
mod proof;
mod reads;
mod replay;
mod restart;
mod resume;
mod retention;
mod roles;
mod sight;
mod signing;
mod slow;
mod stopping;
mod stories;
mod stream;
mod support;
mod tampering;
mod upgrade;
mod vectors;
mod witness;
