//! Users: access and who granted it, identities and logins. `docs/reference/user-events.md` documents the events.
//!
//! - [`access`]: accounting's associations and users as plain values. [`diff`]: the changes between two of them. [`actor`]: the log entry
//!   of slurmdbd that made a change. Pure.
//! - [`access_store`]: the published state, in bucket `mesh_users`. [`access_events`]: builds the event of a change.
//! - [`watch`]: polls accounting, and requires two equal answers. [`suspected_removals`]: removals that the log does not explain.
//!   [`publish`]: publishes the changes.
//! - [`coordinators`]: the accounts of each coordinator, for the APIs. [`login`]: PAM's doorbells. [`step_notices`]: those of the SPANK
//!   plugin.

pub mod access;
mod access_changes;
mod access_events;
mod access_store;
pub mod actor;
mod config;
mod coordinators;
pub mod diff;
mod limited_publisher;
pub mod login;
mod publish;
pub mod step_notices;
mod suspected_removals;
pub mod watch;

pub use self::config::Config;
pub use self::login::Logins;
pub use self::step_notices::StepNotices;
pub use self::watch::AccessWatcher;
