//! `mesh-hook`: see the library. This file keeps the promise that nothing here can fail or hold up a job.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use mesh_hook::args::{self, Invocation, Options};
use mesh_hook::config::{Config, DEFAULT_PATH, HARD_STOP};
use mesh_hook::report::report;
use mesh_hook::ring::{self, Outcome};
use mesh_hook::{chain, doorbell};

/// How long `--flush` may take: a person waits, not a job.
const FLUSH_PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let started = Instant::now();
    let called_at = SystemTime::now();
    match args::parse(std::env::args_os().skip(1)) {
        Invocation::Help => print(args::HELP),
        Invocation::Version => print(concat!("mesh-hook ", env!("CARGO_PKG_VERSION"), "\n")),
        Invocation::Flush(options) => return flush(&options),
        Invocation::Chain {
            mut options,
            program,
        } => {
            options.called_at = Some(called_at);
            return ExitCode::from(chain::run(&options, &program));
        }
        Invocation::Relay(options) => chain::relay(&options),
        Invocation::Ring(options) => {
            // If the disk or a name look-up hangs, this ends the process all the same. It says nothing: standard error may hang, too.
            let watchdog = thread::Builder::new().spawn(move || {
                thread::sleep(HARD_STOP.saturating_sub(started.elapsed()));
                std::process::exit(0);
            });
            // A panic would be status 101, and a job that is requeued for ever. So would be a thread that cannot be had.
            let rung = watchdog.and_then(|_| {
                thread::Builder::new().spawn(move || ring(&options, called_at, started))
            });
            match rung.map(thread::JoinHandle::join) {
                Ok(Ok(())) => {}
                Ok(Err(_)) => report("internal error; please report it"),
                Err(error) => report(format_args!(
                    "not rung: no thread to be had ({error}); ingest's sweep will find the job"
                )),
            }
        }
    }
    ExitCode::SUCCESS
}

fn ring(options: &Options, called_at: SystemTime, started: Instant) {
    if let Some(complaint) = &options.complaint {
        report(complaint);
    }
    let config = match Config::load(config_path(options)) {
        Ok(config) => config,
        Err(error) => return report(format_args!("not rung: {error}")),
    };
    let environment: HashMap<OsString, OsString> = std::env::vars_os().collect();
    let given = options.hook.as_ref().map(|hook| hook.to_string_lossy());
    let Some(hook) = given.as_deref().or_else(|| doorbell::hook_of(&environment)) else {
        return report(
            "not rung: which hook is this? Slurm's environment does not tell, so give --hook NAME",
        );
    };
    let host = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let called_at = options.called_at.unwrap_or(called_at);
    let bell = doorbell::doorbell(
        &config.cluster,
        hook,
        &host,
        called_at,
        &environment,
        &options.arguments,
    );
    match ring::ring(&config, &bell, called_at, started) {
        Outcome::Delivered { .. } => {}
        Outcome::Spooled(error) => report(format_args!("job {} spooled: {error}", bell.job_id)),
        Outcome::Lost(error, lost) => report(format_args!(
            "job {} not rung: {error}; {lost}",
            bell.job_id
        )),
    }
}

fn flush(options: &Options) -> ExitCode {
    let outcome = Config::load(config_path(options))
        .map_err(|error| error.to_string())
        .and_then(|config| {
            ring::flush_all(&config, FLUSH_PATIENCE).map_err(|error| error.to_string())
        });
    match outcome {
        Ok((flushed, stay)) => {
            print(&format!("{flushed} delivered, {stay} still in the spool\n"));
            if stay == 0 {
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

fn config_path(options: &Options) -> &Path {
    options
        .config
        .as_ref()
        .map_or(Path::new(DEFAULT_PATH), PathBuf::as_path)
}

fn print(text: &str) {
    std::io::stdout().write_all(text.as_bytes()).ok();
}
