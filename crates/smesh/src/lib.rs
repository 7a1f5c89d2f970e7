//! `smesh`: asks slurm-mesh questions, checks and sets it up, and runs it (`smesh up`).
//!
//! - [`cli`]: the command line as data; [`error`]: what can go wrong, and the exit status of each.
//! - [`settings`]: which mesh is meant; [`client`]: its API over a Unix socket or TCP; [`show`]: events as lines for people.
//! - [`commands`]: one module per command; [`up`]: all services and a nats-server in one process.
//! - [`secret_input`]: secrets from files, standard input or a prompt instead of the command line.
//! - [`slurm_conf`]: slurm.conf as a file, for what must work while Slurm is down.
//!
//! Deliberately absent: asking Slurm. Commands ask the mesh; only `doctor` and `hooks` look at Slurm itself.

pub mod cli;
pub mod client;
pub mod commands;
pub mod error;
pub mod known;
pub mod secret_input;
pub mod settings;
pub mod show;
pub mod slurm_conf;
pub mod up;

pub use error::Error;
