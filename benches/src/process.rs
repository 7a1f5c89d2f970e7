//! The measured programs, and the resource usage of processes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// A program built next to this one.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(name);
    if !path.is_file() {
        bail!("{} is not there: `make bench` builds it", path.display());
    }
    Ok(path)
}

/// A child process that does not outlive this process.
pub struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Starts a program with its output in a file.
    pub fn start(command: &mut Command, log: &Path) -> anyhow::Result<Self> {
        let file = std::fs::File::create(log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("start {:?}", command.get_program()))?;
        Ok(Self {
            child,
            log: log.to_owned(),
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Fails with the last lines of output if the program has ended.
    pub fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!(
                "ended with {status}: {}",
                std::fs::read_to_string(&self.log)?
            );
        }
        Ok(())
    }

    /// Stops it and waits for its end.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let start = Instant::now();
        while self.child.try_wait()?.is_none() {
            if start.elapsed() > Duration::from_secs(20) {
                bail!("does not end: {}", std::fs::read_to_string(&self.log)?);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Memory of a process in MiB.
pub struct Memory {
    /// Present resident size.
    pub resident: f64,
    /// Peak resident size.
    pub peak: f64,
}

impl Memory {
    /// Resets the peak, by writing "5" to clear_refs (proc(5)).
    pub fn reset_peak(pid: u32) -> anyhow::Result<()> {
        let path = format!("/proc/{pid}/clear_refs");
        std::fs::write(&path, "5").with_context(|| format!("write {path}"))
    }

    pub fn of(pid: u32) -> anyhow::Result<Self> {
        let path = format!("/proc/{pid}/status");
        let status = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        let field = |name: &str| {
            let kib: f64 = status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse().ok())
                .with_context(|| format!("{name} in {path}"))?;
            anyhow::Ok(kib / 1024.0)
        };
        Ok(Self {
            resident: field("VmRSS:")?,
            peak: field("VmHWM:")?,
        })
    }
}

/// Waits until a condition holds.
pub async fn wait_until(
    description: &str,
    patience: Duration,
    mut condition: impl AsyncFnMut() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let start = Instant::now();
    while !condition().await? {
        if start.elapsed() > patience {
            bail!("not within {patience:?}: {description}");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// CPU time of a process, without its children.
pub fn cpu_time(pid: u32) -> anyhow::Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let stat = std::fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    // The name may contain any characters and is followed by numbers. utime and stime are fields 14 and 15 of proc(5).
    let fields = stat
        .rsplit_once(')')
        .context("a process has a name")?
        .1
        .split_ascii_whitespace()
        .collect::<Vec<_>>();
    let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    // The value on Linux for all supported architectures.
    const TICKS_PER_SECOND: u64 = 100;
    Ok(Duration::from_millis(ticks * 1_000 / TICKS_PER_SECOND))
}

/// Elapsed time, and CPU time of this process.
pub struct Stopwatch(Instant, Duration);

impl Stopwatch {
    pub fn start() -> anyhow::Result<Self> {
        Ok(Self(Instant::now(), cpu_time(std::process::id())?))
    }

    pub fn stop(self) -> anyhow::Result<(Duration, Duration)> {
        let cpu = cpu_time(std::process::id())?;
        Ok((self.0.elapsed(), cpu.saturating_sub(self.1)))
    }
}
