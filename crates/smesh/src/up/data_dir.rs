//! The data directory: its permissions, and a lock so that only one `smesh up` uses it.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Gid, Uid, fchown, flock};

use crate::error::Error;

/// A user and a group.
pub type Owner = (Uid, Gid);

/// The data directory. Locked while this value lives.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    _lock: File,
}

impl DataDir {
    /// Creates missing directories and takes the lock.
    ///
    /// # Errors
    /// If it cannot be used, or another `smesh up` uses it.
    pub fn prepare(path: &Path) -> Result<Self, Error> {
        // Other users may pass through to the API's socket, but not list the directory.
        create(path, 0o711)?;
        let private = path.join("private");
        create(&private, 0o700)?;
        let file = private.join("up.lock");
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&file)
            .map_err(|source| Error::io("open", &file, source))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self {
                path: path.to_owned(),
                _lock: lock,
            }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::Failed(format!(
                "another `smesh up` already uses {}; stop it, or set another directory with --data-dir",
                path.display()
            ))),
            Err(source) => Err(Error::io("lock", &file, source.into())),
        }
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of a file or folder that only the owner can read.
    pub fn private(&self, name: &str) -> PathBuf {
        private(&self.path, name)
    }
}

/// Path of a private file or folder in a data directory.
pub fn private(data_dir: &Path, name: &str) -> PathBuf {
    data_dir.join("private").join(name)
}

fn create(path: &Path, mode: u32) -> Result<(), Error> {
    if !path.is_dir() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(path)
            .map_err(|source| Error::io("create", path, source))?;
    }
    fs::set_permissions(path, Permissions::from_mode(mode))
        .map_err(|source| Error::io("set the mode of", path, source))
}

/// Writes a file that only its owner may read, atomically. The owner is the given one or the present user.
///
/// # Errors
/// If it cannot be written.
pub fn write_private(path: &Path, content: &[u8], owner: Option<Owner>) -> Result<(), Error> {
    let staged = path.with_extension("new");
    let write = || {
        // A leftover file may have another mode or owner.
        match fs::remove_file(&staged) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&staged)?;
        file.write_all(content)?;
        if let Some((uid, gid)) = owner {
            fchown(&file, Some(uid), Some(gid))?;
        }
        file.sync_all()?;
        fs::rename(&staged, path)
    };
    write().map_err(|source| Error::io("write", path, source))
}
