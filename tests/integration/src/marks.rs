//! One clock for latencies: jobs and hooks write a line into a FIFO, and this process records the arrival time.
//!
//! Slurm's own times are in whole seconds, and a job's clock may differ from ours. The FIFO adds only microseconds.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::Error;

/// The last line.
const STOP: &str = "stop";

/// A moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Kind of the mark: `begin` and `end` of a job's script, or the name of a hook.
    pub what: String,
    /// The job, as `123` or `123_4`.
    pub job: String,
    /// Number of requeues of the job so far.
    pub restarts: u32,
    /// Arrival time.
    pub at: Instant,
}

/// The FIFO and the received marks.
#[derive(Debug)]
pub struct Marks {
    path: PathBuf,
    // Opened for reading and writing, so that there is no end of file while no job writes.
    fifo: File,
    marks: Arc<Mutex<Vec<Mark>>>,
    reader: Option<JoinHandle<()>>,
}

impl Marks {
    /// Creates the FIFO. Every user may write to it.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn listen(path: &Path) -> Result<Self, Error> {
        mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0)
            .map_err(|error| Error::io("make", path)(error.into()))?;
        // Set separately, because the process's umask would clear bits in mknod.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))
            .map_err(Error::io("set the mode of", path))?;
        let fifo = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(Error::io("open", path))?;
        let marks = Arc::<Mutex<Vec<Mark>>>::default();
        let (input, seen) = (
            fifo.try_clone().map_err(Error::io("open", path))?,
            Arc::clone(&marks),
        );
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(input).lines() {
                let at = Instant::now();
                match line.as_deref() {
                    Ok(STOP) | Err(_) => return,
                    Ok(line) => seen
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .extend(parse(line, at)),
                }
            }
        });
        Ok(Self {
            path: path.to_owned(),
            fifo,
            marks,
            reader: Some(reader),
        })
    }

    /// All marks so far.
    pub fn all(&self) -> Vec<Mark> {
        self.marks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Time of a mark of a job's run.
    pub fn when(&self, what: &str, job: &str, restarts: u32) -> Option<Instant> {
        let marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut marks = marks.iter();
        marks
            .find(|mark| mark.what == what && mark.job == job && mark.restarts == restarts)
            .map(|mark| mark.at)
    }

    /// A shell line that writes a mark. It never blocks and never fails. It opens the FIFO for reading, too (`<>`), so it does not
    /// wait for this process after its end.
    pub fn line(&self, what: &str) -> String {
        line(&self.path, what)
    }
}

/// See [`Marks::line`]. Slurm names the array of a task in `SLURM_ARRAY_*`.
pub(crate) fn line(fifo: &Path, what: &str) -> String {
    let job = "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}}";
    let restarts = "${SLURM_RESTART_COUNT:-${SLURM_JOB_RESTART_COUNT:-0}}";
    format!(
        "{{ j={job}; echo \"{what} ${{j:-${{SLURM_JOB_ID:-${{JOBID:-0}}}}}} {restarts}\" 1<> {}; }} 2>/dev/null || :",
        fifo.display()
    )
}

fn parse(line: &str, at: Instant) -> Option<Mark> {
    let mut words = line.split_whitespace();
    Some(Mark {
        what: words.next()?.to_owned(),
        job: words.next()?.to_owned(),
        restarts: words.next()?.parse().ok()?,
        at,
    })
}

impl Drop for Marks {
    fn drop(&mut self) {
        if writeln!(self.fifo, "{STOP}").is_ok()
            && let Some(reader) = self.reader.take()
        {
            // It ends at the line just written.
            drop(reader.join());
        }
        // Opening a removed FIFO creates a file, which is removed with the folder.
        drop(std::fs::remove_file(&self.path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_written_by_a_shell_is_a_mark() {
        let folder = tempfile::tempdir().unwrap();
        let marks = Marks::listen(&folder.path().join("marks")).unwrap();
        let run = |what: &str, environment: &[(&str, &str)]| {
            let status = std::process::Command::new("/bin/sh")
                .args(["-c", &marks.line(what)])
                .env_clear()
                .envs(environment.iter().copied())
                .status();
            assert!(status.unwrap().success());
        };
        run("begin", &[("SLURM_JOB_ID", "7")]);
        run(
            "end",
            &[
                ("SLURM_JOB_ID", "9"),
                ("SLURM_ARRAY_JOB_ID", "8"),
                ("SLURM_ARRAY_TASK_ID", "3"),
                ("SLURM_RESTART_COUNT", "2"),
            ],
        );
        let deadline = Instant::now() + std::time::Duration::from_secs(60);
        while marks.all().len() < 2 && Instant::now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(marks.when("begin", "7", 0).is_some());
        assert!(marks.when("end", "8_3", 2).is_some());
        assert!(marks.when("end", "8_3", 0).is_none());
    }
}
