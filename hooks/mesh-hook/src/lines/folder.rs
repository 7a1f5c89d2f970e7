//! The files of lines. They are created only where they can do no harm, and read by putting an empty file in their place.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::filesystem::{self, Error};
use crate::spool::{self, FlushLock, like_folder};

/// Largest file that is read, in bytes; the Lua modules stop at half of it.
const MAX_FILE: u64 = 2 << 20;
/// Subfolder of the users' lines.
pub const USERS: &str = "users";
/// File name of earlier versions, removed because users could fill the disk through it.
const FORMER: &str = "cli_filter.lines";

/// Writer of a file of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// job_submit.lua, run by slurmctld.
    JobSubmit,
    /// cli_filter.lua, run by any user.
    CliFilter,
}

impl Source {
    /// Every source.
    pub const ALL: [Self; 2] = [Self::JobSubmit, Self::CliFilter];

    const fn name(self) -> &'static str {
        match self {
            Self::JobSubmit => "job_submit.lines",
            Self::CliFilter => "cli_filter.lines",
        }
    }

    /// File mode. Users append to cli_filter's file and can read neither.
    const fn mode(self) -> u32 {
        match self {
            Self::JobSubmit => 0o600,
            Self::CliFilter => 0o622,
        }
    }
}

/// The folder of the files.
#[derive(Debug)]
pub struct Folder(PathBuf);

/// Lines taken from a file and not yet delivered.
#[derive(Debug)]
pub struct PendingLines {
    path: PathBuf,
    file: File,
}

impl Folder {
    /// A folder.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Path of a source's file.
    pub fn file(&self, source: Source) -> PathBuf {
        self.folder(source).join(source.name())
    }

    fn folder(&self, source: Source) -> PathBuf {
        match source {
            Source::JobSubmit => self.0.clone(),
            Source::CliFilter => self.0.join(USERS),
        }
    }

    fn taken(&self, source: Source) -> PathBuf {
        self.folder(source)
            .join(format!(".{}.taken", source.name()))
    }

    /// True if there are no lines.
    pub fn is_empty(&self) -> bool {
        Source::ALL.into_iter().all(|source| {
            let written = fs::symlink_metadata(self.file(source)).is_ok_and(|meta| meta.size() > 0);
            !written && !self.taken(source).exists()
        })
    }

    /// Creates a missing file, because Lua writes only into existing files. False if its folder does not exist.
    ///
    /// # Errors
    /// If lines in this folder could do harm. An existing file is then removed, so that nothing more is written to it.
    pub fn prepare(&self, source: Source) -> Result<bool, Error> {
        let (folder, file) = (self.folder(source), self.file(source));
        // No mount for users' lines, or no Lua plugin in use.
        if fs::symlink_metadata(&folder).is_err() {
            return Ok(false);
        }
        if source == Source::JobSubmit {
            fs::remove_file(self.0.join(FORMER)).ok();
        }
        let fits = match source {
            Source::JobSubmit => filesystem::in_memory(&folder),
            Source::CliFilter => filesystem::bounded(&folder),
        };
        if let Err(error) = fits {
            fs::remove_file(&file).ok();
            return Err(error);
        }
        match create(&file, &folder, source.mode()) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(Error::io(&folder)(error))
            }
            _ => Ok(true),
        }
    }

    /// Takes the lock for reading lines. `None` if another process holds it or there are no lines.
    ///
    /// # Errors
    /// If the folder cannot be used.
    pub fn lock(&self, source: Source) -> Result<Option<FlushLock>, Error> {
        if !self.prepare(source)? || self.is_empty() {
            return Ok(None);
        }
        let folder = self.folder(source);
        spool::lock(&folder).map_err(Error::io(&folder))
    }

    /// Takes the content of a file by putting an empty file in its place. `None` if there is no content.
    ///
    /// # Errors
    /// If the folder refuses.
    pub fn take(&self, _lock: &FlushLock, source: Source) -> Result<Option<PendingLines>, Error> {
        self.exchange(source)
            .map_err(Error::io(&self.folder(source)))
    }

    fn exchange(&self, source: Source) -> io::Result<Option<PendingLines>> {
        let (live, taken) = (self.file(source), self.taken(source));
        // Undelivered lines come first. The live file waits, and Lua stops at its limit.
        if !taken.try_exists()? {
            let Ok(meta) = fs::symlink_metadata(&live) else {
                return Ok(None);
            };
            if meta.size() == 0 || !meta.is_file() {
                return Ok(None);
            }
            let folder = self.folder(source);
            let fresh = folder.join(format!(".{}.new", source.name()));
            fs::remove_file(&fresh).ok();
            create(&fresh, &folder, source.mode())?;
            // The path must exist at every moment, because users could not create the file.
            fs::hard_link(&live, &taken)?;
            fs::rename(&fresh, &live)?;
        }
        let file = spool::open_regular(OpenOptions::new().read(true), &taken)?;
        Ok(Some(PendingLines { path: taken, file }))
    }
}

