//! Every test of the workspace, two programs at a time.
//!
//! Tests that start a Slurm wait most of the time: for its next poll, for a job's end, for an answer that is late on purpose. So one lane
//! begins with them and the other one with the rest, and both end when all programs have run.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::fs::statvfs;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

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
    let queue = Mutex::new(live.into_iter().chain(others.into_iter().rev()).collect());
    let failed = std::thread::scope(|scope| {
        let live = scope.spawn(|| run_lane(&queue, LIVE_THREADS, VecDeque::pop_front));
        let mut failed = run_lane(&queue, OTHER_THREADS, VecDeque::pop_back)?;
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

/// Programs that have not run yet.
type Queue<'a> = VecDeque<&'a Program>;

/// Takes one program after the other from its end of the queue, runs it, and returns the names of those that failed.
fn run_lane<'a>(
    queue: &Mutex<Queue<'a>>,
    threads: usize,
    next: fn(&mut Queue<'a>) -> Option<&'a Program>,
) -> Result<Vec<String>> {
    let next = || next(&mut queue.lock().unwrap_or_else(PoisonError::into_inner));
    let mut failed = Vec::new();
    while let Some(program) = next() {
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
    let cpu = cpu_time(&child)?;
    let status = child.wait()?;
    println!(
        "{name}: {status} after {} s, {} s of CPU",
        started.elapsed().as_secs(),
        cpu.as_secs()
    );
    Ok((!status.success()).then(|| name.to_owned()))
}

/// Waits for the end of a program and returns its CPU time and that of its children (not of daemons), which the kernel still has for a
/// process that nobody has waited for.
fn cpu_time(child: &Child) -> Result<Duration> {
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(Pid::from_child(child)), ended)?;
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id()))?;
    // proc_pid_stat(5): the name in parentheses is the second field; utime, stime, cutime and cstime are the 14th to 17th.
    let fields = stat.rsplit_once(')').context("read /proc/PID/stat")?.1;
    let times = fields.split_whitespace().skip(11).take(4);
    let ticks: u64 = times.filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    Ok(Duration::from_secs(ticks) / u32::try_from(rustix::param::clock_ticks_per_second())?)
}
