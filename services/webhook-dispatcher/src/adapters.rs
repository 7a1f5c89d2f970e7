//! The IO side; no decisions.

mod command;
mod database;
mod delivery;
pub mod endpoints;
mod failure;
pub mod http;
pub mod redeliveries;
pub mod replicas;
pub mod resolver;
pub mod standing;
pub mod store;
mod writer;
