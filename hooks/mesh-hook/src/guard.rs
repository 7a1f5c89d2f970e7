//! The process Slurm waits for. It starts a sender and ends at the hard stop at the latest.
//!
//! Everything that may hang is done by the other process. A thread would not be enough: a process with a thread that waits in the
//! kernel for a hung disk does not end until the disk answers, not even by kill -9. Slurm would wait for it.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use unix_process::detached::{detached, exec_alone};

use crate::args::Options;
use crate::config::HARD_STOP;
use crate::report::{report, warn};

/// This program, even if an upgrade has replaced its file meanwhile.
pub const MYSELF: &str = "/proc/self/exe";

/// Time limit until a sender holds its slot. The system ends a slower one with an alarm.
const MAX_START_TIME: Duration = Duration::from_secs(10);

/// Stack of the watchdog thread, in bytes. It needs very little.
const STACK: usize = 64 << 10;

/// Byte the sender writes once the doorbell is safe. The caller does not wait for the sender's further work.
pub const SAFE: u8 = 0;

/// Starts a sender and waits until the doorbell is safe, at most until the hard stop. Passes on the sender's messages.
pub fn run(options: &Options, started: Instant) {
    if let Err(error) = start_and_wait(options, started) {
        report(format_args!(
            "doorbell not sent: start {MYSELF}: {error}; ingest's next poll finds the change"
        ));
    }
}

fn start_and_wait(options: &Options, started: Instant) -> io::Result<()> {
    let (mut ours, theirs) = UnixStream::pair()?;
    start(options, Stdio::from(OwnedFd::from(theirs)))?;
    watch(started);
    let mut buffer = [0; 1024];
    loop {
        let left = HARD_STOP.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Ok(());
        }
        ours.set_read_timeout(Some(left))?;
        match ours.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => {
                let (text, safe) = match buffer[..read].iter().position(|byte| *byte == SAFE) {
                    Some(at) => (&buffer[..at], true),
                    None => (&buffer[..read], false),
                };
                io::stderr().write_all(text).ok();
                if safe {
                    return Ok(());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => {
                warn(
                    "the sending process hangs and continues in the background; check the disk of the spool",
                );
                return Ok(());
            }
        }
    }
}

/// Ends this process at the hard stop, because writing to standard error may hang as well. If the thread cannot be started, the wait
/// for the sender still ends in time.
fn watch(started: Instant) {
    let left = HARD_STOP.saturating_sub(started.elapsed());
    let thread = thread::Builder::new().stack_size(STACK);
    drop(thread.spawn(move || {
        thread::sleep(left);
        std::process::exit(0);
    }));
}

/// Starts a sender without waiting for it. The sender is not a child of this process and not in its process group, which Slurm kills when
/// the hook's program ends. It does not inherit the hook's descriptors, because Slurm waits until all of them are closed.
///
/// # Errors
/// If the process cannot be created.
pub fn start(options: &Options, stderr: Stdio) -> io::Result<()> {
    let mut args: Vec<OsString> = vec!["--send".into()];
    args.extend(options.to_args());
    let mut sender = Command::new(MYSELF);
    sender
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr);
    detached(move || {
        let error = exec_alone(&mut sender, MAX_START_TIME);
        report(format_args!("doorbell not sent: start {MYSELF}: {error}"));
    })
}
