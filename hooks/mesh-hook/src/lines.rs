//! Lines that Slurm's Lua plugins append to a file, since they must start no process and open no socket.
//!
//! A line: `1 KIND SECONDS USER JOB[ PROBE]`, with KIND `submit`, `modify` (job_submit.lua) or `cli` (cli_filter.lua), USER a name or
//! uid, JOB an id or `-`. Users may write into cli_filter's file, so nothing in it is believed: a line is a reason to look, no more.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, Utc};
use mesh_events::proto::mesh::hook::v1::Doorbell;
use uuid::Uuid;

use crate::spool::{self, FlushLock, like_folder};

/// The files, and their modes: users append to cli_filter's, and read neither.
pub const FILES: &[(&str, u32)] = &[("job_submit.lines", 0o600), ("cli_filter.lines", 0o622)];

/// Largest file that is read; the Lua modules stop at half of it.
const MAX_FILE: u64 = 2 << 20;
/// More jobs than this in one file are left to a sweep.
const MAX_JOBS: usize = 512;

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line<'a> {
    hook: &'static str,
    at: SystemTime,
    user: &'a str,
    job_id: u32,
    probe: Option<Uuid>,
}

fn parse(text: &str) -> Option<Line<'_>> {
    let mut words = text.split(' ');
    if words.next()? != "1" {
        return None;
    }
    let hook = match words.next()? {
        "submit" | "modify" => "JobSubmit",
        "cli" => "CliFilter",
        _ => return None,
    };
    let seconds: u32 = words.next()?.parse().ok()?;
    let user = words.next().filter(|user| user.len() <= 64)?;
    let job_id = match words.next()? {
        "-" => 0,
        id => id.parse().ok()?,
    };
    let probe = words.next().map(Uuid::parse_str).transpose().ok()?;
    Some(Line {
        hook,
        at: UNIX_EPOCH + Duration::from_secs(seconds.into()),
        user,
        job_id,
        probe,
    })
}

/// The doorbells of some lines: one per job, and one for all submissions whose job has no id yet.
pub fn doorbells(cluster: &str, host: &str, text: &str) -> Vec<Doorbell> {
    let bell = |line: &Line<'_>| Doorbell {
        id: line.probe.unwrap_or_else(Uuid::now_v7).to_string(),
        hook: line.hook.to_owned(),
        cluster: cluster.to_owned(),
        host: host.to_owned(),
        called_at: Some(mesh_events::timestamp(DateTime::<Utc>::from(line.at))),
        job_id: line.job_id,
        user: line.user.to_owned(),
        probe: line.probe.is_some(),
        ..Doorbell::default()
    };
    let (probes, lines): (Vec<_>, Vec<_>) = text
        .lines()
        .filter_map(parse)
        .partition(|line| line.probe.is_some());
    let mut jobs: BTreeMap<(u32, &str), Line<'_>> = BTreeMap::new();
    for line in lines {
        let fits = jobs.len() < MAX_JOBS || jobs.contains_key(&(line.job_id, line.hook));
        let job_id = if fits { line.job_id } else { 0 };
        // Without a job it asks for a sweep, which only a submission may.
        let hook = if job_id == 0 { "JobSubmit" } else { line.hook };
        jobs.insert(
            (job_id, hook),
            Line {
                job_id,
                hook,
                ..line
            },
        );
    }
    jobs.values()
        .chain(probes.iter().take(MAX_JOBS))
        .map(bell)
        .collect()
}

/// The folder of the files.
#[derive(Debug)]
pub struct Folder(PathBuf);

/// Lines that were taken from a file, until they are delivered.
#[derive(Debug)]
pub struct Taken {
    path: PathBuf,
    file: File,
}

impl Folder {
    /// A folder.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// True if nothing was written.
    pub fn is_empty(&self) -> bool {
        FILES.iter().all(|(name, _)| {
            let written = fs::symlink_metadata(self.0.join(name)).is_ok_and(|meta| meta.size() > 0);
            !written && !self.taken(name).exists()
        })
    }

    /// Takes the right to take lines; `None` if another process has it.
    ///
    /// # Errors
    /// If the folder cannot be used.
    pub fn lock(&self) -> io::Result<Option<FlushLock>> {
        if self.is_empty() {
            return Ok(None);
        }
        spool::lock(&self.0)
    }

    fn taken(&self, name: &str) -> PathBuf {
        self.0.join(format!(".{name}.taken"))
    }

    /// Takes what a file holds, by putting an empty one in its place. `None` if there is nothing.
    ///
    /// # Errors
    /// If the folder or disk does not take it.
    pub fn take(&self, name: &str, mode: u32) -> io::Result<Option<Taken>> {
        let (live, taken) = (self.0.join(name), self.taken(name));
        // What was taken and not delivered comes first; the file waits, and Lua stops at its limit.
        if !taken.try_exists()? {
            let Ok(meta) = fs::symlink_metadata(&live) else {
                return Ok(None);
            };
            if meta.size() == 0 || !meta.is_file() {
                return Ok(None);
            }
            let fresh = self.0.join(format!(".{name}.new"));
            fs::remove_file(&fresh).ok();
            self.create(&fresh, mode)?;
            // At every moment there is a file to write into: users could not create one.
            fs::hard_link(&live, &taken)?;
            fs::rename(&fresh, &live)?;
        }
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
            .open(&taken)?;
        Ok(Some(Taken { path: taken, file }))
    }

