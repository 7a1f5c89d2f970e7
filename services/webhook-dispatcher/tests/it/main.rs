//! The dispatcher between a real nats-server and real HTTP receivers.

#![allow(clippy::unwrap_used, reason = "a test stops where its set-up fails")]

mod again;
mod api;
mod arrays;
mod bounds;
mod database;
mod delivery;
mod formats;
mod gate;
mod grpc;
mod harness;
mod manage;
mod openapi;
mod process;
mod replay;
mod replicas;
mod restart;
mod retry;
mod rights;
mod slack;
mod ssrf;
