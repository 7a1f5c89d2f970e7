//! Settings of glibc's malloc, which reads them only when a program starts.

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::{env, io};

/// By default each thread has an arena of its own, in which freed memory stays.
const ARENAS: &str = "MALLOC_ARENA_MAX";
/// By default a block as large as an earlier freed one is allocated on the heap and stays there, and so does what is free below it.
const THRESHOLDS: [&str; 2] = ["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"];
/// glibc's initial threshold, fixed.
const THRESHOLD_BYTES: &str = "131072";

/// Executes this program again, in the same process, with settings of malloc that bound its memory, unless some are set. Threads that
/// share an arena wait for each other: fewer arenas need less memory and more time. Call it first, before any thread runs. If it fails,
/// the process uses more memory.
pub fn restart_with_bounded_malloc(arenas: u8) {
    let is_set = |name: &&str| env::var_os(name).is_some();
    if ![ARENAS].iter().chain(&THRESHOLDS).any(is_set) {
        drop(restart(arenas));
    }
}

/// Returns only on failure.
fn restart(arenas: u8) -> io::Error {
    let program = match env::current_exe() {
        Ok(program) => program,
        Err(error) => return error,
    };
    let mut arguments = env::args_os();
    let mut command = Command::new(program);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    let thresholds = THRESHOLDS.map(|name| (name, THRESHOLD_BYTES));
    command
        .args(arguments)
        .env(ARENAS, arenas.to_string())
        .envs(thresholds)
        .exec()
}
