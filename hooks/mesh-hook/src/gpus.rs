//! Which job uses which GPU of this node, as files for dcgm-exporter's `--hpc-job-mapping-dir`.
//!
//! A file is named by the index of its GPU, with MIG by `index.instance`, and has a job id per line. dcgm-exporter lists the folder at each
//! scrape and then opens what it found: if a file has gone meanwhile, the whole scrape fails (`internal/pkg/transformation/hpc.go`). So files
//! are replaced and never removed. A free GPU has one empty line, which makes an empty label: releases before August 2025 (its pull
//! request 533) leave a GPU out if its file is empty.
//!
//! Prolog and Epilog of all jobs of a node take turns by a lock on the folder. A sender may be late, and Epilog's overtake Prolog's. Then
//! Epilog notes the end in `.ended`, and Prolog maps nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{Dir, FlockOperation, Mode, OFlags, flock, openat, renameat};
use rustix::io::Errno;

use crate::evidence::{Environment, variable};
use crate::privilege;

/// Largest index, and most GPUs of a job on a node.
const MAX_GPUS: u32 = 1024;
/// Largest file that is read, in bytes.
const MAX_FILE: u64 = 64 << 10;
/// Ends that overtook their beginning, noted until others follow.
const ENDED: &str = ".ended";
const MAX_ENDED: usize = 64;
/// Only set for jobs with MPS.
const MPS: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
/// Interval between two attempts to take the lock.
const PAUSE: Duration = Duration::from_millis(2);

/// Where GPUs are mapped to jobs (`gpu_map`, `gpu_order` and `gpu_shared`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuMap {
    /// dcgm-exporter's folder.
    pub folder: PathBuf,
    /// Name of the file by Slurm's index, where it is not the index.
    pub order: BTreeMap<u32, String>,
    /// True if every GPU may have several jobs.
    pub shared: bool,
}

impl GpuMap {
    /// Reads the values of the keys.
    ///
    /// # Errors
    /// The key that is wrong, and the value to write instead.
    pub fn parse(map: &str, order: &str) -> Result<Self, (&'static str, String)> {
        let folder = map.strip_prefix("dcgm:").map(PathBuf::from);
        let Some(folder) = folder.filter(|folder| folder.is_absolute()) else {
            let problem = format!("{map:?} is not dcgm: and an absolute path");
            return Err(("gpu_map", problem));
        };
        let pairs = order
            .split(',')
            .map(str::trim)
            .filter(|pair| !pair.is_empty());
        let read = |pair: &str| {
            let (index, name) = pair.split_once(':')?;
            let index = index.parse().ok().filter(|index| *index < MAX_GPUS)?;
            is_gpu(name).then(|| (index, name.to_owned()))
        };
        let order = pairs.map(|pair| {
            read(pair).ok_or_else(|| {
                let problem = format!(
                    "{pair:?} is not Slurm's index, a colon, and the index of NVML, with MIG followed by a dot and the GPU instance"
                );
                ("gpu_order", problem)
            })
        });
        Ok(Self {
            folder,
            order: order.collect::<Result<_, _>>()?,
            shared: false,
        })
    }

    fn name(&self, index: u32) -> String {
        let name = self.order.get(&index).cloned();
        name.unwrap_or_else(|| index.to_string())
    }
}

/// The beginning or end of a job with GPUs on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuChange {
    /// True in Prolog.
    pub begins: bool,
    /// Job id.
    pub job: u32,
    /// Slurm's indices of its GPUs on this node.
    pub gpus: BTreeSet<u32>,
    /// True if other jobs use the same GPUs, as far as the environment says so. It does for MPS, and not for shards (seen on 22.05.8).
    pub shared: bool,
    /// When the hook was called, since 1970.
    pub called_at: Duration,
}

/// What a call of a hook says about GPUs. `None` if it is not the node's Prolog or Epilog, or the job has no GPU.
pub fn change_of(
    hook: &str,
    environment: &Environment,
    called_at: SystemTime,
) -> Option<GpuChange> {
    if !matches!(hook, "Prolog" | "Epilog") {
        return None;
    }
    let job = variable(environment, "SLURM_JOB_ID")?.parse().ok()?;
    let of = |name| variable(environment, name).map(|value| indices(&value));
    let named = of("SLURM_JOB_GPUS").filter(|gpus| !gpus.is_empty());
    let shared = named.is_none() || variable(environment, MPS).is_some();
    let gpus = named.or_else(|| of("CUDA_VISIBLE_DEVICES"))?;
    (!gpus.is_empty()).then(|| GpuChange {
        begins: hook == "Prolog",
        job,
        gpus,
        shared,
        called_at: called_at.duration_since(UNIX_EPOCH).unwrap_or_default(),
    })
}

/// The numbers of `0,2-3`. What is not a number is left out.
fn indices(text: &str) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    for item in text.split(',') {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        if let (Ok(first), Ok(last)) = (first.trim().parse(), last.trim().parse::<u32>()) {
            found.extend(first..=last.min(MAX_GPUS - 1));
        }
    }
    found
}

