//! One module per command. This file dispatches the command line.

mod backup;
mod budget;
mod checkpoints;
mod cost;
mod doctor;
mod events;
mod export;
mod hooks;
mod init;
mod inspect;
mod job;
mod ledger;
mod log_level;
mod manual;
mod monitor;
mod nats;
mod node;
mod price;
mod queue;
mod recover;
mod replay;
mod retention;
pub mod squeue;
mod stats;
mod tree;
mod triggers;
mod verify;
pub mod wait;
mod webhooks;
mod what_if;
mod whoami;
mod why;

use std::process::ExitCode;

use crate::cli::{Cli, Command};
use crate::error::Error;
use crate::up;

/// Runs a command and returns its exit status.
///
/// # Errors
/// The error to print on standard error.
pub async fn run(cli: Cli) -> Result<ExitCode, Error> {
    let global = &cli.global;
    match cli.command {
        Command::Init(args) => init::run(global, &args),
        // Boxed: it is far larger than all others together.
        Command::Up(args) => Box::pin(up::run(global, args)).await,
        Command::Events(args) => events::run(global, args).await,
        Command::Export(args) => export::run(global, args).await,
        Command::Replay(args) => replay::run(global, args).await,
        Command::Stats(args) => stats::run(global, args).await,
        Command::Job(args) => job::run(global, &args).await,
        Command::Node(args) => node::run(global, &args).await,
        Command::Why(args) => why::run(global, &args).await,
        Command::When(args) => what_if::when(global, &args).await,
        Command::Queue(args) => queue::run(global, args).await,
        Command::Wait(args) => wait::run(global, &args).await,
        Command::Cost(args) => cost::run(global, &args).await,
        Command::Budget(args) => budget::run(global, &args).await,
        Command::Webhooks(args) => webhooks::run(global, args).await,
        Command::Triggers(args) => triggers::run(global, args).await,
        Command::Tree(args) => tree::run(global, &args).await,
        Command::Publish(args) => triggers::publish(global, args).await,
        Command::Whoami => whoami::run(global).await,
        Command::Verify(args) => verify::run(global, args).await,
        Command::Ledger(args) => ledger::run(global, args).await,
        Command::Price(args) => price::run(global, &args),
        Command::Recover(args) => recover::run(global, args).await,
        Command::Backup(args) => backup::backup(global, args).await,
        Command::Restore(args) => Box::pin(backup::restore(global, args)).await,
        Command::LogLevel(args) => log_level::run(global, &args).await,
        Command::Doctor(args) => doctor::run(global, &args).await,
        Command::Nats(args) => nats::run(global, args).await,
        Command::Hooks(args) => hooks::run(global, args).await,
        Command::Inspect(args) => inspect::run(&args),
        Command::Squeue(args) => squeue::run(global, &args.arguments).await,
        Command::Manual(args) => manual::run(&args),
    }
}
