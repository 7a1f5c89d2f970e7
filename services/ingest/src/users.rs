//! Users: who may do what, who gave it to them, who they are, and when they logged in. `docs/reference/user-events.md` says what is told.
//!
//! - [`access`]: what accounting says about everybody, as plain values. [`diff`]: what changed between two of them. [`actor`]: which
//!   entry of slurmdbd's log did it. Pure.
//! - [`memory`]: what was told, in bucket `mesh_users`; [`tell`]: from a change to its event.
//! - [`watch`]: looks at accounting, twice before anything is said; [`doubt`]: who seems to have lost something; [`record`]: tells it.
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
