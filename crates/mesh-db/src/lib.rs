//! Access to a service's database, on SQLite or PostgreSQL alike.
//!
//! - [`Location`]: the database address in the configuration.
//! - [`Database`]: the tables of a service, with its connections.
//! - [`sqlite`], [`postgres`]: open pools with durable commits; [`migrations`]: bring tables to a program's version.
//! - [`pool`], [`sql`]: connections and statements for both dialects, and bulk statements.
//! - [`cells`]: rows of results with millions of rows.
//! - [`damage`]: detects damaged SQLite files and recovers their readable rows.
//! - [`backup`]: copies databases that are in use, and restores them.
//!
//! Tables and queries belong to the services.

pub mod backup;
mod bulk;
pub mod cells;
mod config;
pub mod damage;
mod database;
pub mod error;
mod insert;
pub mod location;
pub mod migrations;
pub mod pool;
pub mod postgres;
pub mod sql;
pub mod sqlite;

pub use bulk::Bulk;
pub use config::DatabaseConfig;
pub use database::{Database, Limits};
pub use error::{Error, is_timeout, is_unavailable};
pub use location::Location;
pub use migrations::Tables;
