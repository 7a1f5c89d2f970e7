//! `mesh-hook`: see the library. This file guarantees that no failure here fails or delays a job.

use std::io::Write;
use std::panic::catch_unwind;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use mesh_hook::args::{self, Invocation, Options};
use mesh_hook::config::Config;
use mesh_hook::report::report;
use mesh_hook::{chain, doorbell, gpus, guard, listen, privilege, sender};

/// Time limit of `--flush`. An operator waits for it, not a job.
const FLUSH_PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let started = Instant::now();
    let called_at = SystemTime::now();
    match args::parse(std::env::args_os().skip(1)) {
        Invocation::Help => print(args::HELP),
        Invocation::Version => print(concat!("mesh-hook ", env!("CARGO_PKG_VERSION"), "\n")),
        Invocation::Flush(options) => return flush(&options),
        Invocation::Listen { options, socket } => {
            return match listen::run(&options, &socket) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    report(error);
                    ExitCode::FAILURE
                }
            };
        }
        Invocation::Chain {
            mut options,
            program,
        } => {
            options.called_at = Some(called_at);
            let news = call_mode(&options) != CallMode::Silent;
            return ExitCode::from(chain::run(&options, &program, news));
        }
        Invocation::Ring(mut options) => {
            options.called_at.get_or_insert(called_at);
            // A panic would exit with status 101, and the job would be requeued forever.
            let result = catch_unwind(|| match call_mode(&options) {
                CallMode::Silent => {}
                CallMode::Beside => chain::beside(&options),
                CallMode::Wait => guard::run(&options, started),
            });
            if result.is_err() {
                report("internal error; please report it");
            }
        }
        Invocation::Send(options) => sender::run(&options, started),
    }
    ExitCode::SUCCESS
}

/// How a call is handled.
#[derive(PartialEq, Eq)]
enum CallMode {
    /// No doorbell: the call carries no new information.
    Silent,
    /// A sender is started; the caller does not wait.
    Beside,
    /// The caller waits until the doorbell is safe.
    Wait,
}

fn call_mode(options: &Options) -> CallMode {
    let mode = catch_unwind(|| {
        let environment = std::env::vars_os().collect();
        match sender::hook(options, &environment) {
            _ if options.probe.is_some() => CallMode::Wait,
            // Every node maps its own GPUs. Whether it is to is in hook.toml, which only a sender reads.
            Some(hook) if gpus::change_of(&hook, &environment, SystemTime::now()).is_some() => {
                CallMode::Wait
            }
            Some(hook) if !doorbell::is_news(&hook, &environment) => CallMode::Silent,
            // A login does not wait for the doorbell, not even for a moment.
            Some(hook) if hook == "Pam" => CallMode::Beside,
            _ => CallMode::Wait,
        }
    });
    mode.unwrap_or(CallMode::Wait)
}

fn flush(options: &Options) -> ExitCode {
    let outcome = Config::load(sender::config_path(options))
        .map_err(|error| error.to_string())
        .and_then(|config| {
            privilege::become_owner_of(&config.spool)
                .map_err(|error| format!("switch to the owner of the spool: {error}"))?;
            sender::flush(&config, FLUSH_PATIENCE, true).map_err(|error| error.to_string())
        });
    match outcome {
        Ok(flushed) => {
            print(&format!("{flushed}\n"));
            if flushed.is_all() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Err(error) => {
            report(error);
            ExitCode::FAILURE
        }
    }
}

fn print(text: &str) {
    std::io::stdout().write_all(text.as_bytes()).ok();
}