    /// Makes the files that are not there yet.
    ///
    /// # Errors
    /// If the folder or disk does not take them.
    pub fn prepare(&self) -> io::Result<()> {
        for (name, mode) in FILES {
            match self.create(&self.0.join(name), *mode) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn create(&self, path: &Path, mode: u32) -> io::Result<()> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(path)?;
        // The umask of a daemon would keep users out.
        file.set_permissions(Permissions::from_mode(mode))?;
        like_folder(&file, &self.0)
    }
}

impl Taken {
    /// What was written since the last read. Bytes that are no text are no line.
    ///
    /// # Errors
    /// If the disk does not give it.
    pub fn read(&mut self) -> io::Result<String> {
        let at = self.file.stream_position()?;
        let mut bytes = Vec::new();
        let left = MAX_FILE.saturating_sub(at);
        (&mut self.file).take(left).read_to_end(&mut bytes)?;
        if left == 0 {
            self.file.seek(SeekFrom::End(0))?;
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Forgets it: everything was delivered.
    ///
    /// # Errors
    /// If the file cannot be removed; it would be delivered again.
    pub fn forget(self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn rung(text: &str) -> Vec<(String, u32, String)> {
        doorbells("c", "h", text)
            .into_iter()
            .map(|bell| (bell.hook, bell.job_id, bell.user))
            .collect()
    }

    #[test]
    fn submissions_are_one_look_and_jobs_one_each() {
        let text = "1 submit 100 alice -\n1 submit 101 bob -\n1 cli 101 bob 7\n1 cli 102 bob 7\n1 modify 103 root 9\n";
        assert_eq!(
            rung(text),
            [
                ("JobSubmit".to_owned(), 0, "bob".to_owned()),
                ("CliFilter".to_owned(), 7, "bob".to_owned()),
                ("JobSubmit".to_owned(), 9, "root".to_owned()),
            ]
        );
    }

    #[test]
    fn what_is_no_line_rings_nothing() {
        for text in [
            "",
            "1",
            "2 submit 100 alice -",
            "1 submit x alice -",
            "1 cli 100 alice",
            "1 cli 100 alice 99999999999",
            "1 other 100 alice 1",
            "1 cli 100 alice 1 not-a-uuid",
        ] {
            assert_eq!(rung(text), [], "{text}");
        }
    }

    #[test]
    fn a_flood_is_bounded() {
        let text: String = (1..5000)
            .map(|job| format!("1 cli 100 mallory {job}\n"))
            .collect();
        let rung = rung(&text);
        assert_eq!(rung.len(), MAX_JOBS + 1);
        assert!(rung.iter().any(|(_, job, _)| *job == 0));
    }

    #[test]
    fn what_is_beyond_the_bound_asks_for_a_sweep_and_known_jobs_go_on_ringing() {
        let mut text: String = (1..5000)
            .map(|job| format!("1 cli 100 mallory {job}\n"))
            .collect();
        text.push_str("1 cli 101 bob 1\n");
        let rung = rung(&text);
        let without_job: Vec<_> = rung.iter().filter(|(_, job, _)| *job == 0).collect();
        assert_eq!(
            without_job,
            [&("JobSubmit".to_owned(), 0, "mallory".to_owned())]
        );
        assert!(rung.contains(&("CliFilter".to_owned(), 1, "bob".to_owned())));
    }

    #[test]
    fn lines_are_taken_once_and_none_that_comes_meanwhile_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let lines = Folder::new(folder.path());
        let (name, mode) = FILES[1];
        assert!(lines.take(name, mode).unwrap().is_none(), "no file");
        lines.prepare().unwrap();
        lines.prepare().unwrap();
        assert!(lines.take(name, mode).unwrap().is_none(), "empty");
        let open = || {
            OpenOptions::new()
                .append(true)
                .open(folder.path().join(name))
                .unwrap()
        };
        let mut before = open();
        writeln!(before, "one").unwrap();
        let mut taken = lines.take(name, mode).unwrap().unwrap();
        assert_eq!(taken.read().unwrap(), "one\n");
        // Somebody had the file open all the time.
        writeln!(before, "two").unwrap();
        assert_eq!(taken.read().unwrap(), "two\n");
        assert_eq!(taken.read().unwrap(), "");
        writeln!(open(), "three").unwrap();
        // Not delivered: it comes again, and the new lines wait.
        drop(taken);
        let mut again = lines.take(name, mode).unwrap().unwrap();
        assert_eq!(again.read().unwrap(), "one\ntwo\n");
        again.forget().unwrap();
        let mut next = lines.take(name, mode).unwrap().unwrap();
        assert_eq!(next.read().unwrap(), "three\n");
        next.forget().unwrap();
        let meta = fs::metadata(folder.path().join(name)).unwrap();
        assert_eq!(meta.mode() & 0o777, mode);
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in "(1 (submit|cli|modify) [0-9]{0,12} \\PC{0,4} [-0-9]{0,12}\n|\\PC{0,20}\n){0,20}") {
            doorbells("c", "h", &text);
        }
    }
}
