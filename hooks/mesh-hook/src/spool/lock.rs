//! Locks and file ownership in the spool.
//!
//! Root also writes to the spool (Prolog on a node that is the controller, PAM), and the folder may belong to SlurmUser. So files are
//! opened without following links or blocking on pipes, and ownership is changed only for files created here.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, flock};

/// A file that no other process has locked.
#[derive(Debug)]
pub struct Lock(#[allow(dead_code, reason = "holds the lock until dropped")] File);

/// Held while flushing, so that doorbells stay in order and no two processes send the same one.
#[derive(Debug)]
pub struct FlushLock(#[allow(dead_code, reason = "holds the lock until dropped")] Lock);

/// Takes the flush lock of a folder. `None` if another process holds it.
///
/// # Errors
/// If the folder cannot be used.
pub fn lock(folder: &Path) -> io::Result<Option<FlushLock>> {
    Ok(lock_file(folder, ".lock")?.map(FlushLock))
}

/// Locks a file in a folder, and creates it if missing. `None` if another process holds the lock.
///
/// # Errors
/// If the folder cannot be used.
pub fn lock_file(folder: &Path, name: &str) -> io::Result<Option<Lock>> {
    let file = open_own(folder, name)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(Lock(file))),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Opens one of the spool's files to read and write, and creates it if missing.
///
/// # Errors
/// If the system refuses, or the file with that name may belong to another user.
pub fn open_own(folder: &Path, name: &str) -> io::Result<File> {
    let path = folder.join(name);
    let create = || {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
    };
    match create() {
        Ok(file) => {
            like_folder(&file, folder)?;
            return Ok(file);
        }
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Err(_) => {}
    }
    let file = open_regular(OpenOptions::new().read(true).write(true), &path)?;
    let (found, owner) = (file.metadata()?, fs::metadata(folder)?.uid());
    // A second hard link may point to a file that only root may change.
    if found.nlink() > 1 || found.uid() != owner {
        let message = format!(
            "{} has a second hard link or another owner; find out who created it, and remove it",
            path.display()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    Ok(file)
}

/// Opens an existing file without following a link or blocking on a pipe.
///
/// # Errors
/// If the system refuses, or it is not a regular file.
pub fn open_regular(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = options
        .custom_flags(flags.bits().cast_signed())
        .open(path)?;
    if !file.metadata()?.is_file() {
        let message = format!("{} is not a regular file", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(file)
}

/// Gives a new file to the owner of its folder. Root also spools doorbells, and SlurmUser must be able to deliver them.
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
