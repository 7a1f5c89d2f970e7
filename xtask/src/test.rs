//! Every test of the workspace, in two lanes side by side.
//!
//! Tests that start a Slurm wait most of the time: for its next poll, for a job's end, for an answer that is late on purpose. The tests of
//! the other packages run meanwhile. Within a lane one program runs after the other, so that no two of them start a Slurm at once.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rustix::fs::statvfs;

use crate::compat;
use crate::programs::{self, Program};

/// Tests at once that start a Slurm, and others, whatever the number of CPUs: most of the time they wait.
const LIVE_THREADS: usize = 6;
const OTHER_THREADS: usize = 4;

/// Space for the databases, streams and copied programs of the tests, in bytes. Without it dozens of tests fail, each in its own words.
const MIN_FREE_BYTES: u64 = 6 << 30;

/// Builds all tests and runs them.
///
/// # Errors
///
/// If a test does not compile or fails. Those that failed are named.
pub fn run(root: &Path) -> Result<()> {
    let programs = programs::build(root, &[])?;
    ensure!(!programs.is_empty(), "cargo built no test");
    for folder in [std::env::temp_dir(), root.to_owned()] {
        require_space(&folder)?;
    }
    let (live, others): (Vec<_>, Vec<_>) = programs
        .iter()
        .partition(|program| compat::starts_slurm(&program.package));
    let failed = std::thread::scope(|scope| {
        let live = scope.spawn(|| run_lane(&live, LIVE_THREADS));
        let mut failed = run_lane(&others, OTHER_THREADS)?;
        failed.extend(run_doc_tests(root)?);
        let live = live.join();
        failed.extend(live.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        anyhow::Ok(failed)
    })?;
    ensure!(failed.is_empty(), "tests failed: {}", failed.join(", "));
    Ok(())
}

fn require_space(folder: &Path) -> Result<()> {
    let disk =
        statvfs(folder).with_context(|| format!("ask for the space of {}", folder.display()))?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    ensure!(
        free >= MIN_FREE_BYTES,
        "{} has {} MiB free and the tests need {}: make room, or set TMPDIR to a folder on another disk",
        folder.display(),
        free >> 20,
        MIN_FREE_BYTES >> 20
    );
    Ok(())
}

/// Runs one program after the other, and returns the names of those that failed.
fn run_lane(programs: &[&Program], threads: usize) -> Result<Vec<String>> {
    let mut failed = Vec::new();
    for program in programs {
        let name = format!("{} {}", program.package, program.name);
        let mut command = program.command();
        command.env("RUST_TEST_THREADS", threads.to_string());
        failed.extend(run_one(&name, &mut command)?);
    }
    Ok(failed)
}

/// The examples in the documentation of public items.
fn run_doc_tests(root: &Path) -> Result<Option<String>> {
    let mut command = programs::cargo(root);
    command.args(["test", "--workspace", "--doc", "--no-fail-fast"]);
    run_one("examples of the documentation", &mut command)
}

/// Prints each line with the program's name before it, as two programs run at once. Returns the name if it failed.
fn run_one(name: &str, command: &mut Command) -> Result<Option<String>> {
    let started = Instant::now();
    let child = command.stdout(Stdio::piped()).spawn();
    let mut child = child.with_context(|| format!("run {name}"))?;
    let stdout = child.stdout.take().context("read a test")?;
    for line in BufReader::new(stdout).lines() {
        println!("{name}: {}", line.context("read a test")?);
    }
    let status = child.wait()?;
    println!("{name}: {status} after {} s", started.elapsed().as_secs());
    Ok((!status.success()).then(|| name.to_owned()))
}
