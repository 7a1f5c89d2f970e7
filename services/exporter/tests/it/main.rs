//! The exporter on a real NATS server and a real database.

#![allow(clippy::unwrap_used, reason = "a test stops where its set-up fails")]

mod counts;
mod dashboards;
mod exemplars;
mod gpus;
mod harness;
mod other_names;
mod pages;
mod promtool;
mod recovered;
