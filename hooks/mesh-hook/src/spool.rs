//! Doorbells on disk while NATS is away: one file each, named so that names sort by the time of the call.
//!
//! A file appears under its name only when it is whole and on disk (written aside, synced, renamed, folder synced), so a process
//! killed at any moment leaves nothing half. Its content is a line with the SHA-256 of the rest, the subject on a line, the doorbell.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};

/// What a file takes on disk at least; names tell the rest, so that a full folder need not be read.
const BLOCK: u64 = 4096;
/// Largest file that is read back.
const MAX_FILE: u64 = 1 << 20;
/// Unfinished files older than this belong to a process that was killed.
const ABANDONED: Duration = Duration::from_secs(60);

/// Why a doorbell could not be spooled.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder or disk does not take it.
    #[error("write to spool {path}: {source}")]
    Io {
        /// Folder or file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The limit is reached.
    #[error("spool {path} is full ({limit} bytes); ingest's sweep will find the job")]
    Full {
        /// Folder.
        path: PathBuf,
        /// Its limit.
        limit: u64,
    },
}

/// What is said once when it begins and once when it is over, not at every call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// NATS does not take doorbells.
    Away,
    /// Nor does the spool.
    Full,
}

impl State {
    /// An empty file in the spool. A full disk still has room for a name.
    const fn file(self) -> &'static str {
        match self {
            Self::Away => ".away",
            Self::Full => ".full",
        }
    }
}

/// A doorbell from disk.
#[derive(Debug, PartialEq, Eq)]
pub struct Spooled {
    /// Its file.
    pub path: PathBuf,
    /// Its id.
    pub id: String,
    /// Its subject.
    pub subject: String,
    /// The encoded doorbell.
    pub body: Vec<u8>,
}

/// A spool folder.
#[derive(Debug)]
pub struct Spool {
    folder: PathBuf,
    limit: u64,
}

