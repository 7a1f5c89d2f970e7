//! Hands over to the site's own program.
//!
//! The process *becomes* the program (`execve`), so arguments, standard streams, environment, process id, signals and exit status are
//! the program's own; nothing is copied or translated. Before that it starts a ringer beside it, through a relay that exits at once, so
//! that the program does not find a child it never made.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::args::Options;
use crate::guard::start_beside;
use crate::report::report;

/// Starts a ringer that outlives this process, then becomes the program. Returns only if that fails: the exit status a shell would give.
pub fn run(options: &Options, program: &OsStr, ring: bool) -> u8 {
    if ring {
        beside(options);
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

/// Rings without anybody who waits, not even for a process to be there.
pub fn beside(options: &Options) {
    if let Err(error) = start_beside("--relay", options).and_then(|mut relay| relay.wait()) {
        report(format_args!("not rung: {error}"));
    }
}

/// The relay: starts the ringer and leaves.
pub fn relay(options: &Options) {
    if let Err(error) = start_beside("--ringer", options) {
        report(format_args!("not rung: {error}"));
    }
}
