//! The cost engine on a real nats-server and a real SQLite file.

#![allow(clippy::unwrap_used, reason = "a test stops where something is wrong")]

mod api;
mod costs;
mod crash;
mod price_book;
mod support;
