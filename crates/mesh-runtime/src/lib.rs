//! The process of a service: configuration, telemetry, health, signals, drain, and API authentication.
//!
//! Knows nothing of Slurm. A service implements [`Service`]; its `main.rs` hands it to [`main`]; `smesh up` starts several in one process.
//!
//! Modules by duty:
//!
//! - start and stop: `service` (what a service is), `process` (command line, signals, drain), `malloc` (its bounds), `crypto_provider` (for TLS),
//!   `systemd`; `program` runs other programs to their end;
//! - configuration: `config`, `reload` (`mesh.toml` that changes), `watched_files` (files that change), `context` (what a service gets);
//! - readiness: `health`, `probe`, `database_start`, `sqlite_integrity`, `leadership`;
//! - the API: [`api`] (authentication, roles, limits, audit of reads), [`identity`], [`UserNames`], [`time_bound`] (times in requests);
//! - traces, metrics and logs: [`telemetry`].

pub mod api;
mod ask;
mod config;
mod context;
mod crypto_provider;
mod database_start;
mod health;
pub mod identity;
mod leadership;
mod malloc;
mod probe;
mod process;
pub mod program;
mod reload;
mod service;
mod spreadsheet;
mod sqlite_integrity;
mod systemd;
pub mod telemetry;
pub mod time_bound;
mod user_names;
mod watched_files;

pub use ask::ask;
pub use config::{
    ApiConfig, ConfigError, ConfigFile, MeshConfig, RenamedKeys, ServiceSection, TelemetryConfig,
};
pub use context::Context;
pub use crypto_provider::install_crypto_provider;
pub use database_start::DatabaseStart;
pub use health::{Condition, Health, HealthNote};
pub use malloc::restart_with_bounded_malloc;
pub use process::{
    LAST_THREADS, apply_process_limits, check_config, command, main, run_api, shutdown_on_signals,
    start_service,
};
pub use service::{RunningService, Service};
pub use spreadsheet::harmless_cell;
pub use time_bound::{ParseTimeError, TimeBound};
pub use unix_process::memory::return_freed as return_freed_memory;
pub use user_names::{LookupTimeout, UserNames};
pub use watched_files::{ReloadTimer, WatchedFiles};

/// Any error, as services hand it to their process.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An error and its causes on one line: `append events: disk full`.
pub fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let part = error.to_string();
        // Libraries often repeat their cause in their own text.
        if !text.ends_with(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        cause = error.source();
    }
    text
}
