//! Hands over to the site's own program.
//!
//! The process *becomes* the program (`execve`), so arguments, standard streams, environment, process id, signals and exit status are
//! the program's own; nothing is copied or translated. Before that it starts a ringer beside it. The ringer is started through a relay
//! that exits at once, so the program does not find a child it never made, and in a process group of its own, so that a signal to the
//! hook's group does not reach it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::args::Options;
use crate::report::report;

/// This very program, also when its file was replaced by an upgrade in the meantime.
const MYSELF: &str = "/proc/self/exe";

/// Starts a ringer that outlives this process, then becomes the program. Returns only if that fails: the exit status a shell would give.
pub fn run(options: &Options, program: &OsStr) -> u8 {
    if let Err(error) = start_beside("--relay", options).and_then(|mut relay| relay.wait()) {
        report(format_args!("not rung, start {MYSELF}: {error}"));
    }
    let error = Command::new(program).args(&options.arguments).exec();
    report(format_args!(
        "chain: start {}: {error}",
        program.to_string_lossy()
    ));
    if error.kind() == io::ErrorKind::NotFound {
        127
    } else {
        126
    }
}

/// The relay: starts the ringer and leaves.
pub fn relay(options: &Options) {
    if let Err(error) = start_beside("--", options) {
        report(format_args!("not rung, start {MYSELF}: {error}"));
    }
}

fn start_beside(step: &str, options: &Options) -> io::Result<std::process::Child> {
    let mut args: Vec<OsString> = options.to_args();
    if step != "--" {
        args.insert(0, step.into());
    }
    // Not the hook's streams: Slurm waits until everybody has closed them.
    Command::new(MYSELF)
        .args(args)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}
