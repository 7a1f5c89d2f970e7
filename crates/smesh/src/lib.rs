//! `smesh`: queries slurm-mesh, checks it, sets it up, and runs it (`smesh up`).
//!
//! - [`cli`]: the command line as data. [`error`]: errors and their exit statuses.
//! - [`settings`]: configuration and API address. [`client`]: the API over a Unix socket or TCP. [`show`]: events as text.
//! - [`services`]: the table of all services. [`backup`]: backups and their restore.
//! - [`commands`]: one module per command. [`up`]: all services and a nats-server in one process.
//! - [`known_ledgers`]: checkpoints that were seen of each ledger. [`reader`]: reads from NATS.
//! - [`secret_input`]: secrets from files, standard input or a prompt instead of the command line.
//! - [`slurm_conf`]: slurm.conf as a file, for commands that must work while Slurm is down. [`zone`]: time zones by name.
//!
//! Deliberately absent: queries to Slurm. Commands query the mesh; only `doctor` and `hooks` call Slurm itself.

pub mod backup;
pub mod cli;
pub mod client;
pub mod commands;
pub mod error;
pub mod known_ledgers;
pub mod reader;
pub mod secret_input;
pub mod services;
pub mod settings;
pub mod show;
pub mod slurm_conf;
pub mod up;
pub mod zone;

pub use error::Error;
