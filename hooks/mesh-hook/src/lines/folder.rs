//! The files: made only where they can hurt nobody, and taken by putting an empty one in their place.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::filesystem::{self, Error};
use crate::spool::{self, FlushLock, like_folder};

/// Largest file that is read; the Lua modules stop at half of it.
const MAX_FILE: u64 = 2 << 20;
/// The folder of users' lines in the folder of lines.
pub const USERS: &str = "users";
/// What made the files of earlier versions: users could fill the disk through it.
const FORMER: &str = "cli_filter.lines";

/// Who writes a file of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// job_submit.lua, which is slurmctld.
    JobSubmit,
    /// cli_filter.lua, which is any user.
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

    /// Users append to cli_filter's, and read neither.
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

    /// Where a file is.
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

    /// True if nothing was written.
    pub fn is_empty(&self) -> bool {
        Source::ALL.into_iter().all(|source| {
            let written = fs::symlink_metadata(self.file(source)).is_ok_and(|meta| meta.size() > 0);
            !written && !self.taken(source).exists()
        })
    }

    /// Makes a file that is not there yet; false if there is no folder for it. Lua writes only into files that are there.
    ///
    /// # Errors
    /// If the folder is where lines would hurt: then a file that is there is removed, so that nobody writes into it any more.
    pub fn prepare(&self, source: Source) -> Result<bool, Error> {
        let (folder, file) = (self.folder(source), self.file(source));
        // No mount for users' lines, or no Lua plugin at all.
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

    /// Takes the right to take lines; `None` if another process has it or there are none.
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

    /// Takes what a file holds, by putting an empty one in its place. `None` if there is nothing.
    ///
    /// # Errors
    /// If the folder does not take it.
    pub fn take(&self, _lock: &FlushLock, source: Source) -> Result<Option<Taken>, Error> {
        self.exchange(source)
            .map_err(Error::io(&self.folder(source)))
    }

    fn exchange(&self, source: Source) -> io::Result<Option<Taken>> {
        let (live, taken) = (self.file(source), self.taken(source));
        // What was taken and not delivered comes first; the file waits, and Lua stops at its limit.
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
            // At every moment there is a file to write into: users could not create one.
            fs::hard_link(&live, &taken)?;
            fs::rename(&fresh, &live)?;
        }
        let file = spool::open_regular(OpenOptions::new().read(true), &taken)?;
        Ok(Some(Taken { path: taken, file }))
    }
}

fn create(path: &Path, folder: &Path, mode: u32) -> io::Result<()> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)?;
    // The umask of a daemon would keep users out.
    file.set_permissions(Permissions::from_mode(mode))?;
    like_folder(&file, folder)
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

    use super::*;

    /// Below /dev/shm, which is a tmpfs on every Linux.
    fn in_memory() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").unwrap()
    }

    #[test]
    fn lines_are_taken_once_and_none_that_comes_meanwhile_is_lost() {
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
        // Somebody had the file open all the time.
        writeln!(before, "two").unwrap();
        assert_eq!(taken.read().unwrap(), "two\n");
        assert_eq!(taken.read().unwrap(), "");
        writeln!(open(), "three").unwrap();
        // Not delivered: it comes again, and the new lines wait.
        drop(taken);
        let mut again = lines.take(&lock, source).unwrap().unwrap();
        assert_eq!(again.read().unwrap(), "one\ntwo\n");
        again.forget().unwrap();
        let mut next = lines.take(&lock, source).unwrap().unwrap();
        assert_eq!(next.read().unwrap(), "three\n");
        next.forget().unwrap();
        let meta = fs::metadata(lines.file(source)).unwrap();
        assert_eq!(meta.mode() & 0o777, source.mode());
    }

    #[test]
    fn on_a_disk_there_is_no_file_to_write_into() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let lines = Folder::new(folder.path());
        // As earlier versions made them.
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