/// Name of a file that dcgm-exporter reads.
fn is_gpu(name: &str) -> bool {
    let is_number = |text: &str| {
        (1..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    match name.split_once('.') {
        Some((gpu, instance)) => is_number(gpu) && is_number(instance),
        None => is_number(name),
    }
}

/// Brings the files up to date. Waits for other calls until `until`.
///
/// # Errors
/// If the folder cannot be used, or another call holds it for too long.
pub fn record(map: &GpuMap, change: &GpuChange, until: Instant) -> io::Result<()> {
    let Some(folder) = Folder::open(map, change.begins)? else {
        return Ok(());
    };
    folder.lock(until)?;
    if change.begins {
        folder.begin(map, change)
    } else {
        folder.end(change)
    }
}

/// The locked folder. Its files are reached through its descriptor, so that nobody can exchange it meanwhile.
struct Folder(OwnedFd);

impl Folder {
    /// Opens the folder; creates it if `create`. `None` if it is missing.
    fn open(map: &GpuMap, create: bool) -> io::Result<Option<Self>> {
        if create {
            match fs::create_dir(&map.folder) {
                // Slurm's umask may exclude the user of dcgm-exporter.
                Ok(()) => {
                    fs::set_permissions(&map.folder, fs::Permissions::from_mode(0o755))?;
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = match rustix::fs::open(&map.folder, flags, Mode::empty()) {
            Ok(folder) => fs::File::from(folder),
            Err(Errno::NOENT) if !create => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let owner = privilege::owner(&map.folder).map(|(uid, _)| uid);
        let other = owner.filter(|_| rustix::process::geteuid().is_root());
        if other.is_some() || folder.metadata()?.mode() & 0o022 != 0 {
            let message = "other users may change it; make it and its parents root's, mode 0755";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
        }
        Ok(Some(Self(folder.into())))
    }

    fn lock(&self, until: Instant) -> io::Result<()> {
        loop {
            match flock(&self.0, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) if Instant::now() < until => thread::sleep(PAUSE),
                Err(Errno::WOULDBLOCK) => {
                    let message = "another call of mesh-hook holds it";
                    return Err(io::Error::new(io::ErrorKind::TimedOut, message));
                }
                locked => return Ok(locked?),
            }
        }
    }

    fn begin(&self, map: &GpuMap, change: &GpuChange) -> io::Result<()> {
        let ended = self.read(ENDED)?;
        if ended
            .lines()
            .filter_map(parse_end)
            .any(|(job, at)| job == change.job && at > change.called_at)
        {
            return Ok(());
        }
        let names: BTreeSet<String> = change.gpus.iter().map(|index| map.name(*index)).collect();
        // One file that cannot be written does not keep the others from it.
        let results = names.iter().map(|name| {
            // Nobody else has the GPU, so other lines are of jobs whose end was not seen.
            let before = if change.shared || map.shared {
                self.read(name)?
            } else {
                String::new()
            };
            self.write(name, &with_job(&before, change.job))
        });
        let written = results.fold(Ok(()), Result::and);
        // An earlier attempt of the job may have had other GPUs, and no Epilog.
        self.remove(change.job, |name| !names.contains(name))?;
        written
    }

    /// Looks at all files: `gpu_order` may have been changed since the job began.
    fn end(&self, change: &GpuChange) -> io::Result<()> {
        let found = self.remove(change.job, |_| true)?;
        if !found {
            let before = self.read(ENDED)?;
            let skipped = before.lines().count().saturating_sub(MAX_ENDED - 1);
            let mut lines: Vec<&str> = before.lines().skip(skipped).collect();
            let line = format!("{} {}", change.job, change.called_at.as_nanos());
            lines.push(&line);
            self.write(ENDED, &(lines.join("\n") + "\n"))?;
        }
        Ok(())
    }

    /// Takes the job out of these files. True if it was there.
    fn remove(&self, job: u32, of: impl Fn(&str) -> bool) -> io::Result<bool> {
        let mut found = false;
        let mut result = Ok(());
        for name in self.gpus()?.into_iter().filter(|name| of(name)) {
            let removed = self.read(&name).and_then(|before| {
                let Some(after) = without_job(&before, job) else {
                    return Ok(());
                };
                found = true;
                self.write(&name, &after)
            });
            result = result.and(removed);
        }
        result.map(|()| found)
    }

    /// Names of the files that dcgm-exporter reads.
    fn gpus(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.0)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if is_gpu(&name) {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// Text of a file; empty if it is missing.
    fn read(&self, name: &str) -> io::Result<String> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.0, name, flags, Mode::empty()) {
            Ok(file) => fs::File::from(file),
            Err(Errno::NOENT) => return Ok(String::new()),
            Err(error) => return Err(error.into()),
        };
        let mut bytes = Vec::new();
        file.take(MAX_FILE).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Replaces a file. A name with a dot at its beginning is none of dcgm-exporter's, and is written again after a crash.
    fn write(&self, name: &str, text: &str) -> io::Result<()> {
        let new = format!(".{name}.new");
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = fs::File::from(openat(&self.0, &new, flags, Mode::from_raw_mode(0o644))?);
        file.set_permissions(fs::Permissions::from_mode(0o644))?;
        file.write_all(text.as_bytes())?;
        renameat(&self.0, &new, &self.0, name)?;
        Ok(())
    }
}

fn parse_end(line: &str) -> Option<(u32, Duration)> {
    let (job, nanos) = line.split_once(' ')?;
    Some((job.parse().ok()?, Duration::from_nanos(nanos.parse().ok()?)))
}

/// The lines with the job, each once: releases before September 2026 fail the scrape for a job that is there twice.
fn with_job(text: &str, job: u32) -> String {
    let job = job.to_string();
    let others = text.lines().filter(|line| !line.is_empty() && *line != job);
    let mut lines: BTreeSet<&str> = others.collect();
    lines.insert(&job);
    lines.into_iter().map(|line| format!("{line}\n")).collect()
}

/// The lines without the job, or one empty line. `None` if the job is not there.
fn without_job(text: &str, job: u32) -> Option<String> {
    let job = job.to_string();
    text.lines().any(|line| line == job).then(|| {
        let others = text.lines().filter(|line| !line.is_empty() && *line != job);
        let lines: String = others.map(|line| format!("{line}\n")).collect();
        if lines.is_empty() {
            "\n".to_owned()
        } else {
            lines
        }
    })
}

#[cfg(test)]
mod tests;
