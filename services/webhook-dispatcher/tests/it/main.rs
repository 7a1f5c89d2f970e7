//! The dispatcher between a real nats-server and real HTTP receivers.

#![allow(clippy::unwrap_used, reason = "a test stops where its set-up fails")]

mod again;
mod api;
mod arrays;
mod bounds;
mod clock;
mod damaged;
mod database;
mod delivery;
mod dispatcher;
mod dns;
mod echo;
mod faults;
mod forgetting;
mod formats;
mod gate;
mod generated;
mod grpc;
mod harness;
mod killed;
mod listing;
mod manage;
mod many;
mod matrix;
mod modules;
mod names;
mod openapi;
mod pending;
mod positions;
mod preview;
mod process;
mod proxy;
mod reload;
mod replay;
mod replicas;
mod restart;
mod retry;
mod rights;
mod slack;
mod ssrf;
mod tls;
mod upgrade;
mod writer;