/// Held while flushing, so that order is kept and no two processes send the same.
#[derive(Debug)]
pub struct FlushLock(#[allow(dead_code, reason = "holds the lock until dropped")] File);

impl Spool {
    /// A spool in a folder that may hold so many bytes.
    pub fn new(folder: impl Into<PathBuf>, limit: u64) -> Self {
        Self {
            folder: folder.into(),
            limit,
        }
    }

    /// Stores a doorbell; when this returns it survives a crash of the machine.
    ///
    /// # Errors
    /// If the disk refuses, or the spool is full.
    pub fn store(
        &self,
        called_at: SystemTime,
        id: &str,
        subject: &str,
        body: &[u8],
    ) -> Result<(), Error> {
        self.try_store(called_at, id, subject, body)
            .map_err(|source| match source.kind() {
                io::ErrorKind::QuotaExceeded => Error::Full {
                    path: self.folder.clone(),
                    limit: self.limit,
                },
                _ => Error::Io {
                    path: self.folder.clone(),
                    source,
                },
            })
    }

    fn try_store(
        &self,
        called_at: SystemTime,
        id: &str,
        subject: &str,
        body: &[u8],
    ) -> io::Result<()> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)?;
        let content = content(subject, body);
        let size = content.len();
        if self.used()? + on_disk(size as u64) > self.limit {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let nanos = called_at
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default()
            .as_nanos();
        let name = format!("{nanos:020}-{id}-{size}.bell");
        let aside = self.folder.join(format!(".{name}.tmp"));
        let written = (|| {
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&aside)?;
            like_folder(&file, &self.folder)?;
            file.write_all(&content)?;
            file.sync_all()?;
            fs::rename(&aside, self.folder.join(&name))?;
            File::open(&self.folder)?.sync_all()
        })();
        if written.is_err() {
            fs::remove_file(&aside).ok();
        }
        written
    }

    /// Notes that a state begins; true if it did not last already. True as well if it cannot be noted: better said twice than never.
    pub fn begins(&self, state: State) -> bool {
        let noted = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(self.folder.join(state.file()));
        match noted {
            Ok(file) => {
                like_folder(&file, &self.folder).ok();
                true
            }
            Err(error) => error.kind() != io::ErrorKind::AlreadyExists,
        }
    }

    /// Notes that a state is over; true if it lasted.
    pub fn ends(&self, state: State) -> bool {
        fs::remove_file(self.folder.join(state.file())).is_ok()
    }

    /// Bytes in use.
    fn used(&self) -> io::Result<u64> {
        let mut used = 0;
        for entry in fs::read_dir(&self.folder)? {
            let name = entry?.file_name();
            used += name.to_str().and_then(size_in_name).map_or(0, on_disk);
        }
        Ok(used)
    }

    /// Number of doorbells that wait.
    ///
    /// # Errors
    /// If the folder cannot be read. A folder that is not there holds none.
    pub fn len(&self) -> io::Result<usize> {
        Ok(self.names()?.len())
    }

    /// True if no doorbell waits.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name.ends_with(".bell") && !name.starts_with('.'))
            .collect();
        names.sort();
        Ok(names)
    }

    /// Takes the right to flush; `None` if another process has it or there is nothing to flush.
    ///
    /// # Errors
    /// If the folder cannot be used.
    pub fn lock(&self) -> io::Result<Option<FlushLock>> {
        if self.is_empty()? {
            return Ok(None);
        }
        let lock = lock(&self.folder)?;
        if lock.is_some() {
            self.sweep();
        }
        Ok(lock)
    }

    /// The oldest doorbells, in order. Damaged files are put aside with the name `*.bad`, for a person to look at.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn oldest(&self, _lock: &FlushLock, count: usize) -> io::Result<Vec<Spooled>> {
        let mut bells = Vec::new();
        for name in self.names()? {
            if bells.len() == count {
                break;
            }
            let path = self.folder.join(&name);
            match read(&path) {
                Ok(Some(bell)) => bells.push(bell),
                Ok(None) => fs::rename(&path, path.with_extension("bad"))?,
                // Delivered by somebody, or somebody else's: that must not keep ours from being delivered.
                Err(error)
                    if [io::ErrorKind::NotFound, io::ErrorKind::PermissionDenied]
                        .contains(&error.kind()) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(bells)
    }

    /// Forgets a doorbell that was delivered.
    ///
    /// # Errors
    /// If the file cannot be removed; it would be sent again, under the same id.
    pub fn remove(&self, _lock: &FlushLock, bell: &Spooled) -> io::Result<()> {
        fs::remove_file(&bell.path)
    }

    /// Removes what killed processes left unfinished.
    fn sweep(&self) {
        let Ok(entries) = fs::read_dir(&self.folder) else {
            return;
        };
        for entry in entries
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().ends_with(".tmp"))
        {
            let age = entry
                .metadata()
                .and_then(|meta| meta.modified())
                .ok()
                .and_then(|time| time.elapsed().ok());
            if age.is_some_and(|age| age > ABANDONED) {
                fs::remove_file(entry.path()).ok();
            }
        }
    }
}

/// Takes the lock of a folder; `None` if another process has it.
///
/// # Errors
/// If the folder cannot be used.
pub fn lock(folder: &Path) -> io::Result<Option<FlushLock>> {
    let path = folder.join(".lock");
    let open = |options: &mut OpenOptions| {
        options
            .write(true)
            .mode(0o600)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
            .open(&path)
    };
    let file = match open(OpenOptions::new().create_new(true)) {
        Ok(file) => {
            like_folder(&file, folder)?;
            file
        }
        Err(_) => open(&mut OpenOptions::new())?,
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(FlushLock(file))),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Gives a new file to the owner of its folder. Root rings, too (on the controller, Prolog beside PrologSlurmctld), and what it leaves
/// must be SlurmUser's to deliver.
///
/// # Errors
/// If the system refuses.
pub fn like_folder(file: &File, folder: &Path) -> io::Result<()> {
    let (folder, own) = (fs::metadata(folder)?, file.metadata()?);
    if own.uid() != folder.uid() && rustix::process::geteuid().is_root() {
        fchown(file, Some(folder.uid()), Some(folder.gid()))?;
    }
    Ok(())
}

/// Reads a file; `None` if it is damaged.
fn read(path: &Path) -> io::Result<Option<Spooled>> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)?;
    if file.metadata()?.size() > MAX_FILE {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut bytes)?;
    Ok(parse(path, &bytes))
}

/// What a file holds. The subject must have no line end.
pub fn content(subject: &str, body: &[u8]) -> Vec<u8> {
    let told = [subject.as_bytes(), b"\n", body].concat();
    let digest = hex::encode(Sha256::digest(&told));
    [digest.as_bytes(), b"\n", &told].concat()
}

