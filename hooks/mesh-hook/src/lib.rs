//! The hook: one short-lived process per call of a Slurm hook.
//!
//! It tells ingest "look at this job now", or node-watcher "look at these nodes", and brings Slurm's variables along as evidence. Slurm
//! comes first: whatever happens here, the process ends with status 0 within a quarter of a second, or becomes the site's own program
//! (`--chain`). To keep that promise the process that Slurm waits for does nothing itself: a second one, the sender, does.
//!
//! - [`args`]: the command line; [`doorbell`], [`evidence`], [`hosts`]: what is said. Pure.
//! - [`config`]: what `hook.toml` says.
//! - [`guard`]: what Slurm waits for. [`chain`]: hands over to the site's program and rings beside it.
//! - [`sender`]: from the environment to a doorbell that is safe; [`ring`]: how, within the deadline. [`flush`]: delivers what waits.
//! - [`nats`]: just enough of the NATS protocol for one acknowledged publish. Blocking, because a runtime costs more than the work.
//! - [`listener`]: whose socket listens, so that no password goes to somebody else's. [`privilege`]: root gives its rights away.
//! - [`slots`]: how many may hang at once.
//! - [`spool`]: doorbells on disk while NATS is away. [`lines`]: what Slurm's Lua plugins ([`lua`]) wrote down.
//!
//! Deliberately absent: asking Slurm anything, name look-ups in the environment (`PATH`, `HOME`).

pub mod args;
pub mod chain;
pub mod config;
pub mod doorbell;
pub mod evidence;
pub mod flush;
pub mod guard;
pub mod hosts;
pub mod lines;
pub mod listener;
pub mod lua;
pub mod nats;
pub mod privilege;
pub mod report;
pub mod ring;
pub mod sender;
pub mod slots;
pub mod spool;

pub use config::Config;
