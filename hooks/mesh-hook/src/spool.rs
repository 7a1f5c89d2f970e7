//! Doorbells on disk while NATS is unavailable: one file each, with names that sort by the time of the call.
//!
//! A file gets its name only when it is complete and on disk (written to a temporary name, synced, renamed, folder synced). A killed
//! process leaves no partial doorbell, and a stored doorbell survives a power failure.
//! Suffixes: `*.bell` waits for delivery, `*.refused` is refused by NATS in its present configuration, `*.bad` is damaged.

mod file;
mod lock;
mod state;
#[cfg(test)]
mod tests;
mod usage;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use rustix::io::Errno;

pub use file::{Spooled, content, parse};
use file::{on_disk, size_in_name};
pub use lock::{FlushLock, Lock, like_folder, lock, lock_file, open_own, open_regular};
pub use state::State;
use usage::SpoolUsage;

/// Suffix of doorbells that wait for delivery.
const WAITING: &str = "bell";
/// Suffix of doorbells that NATS refuses individually.
const REFUSED: &str = "refused";
/// Suffix of damaged files, left for the operator.
const DAMAGED: &str = "bad";
/// Temporary files older than this belong to a killed process.
const ABANDONED_AFTER: Duration = Duration::from_secs(60);

/// Why a doorbell could not be spooled.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The folder or disk refuses.
    #[error("write to spool {path}: {source}")]
    Io {
        /// Folder or file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The size limit is reached.
    #[error("spool {path} is full ({limit} bytes); ingest's next poll finds the change")]
    Full {
        /// Folder.
        path: PathBuf,
        /// Limit in bytes.
        limit: u64,
    },
}

/// A spool folder.
#[derive(Debug)]
pub struct Spool {
    folder: PathBuf,
    limit: u64,
}

impl Spool {
    /// A spool in a folder, limited to this many bytes.
    pub fn new(folder: impl Into<PathBuf>, limit: u64) -> Self {
        Self {
            folder: folder.into(),
            limit,
        }
    }

    /// Stores a doorbell. After it returns, the doorbell survives a crash of the machine.
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
        self.make_folder()?;
        let content = content(subject, body);
        let name = file::name(called_at, id, content.len());
        let size = on_disk(content.len() as u64);
        if !self.usage().reserve(size)? {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let temporary = self.folder.join(format!(".{name}.tmp"));
        let written = (|| {
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&temporary)?;
            like_folder(&file, &self.folder)?;
            file.write_all(&content)?;
            file.sync_all()?;
            fs::rename(&temporary, self.folder.join(&name))?;
            File::open(&self.folder)?.sync_all()
        })();
        if written.is_err() {
            fs::remove_file(&temporary).ok();
            self.usage().release(size);
        }
        written
    }

    fn make_folder(&self) -> io::Result<()> {
        if self.folder.is_dir() {
            return Ok(());
        }
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)?;
        // Best effort: an account that may create the folder need not be allowed to read its parent.
        if let Some(parent) = self.folder.parent() {
            File::open(parent).and_then(|parent| parent.sync_all()).ok();
        }
        Ok(())
    }

    fn usage(&self) -> SpoolUsage<'_> {
        SpoolUsage {
            folder: &self.folder,
            limit: self.limit,
        }
    }

    /// Number of doorbells waiting for delivery. Zero if the folder does not exist.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn len(&self) -> io::Result<usize> {
        Ok(self.names(WAITING)?.len())
    }

    /// Number of doorbells that NATS refuses.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn refused(&self) -> io::Result<usize> {
        Ok(self.names(REFUSED)?.len())
    }

    /// True if no doorbell waits.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.files()?.all(|name| !is(&name, WAITING)))
    }

    fn files(&self) -> io::Result<impl Iterator<Item = String>> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => Some(entries),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        Ok(entries
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok()))
    }

    fn names(&self, kind: &str) -> io::Result<Vec<String>> {
        let mut names: Vec<String> = self.files()?.filter(|name| is(name, kind)).collect();
        names.sort();
        Ok(names)
    }

    /// Takes the flush lock. `None` if another process holds it or there is nothing to flush.
    ///
    /// # Errors
    /// If the folder cannot be used.
    pub fn lock(&self) -> io::Result<Option<FlushLock>> {
        if !self
            .files()?
            .any(|name| is(&name, WAITING) || is(&name, REFUSED))
        {
            return Ok(None);
        }
        let lock = lock(&self.folder)?;
        if lock.is_some() {
            self.remove_abandoned();
        }
        Ok(lock)
    }

    /// Names of the files waiting for delivery, oldest first.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn waiting(&self, _lock: &FlushLock) -> io::Result<Vec<String>> {
        self.names(WAITING)
    }

    /// Reads some of the waiting files, in their order. Damaged ones are put aside.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn read(&self, _lock: &FlushLock, names: &[String]) -> io::Result<Vec<Spooled>> {
        let mut doorbells = Vec::new();
        for name in names {
            let path = self.folder.join(name);
            match file::read(&path) {
                Ok(Some(doorbell)) => doorbells.push(doorbell),
                Ok(None) => fs::rename(&path, path.with_extension(DAMAGED))?,
                // A pipe or a link: not created by a hook.
                Err(error)
                    if error.kind() == io::ErrorKind::InvalidInput
                        || Errno::from_io_error(&error) == Some(Errno::LOOP) =>
                {
                    fs::rename(&path, path.with_extension(DAMAGED))?;
                }
                // Already delivered by another process, or another user's file. It must not block the delivery of the others.
                Err(error)
                    if [io::ErrorKind::NotFound, io::ErrorKind::PermissionDenied]
                        .contains(&error.kind()) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(doorbells)
    }

    /// Removes a delivered doorbell.
    ///
    /// # Errors
    /// If the file cannot be removed. The doorbell is then sent again, with the same id.
    pub fn remove(&self, _lock: &FlushLock, doorbell: &Spooled) -> io::Result<()> {
        fs::remove_file(&doorbell.path)?;
        let name = doorbell.path.file_name().and_then(|name| name.to_str());
        self.usage().release(name.map_or(0, size_in_name));
        Ok(())
    }

    /// Puts aside a doorbell that NATS refuses, so that it does not block the others.
    ///
    /// # Errors
    /// If the file cannot be renamed.
    pub fn mark_refused(&self, _lock: &FlushLock, doorbell: &Spooled) -> io::Result<()> {
        fs::rename(&doorbell.path, doorbell.path.with_extension(REFUSED))
    }

    /// Returns refused doorbells to the queue.
    ///
    /// # Errors
    /// If a file cannot be renamed.
    pub fn take_back(&self, _lock: &FlushLock) -> io::Result<()> {
        for name in self.names(REFUSED)? {
            let path = self.folder.join(name);
            fs::rename(&path, path.with_extension(WAITING))?;
        }
        Ok(())
    }

    /// Removes temporary files of killed processes.
    fn remove_abandoned(&self) {
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
            if age.is_some_and(|age| age > ABANDONED_AFTER) {
                fs::remove_file(entry.path()).ok();
            }
        }
    }
}

fn is(name: &str, kind: &str) -> bool {
    !name.starts_with('.')
        && name
            .rsplit_once('.')
            .is_some_and(|(_, extension)| extension == kind)
}
