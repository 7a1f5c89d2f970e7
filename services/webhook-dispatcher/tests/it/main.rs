//! The dispatcher between a real nats-server and real HTTP receivers.

mod api;
mod bounds;
mod delivery;
mod harness;
mod latency;
mod restart;
mod retry;
mod slack;
