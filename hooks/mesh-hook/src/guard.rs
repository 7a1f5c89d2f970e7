//! What Slurm waits for: starts a sender and is gone after the hard stop at the latest.
//!
//! All that may hang is done by another process. A thread would not do: a process whose thread waits for a hung disk in the kernel does
//! not end, not even by kill -9, before the disk answers, and Slurm would wait for it.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use unix_process::detached::{detached, exec_alone};

use crate::args::Options;
use crate::config::HARD_STOP;
use crate::report::{report, warn};

/// This very program, also when its file was replaced by an upgrade in the meantime.
pub const MYSELF: &str = "/proc/self/exe";

/// How long a sender may take from its start until it is counted among those that may wait for the disk.
const MAX_START_TIME: Duration = Duration::from_secs(10);

/// The watchdog needs next to nothing.
const STACK: usize = 64 << 10;

/// What the sender writes when the doorbell is safe: nobody needs to wait for what it does then.
pub const SAFE: u8 = 0;

/// Starts a sender and waits until the doorbell is safe, but not longer than the hard stop. Passes on what the sender says.
pub fn run(options: &Options, started: Instant) {
    if let Err(error) = start_and_wait(options, started) {
        report(format_args!(
            "not rung: start {MYSELF}: {error}; ingest's sweep will find it"
        ));
    }
}

fn start_and_wait(options: &Options, started: Instant) -> io::Result<()> {
    let (mut ours, theirs) = UnixStream::pair()?;
    start(options, Stdio::from(OwnedFd::from(theirs)))?;
    watch(started);
    let mut said = [0; 1024];
    loop {
        let left = HARD_STOP.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Ok(());
        }
        ours.set_read_timeout(Some(left))?;
        match ours.read(&mut said) {
            Ok(0) => return Ok(()),
            Ok(read) => {
                let (text, safe) = match said[..read].iter().position(|byte| *byte == SAFE) {
                    Some(at) => (&said[..at], true),
                    None => (&said[..read], false),
                };
                io::stderr().write_all(text).ok();
                if safe {
                    return Ok(());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => {
                warn("the sender hangs: is the disk of the spool well? it goes on by itself");
                return Ok(());
            }
        }
    }
}

/// Ends this process at the hard stop: standard error may hang, too. Without memory for it the wait ends in time all the same.
fn watch(started: Instant) {
    let left = HARD_STOP.saturating_sub(started.elapsed());
    let thread = thread::Builder::new().stack_size(STACK);
    drop(thread.spawn(move || {
        thread::sleep(left);
        std::process::exit(0);
    }));
}

/// Starts a sender that nobody waits for: no child of this process, in a process group of its own, so that a signal to the hook's group does
/// not reach it, and without the hook's descriptors, since Slurm waits until everybody has closed them.
///
/// # Errors
/// If the system gives no process.
pub fn start(options: &Options, stderr: Stdio) -> io::Result<()> {
    let mut args: Vec<OsString> = vec!["--send".into()];
    args.extend(options.to_args());
    let mut sender = Command::new(MYSELF);
    sender
        .args(args)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr);
    detached(move || {
        let error = exec_alone(&mut sender, MAX_START_TIME);
        report(format_args!("not rung: start {MYSELF}: {error}"));
    })
}