fn create(path: &Path, folder: &Path, mode: u32) -> io::Result<()> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)?;
    // The umask of a daemon would exclude users.
    file.set_permissions(Permissions::from_mode(mode))?;
    like_folder(&file, folder)
}

impl PendingLines {
    /// Reads the lines written since the last read. Bytes that are not valid text are skipped.
    ///
    /// # Errors
    /// If the file cannot be read.
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

    /// Removes the file after its lines are delivered.
    ///
    /// # Errors
    /// If the file cannot be removed. Its lines would be delivered again.
    pub fn discard(self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Below /dev/shm, which is a tmpfs on every Linux.
    fn in_memory() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").unwrap()
    }

    #[test]
    fn lines_are_read_once_and_concurrent_ones_are_not_lost() {
        let folder = in_memory();
        let lines = Folder::new(folder.path());
        let source = Source::JobSubmit;
        assert!(lines.lock(source).unwrap().is_none(), "nothing written");
        let open = || {
            OpenOptions::new()
                .append(true)
                .open(lines.file(source))
                .unwrap()
        };
        let mut before = open();
        writeln!(before, "one").unwrap();
        let lock = lines.lock(source).unwrap().unwrap();
        let mut taken = lines.take(&lock, source).unwrap().unwrap();
        assert_eq!(taken.read().unwrap(), "one\n");
        // A writer had the file open all the time.
        writeln!(before, "two").unwrap();
        assert_eq!(taken.read().unwrap(), "two\n");
        assert_eq!(taken.read().unwrap(), "");
        writeln!(open(), "three").unwrap();
        // Undelivered lines are read again, and the new ones wait.
        drop(taken);
        let mut second = lines.take(&lock, source).unwrap().unwrap();
        assert_eq!(second.read().unwrap(), "one\ntwo\n");
        second.discard().unwrap();
        let mut next = lines.take(&lock, source).unwrap().unwrap();
        assert_eq!(next.read().unwrap(), "three\n");
        next.discard().unwrap();
        let meta = fs::metadata(lines.file(source)).unwrap();
        assert_eq!(meta.mode() & 0o777, source.mode());
    }

    #[test]
    fn on_a_disk_there_is_no_file_to_write_into() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let lines = Folder::new(folder.path());
        // As earlier versions created it.
        fs::write(folder.path().join(FORMER), "x").unwrap();
        fs::write(lines.file(Source::JobSubmit), "x").unwrap();
        let error = lines.lock(Source::JobSubmit).unwrap_err();
        assert!(matches!(error, Error::NotInMemory { .. }), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn users_write_into_no_file_system_that_others_need() {
        let folder = in_memory();
        let lines = Folder::new(folder.path());
        assert!(!lines.prepare(Source::CliFilter).unwrap(), "no folder");
        let users = folder.path().join(USERS);
        fs::create_dir(&users).unwrap();
        fs::write(lines.file(Source::CliFilter), "x").unwrap();
        let error = lines.prepare(Source::CliFilter).unwrap_err();
        assert!(matches!(error, Error::NotBounded { .. }), "{error}");
        assert!(!lines.file(Source::CliFilter).exists());
    }
}
