//! Hands over to the site's own program.
//!
//! The process *becomes* the program (`execve`), so arguments, standard streams, environment, process id, signals and exit status are
//! the program's own; nothing is copied or translated. Before that it starts a sender, which is no child of its, so that the program does
//! not find one that it never made. Nothing that is waited for opens a file or loads a program.

use std::ffi::OsStr;
use std::io;
use std::process::{Command, Stdio};

use crate::args::Options;
use crate::guard;
use crate::report::report;

/// Starts a sender that outlives this process, then becomes the program. Returns only if that fails: the exit status a shell would give.
pub fn run(options: &Options, program: &OsStr, ring: bool) -> u8 {
    if ring {
        beside(options);
    }
    let error = unix_process::inherited::exec(Command::new(program).args(&options.arguments));
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

/// Rings without anybody who waits.
pub fn beside(options: &Options) {
    if let Err(error) = guard::start(options, Stdio::null()) {
        report(format_args!("not rung: start {}: {error}", guard::MYSELF));
    }
}
