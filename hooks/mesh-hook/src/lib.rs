//! The hook: one short-lived process per call of a Slurm hook.
//!
//! It asks ingest to poll a job, or node-watcher to poll nodes, and sends Slurm's variables as evidence. Slurm comes first: in any
//! case the process ends with status 0 within 250 ms, or becomes the site's own program (`--chain`).
//! To keep that promise, the process Slurm waits for starts a second one, the sender, which does the work.
//!
//! - [`args`]: the command line. [`doorbell`], [`evidence`], [`hosts`]: content of a doorbell. Pure.
//! - [`config`]: the file `hook.toml`.
//! - [`guard`]: the process Slurm waits for. [`chain`]: hands over to the site's program and starts a sender beside it.
//! - [`sender`]: from the environment to a doorbell that is safe. [`ring`]: delivery within the deadline. [`flush`]: delivers the
//!   backlog.
//! - [`nats`]: just enough of the NATS protocol for one acknowledged publish. Blocking, because an async runtime would cost more than
//!   the work itself.
//! - [`listener`]: the owner of a listening socket, so that the password goes to no other user's process. [`privilege`]: root drops
//!   its privileges.
//! - [`slots`]: limit of concurrent senders.
//! - [`listen`]: a service that takes the reports of the SPANK plugin ([`spank`]).
//! - [`gpus`]: which job uses which GPU, as files for dcgm-exporter.
//! - [`spool`]: doorbells on disk while NATS is unavailable. [`lines`]: the lines written by Slurm's Lua plugins ([`lua`]).
//!
//! Deliberately absent: calls to Slurm, and lookups through the environment (`PATH`, `HOME`).

pub mod args;
pub mod chain;
pub mod config;
pub mod doorbell;
pub mod evidence;
pub mod flush;
pub mod gpus;
pub mod guard;
pub mod hosts;
pub mod lines;
pub mod listen;
pub mod listener;
pub mod lua;
pub mod nats;
pub mod privilege;
pub mod report;
pub mod ring;
pub mod sender;
pub mod slots;
pub mod spank;
pub mod spool;

pub use config::Config;
