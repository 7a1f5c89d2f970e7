//! Hands over to the site's own program.
//!
//! The process *becomes* the program (`execve`), so the program has its own arguments, standard streams, environment, process id,
//! signals and exit status. Nothing is copied or translated.
//! Before that, the process starts a sender that is not its child, so the program does not find a child it never started. This path
//! opens no file and loads no program that Slurm would have to wait for.

use std::ffi::OsStr;
use std::io;
use std::process::{Command, Stdio};

use crate::args::Options;
use crate::guard;
use crate::report::report;

/// Starts a sender that outlives this process, then becomes the program. Returns only if `execve` fails, with the exit status a shell
/// would give.
pub fn run(options: &Options, program: &OsStr, ring: bool) -> u8 {
    if ring {
        beside(options);
    }
    let error = unix_process::inherited::exec(Command::new(program).args(&options.arguments));
    report(format_args!(
        "start chained program {}: {error}",
        program.to_string_lossy()
    ));
    if error.kind() == io::ErrorKind::NotFound {
        127
    } else {
        126
    }
}

/// Starts a sender and does not wait for it.
pub fn beside(options: &Options) {
    if let Err(error) = guard::start(options, Stdio::null()) {
        report(format_args!(
            "doorbell not sent: start {}: {error}",
            guard::MYSELF
        ));
    }
}