/// Reads what a file holds; `None` if it is damaged, or has no name that the spool gives.
pub fn parse(path: &Path, bytes: &[u8]) -> Option<Spooled> {
    let (digest, content) = bytes.split_at_checked(64)?;
    let content = content.strip_prefix(b"\n")?;
    if hex::encode(Sha256::digest(content)).as_bytes() != digest {
        return None;
    }
    let end = content.iter().position(|byte| *byte == b'\n')?;
    let id = path
        .file_stem()?
        .to_str()?
        .split_once('-')?
        .1
        .rsplit_once('-')?
        .0;
    Some(Spooled {
        path: path.to_owned(),
        id: id.to_owned(),
        subject: String::from_utf8(content[..end].to_vec()).ok()?,
        body: content[end + 1..].to_vec(),
    })
}

fn size_in_name(name: &str) -> Option<u64> {
    let (_, size) = name
        .trim_start_matches('.')
        .split('.')
        .next()?
        .rsplit_once('-')?;
    size.parse().ok()
}

const fn on_disk(size: u64) -> u64 {
    if size < BLOCK {
        BLOCK
    } else {
        size.div_ceil(BLOCK) * BLOCK
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn spool(limit: u64) -> (tempfile::TempDir, Spool) {
        let folder = tempfile::tempdir().unwrap();
        let spool = Spool::new(folder.path().join("spool"), limit);
        (folder, spool)
    }

    fn at(nanos: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(nanos)
    }

    #[test]
    fn doorbells_come_back_in_the_order_of_their_calls() {
        let (_folder, spool) = spool(1 << 20);
        for n in [30, 10, 20] {
            spool
                .store(
                    at(n),
                    &format!("0192-{n}"),
                    "mesh.c.hook.x",
                    format!("body\n{n}").as_bytes(),
                )
                .unwrap();
        }
        let lock = spool.lock().unwrap().unwrap();
        let bells = spool.oldest(&lock, 2).unwrap();
        assert_eq!(
            bells
                .iter()
                .map(|bell| bell.id.as_str())
                .collect::<Vec<_>>(),
            ["0192-10", "0192-20"]
        );
        assert_eq!(bells[0].subject, "mesh.c.hook.x");
        assert_eq!(bells[0].body, b"body\n10");
        for bell in &bells {
            spool.remove(&lock, bell).unwrap();
        }
        assert_eq!(spool.len().unwrap(), 1);
    }

    #[test]
    fn only_one_flushes_at_a_time_and_none_when_there_is_nothing() {
        let (_folder, spool) = spool(1 << 20);
        assert!(spool.lock().unwrap().is_none());
        spool.store(at(1), "a", "s", b"x").unwrap();
        let held = spool.lock().unwrap();
        assert!(held.is_some());
        assert!(spool.lock().unwrap().is_none());
        drop(held);
        assert!(spool.lock().unwrap().is_some());
    }

    #[test]
    fn the_limit_holds_and_the_oldest_stay() {
        let (_folder, spool) = spool(3 * BLOCK);
        for n in 0..3 {
            spool.store(at(n), &n.to_string(), "s", b"x").unwrap();
        }
        assert!(matches!(
            spool.store(at(9), "9", "s", b"x"),
            Err(Error::Full { .. })
        ));
        assert_eq!(spool.len().unwrap(), 3);
    }

    #[test]
    fn a_damaged_file_is_put_aside_and_the_others_go_on() {
        let (_folder, spool) = spool(1 << 20);
        spool.store(at(1), "a", "s", b"first").unwrap();
        spool.store(at(2), "b", "s", b"second").unwrap();
        let damaged = spool.folder.join(&spool.names().unwrap()[0]);
        let mut bytes = fs::read(&damaged).unwrap();
        bytes.truncate(bytes.len() - 1);
        fs::write(&damaged, bytes).unwrap();
        let lock = spool.lock().unwrap().unwrap();
        let bells = spool.oldest(&lock, 9).unwrap();
        assert_eq!(
            bells
                .iter()
                .map(|bell| bell.id.as_str())
                .collect::<Vec<_>>(),
            ["b"]
        );
        assert!(damaged.with_extension("bad").exists());
    }

    #[test]
    fn files_are_for_their_owner_only() {
        let (_folder, spool) = spool(1 << 20);
        spool.store(at(1), "a", "s", b"x").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&spool.folder), 0o700);
        assert_eq!(mode(&spool.folder.join(&spool.names().unwrap()[0])), 0o600);
    }
}
