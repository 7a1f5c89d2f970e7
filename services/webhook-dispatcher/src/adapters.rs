//! The IO side; no decisions.

mod command;
mod database;
mod delivery;
pub mod endpoints;
mod failure;
mod forget;
pub mod http;
mod lookup;
pub mod outbox;
#[cfg(test)]
mod plans;
pub mod redeliveries;
pub mod replicas;
pub mod resolver;
mod saves;
pub mod standing;
pub mod store;
pub mod system;
mod writer;
