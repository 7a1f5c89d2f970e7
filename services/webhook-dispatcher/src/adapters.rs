//! The IO side. Makes no decisions.

mod command;
pub mod cursors;
mod database;
mod delivery;
pub mod endpoint_stats;
pub mod endpoints;
mod failure;
pub mod http;
mod lookup;
pub mod outbox;
#[cfg(test)]
mod plans;
pub mod redeliveries;
pub mod replicas;
pub mod resolver;
mod retention;
mod saves;
pub mod store;
pub mod system;
mod writer;
