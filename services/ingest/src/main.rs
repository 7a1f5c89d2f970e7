//! The ingest process.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::{env, io};

/// Settings of glibc's malloc, which reads them only when a program starts. By default each thread has an arena of its own. A block as
/// large as an earlier freed one is allocated on the heap and stays there: 80 MiB more when 100,000 jobs change at once.
const MALLOC_SETTINGS: [(&str, &str); 3] = [
    ("MALLOC_ARENA_MAX", "1"),
    ("MALLOC_MMAP_THRESHOLD_", "131072"),
    ("MALLOC_TRIM_THRESHOLD_", "131072"),
];

fn main() -> ExitCode {
    let is_set = |(name, _): &(&str, &str)| env::var_os(name).is_some();
    if !MALLOC_SETTINGS.iter().any(is_set) {
        // If that fails, ingest uses more memory.
        drop(restart_with_settings());
    }
    mesh_runtime::main::<ingest::IngestService>()
}

/// Executes this program again, in the same process, with the settings. Returns only on failure.
fn restart_with_settings() -> io::Error {
    let program = match env::current_exe() {
        Ok(program) => program,
        Err(error) => return error,
    };
    let mut arguments = env::args_os();
    let mut command = Command::new(program);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    command.args(arguments).envs(MALLOC_SETTINGS).exec()
}
