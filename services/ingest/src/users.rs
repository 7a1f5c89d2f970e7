//! Users: access, who granted it, identities and logins. `docs/reference/user-events.md` says what is published.
//!
//! - [`access`]: accounting's associations and users as plain values. [`diff`]: the changes between two of them. [`actor`]: the entry of
//!   slurmdbd's log that made a change. Pure.
//! - [`access_store`]: what was published, in bucket `mesh_users`. [`access_events`]: from a change to its event.
//! - [`watch`]: polls accounting, and needs two equal answers. [`suspected_removals`]: removals that the log does not explain.
//!   [`publish`]: publishes the changes.
//! - [`coordinators`]: who coordinates which accounts, for the APIs. [`login`]: PAM's doorbells.

pub mod access;
mod access_changes;
mod access_events;
mod access_store;
pub mod actor;
mod config;
mod coordinators;
pub mod diff;
pub mod login;
mod publish;
mod suspected_removals;
pub mod watch;

pub use self::config::Config;
pub use self::login::Logins;
pub use self::watch::AccessWatcher;
