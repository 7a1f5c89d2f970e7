//! Settings of glibc's malloc, which reads them only when a program starts.

use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::{env, io};

/// By default each thread has an arena of its own. A block as large as an earlier freed one is allocated on the heap and stays there: 80 MiB
/// more when 100,000 jobs change at once.
const SETTINGS: [(&str, &str); 3] = [
    ("MALLOC_ARENA_MAX", "1"),
    ("MALLOC_MMAP_THRESHOLD_", "131072"),
    ("MALLOC_TRIM_THRESHOLD_", "131072"),
];

/// Executes this program again, in the same process, with settings of malloc that bound its memory, unless some are set. Call it first,
/// before any thread runs. If it fails, the process uses more memory.
pub fn restart_with_bounded_malloc() {
    let is_set = |(name, _): &(&str, &str)| env::var_os(name).is_some();
    if !SETTINGS.iter().any(is_set) {
        drop(restart());
    }
}

/// Returns only on failure.
fn restart() -> io::Error {
    let program = match env::current_exe() {
        Ok(program) => program,
        Err(error) => return error,
    };
    let mut arguments = env::args_os();
    let mut command = Command::new(program);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    command.args(arguments).envs(SETTINGS).exec()
}
